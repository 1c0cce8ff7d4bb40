"""Certifying a data set's test images into a folder, row by row, resumable."""

import copy
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import torch

from sween.data.dataset import Dataset
from sween.data.selection import format_indices
from sween.engine.engine import VoteEngine
from sween.engine.voters import name_with_exit
from sween.engine.workers import Emit, Item, Work, run_all
from sween.ensemble.early_exit import ExitPolicy
from sween.ensemble.loaded import LoadedEnsemble
from sween.errors import BadInput
from sween.interleave import sent
from sween.paths import AnyPath
from sween.progress import track
from sween.records import Certificate, RowWriter, format_radius, to_row
from sween.runs import read_config, run_folder, run_tag
from sween.smoothing.certify import certify_each, check_sampling, plan_budget
from sween.smoothing.classifier import SmoothedClassifier
from sween.smoothing.draws import Plan, images_at_once
from sween.smoothing.settings import CertifySettings
from sween.smoothing.verify import read_run, refuse_other_labels

PILOTS_TOGETHER = 100
"""Images whose pilot votes are counted at once."""


def certify_images(
    loaded: LoadedEnsemble,
    dataset: Dataset,
    positions: Sequence[int],
    settings: CertifySettings,
    out: AnyPath,
    *,
    exit: ExitPolicy | None = None,
    other_exits: Sequence[ExitPolicy] = (),
    members: bool = False,
    weightings: Mapping[str, Sequence[float]] | None = None,
    batch_size: int | None = None,
    forward_rows: int | None = None,
    precision: str = "auto",
    compile: bool | None = None,
    noise: str = "float32",
    devices: Sequence[torch.device] | None = None,
    skipped: Sequence[int] = (),
    quiet: bool = False,
) -> list[Certificate]:
    """Certify test images and append their rows to `out`.

    A folder of the same settings is taken up where it stopped: rows already there are kept, and the
    rest come out as they would have without the stop. Each certificate holds with probability
    1 - alpha on its own (see `SmoothedClassifier.certify`).

    Args:
        loaded: the ensemble, on the device to use unless `devices` says otherwise.
        dataset: the one its members were trained for.
        positions: which test images.
        settings: of the sampling.
        out: folder for config, environment and certificates.
        exit: early exit; none by default.
        other_exits: certified in the same pass too, under the ensemble's name and theirs.
        members: certify every member too, in the same pass over the noise.
        weightings: other weights of the same members, by name, certified in the same pass too.
        batch_size: noisy inputs of one batch; see `SmoothedClassifier`.
        forward_rows: rows of one forward pass; by default what suits the device.
        precision: float32, float16 or bfloat16; auto is float16 on a GPU and float32 on a CPU.
        compile: whether to compile the members; on a GPU by default.
        noise: `float32`, or `exact` on the grid of the data set's pixels.
        devices: of one kind, to share the images; the ensemble's own when None.
        skipped: test images that were asked for and left out, as those that cannot be read; for the
            config.
        quiet: no progress display.

    Returns:
        The certificates computed by this call.
    """
    out = Path(out)
    _check_fit(loaded, dataset)
    if not positions:
        raise BadInput("positions", expected="at least one image", got="none", fix="name some")
    policy = exit or ExitPolicy()
    _check_exits(policy, other_exits)
    member_names = loaded.member_names if members and len(loaded.member_names) > 1 else None

    def engine_on(device: torch.device | None) -> VoteEngine:
        own = loaded if device is None else copy.deepcopy(loaded).to(device)
        return SmoothedClassifier(
            own,
            sigma=loaded.sigma,
            num_classes=loaded.num_classes,
            exit=policy,
            name=loaded.name,
            batch_size=batch_size,
            forward_rows=forward_rows,
            member_names=member_names,
            weightings=weightings,
            other_exits=other_exits,
            precision=precision,
            compile=compile,
            noise=noise,
            levels=dataset.test.white,
        ).engine

    engines = [engine_on(device) for device in devices or (None,)]
    engine = engines[0]
    check_sampling(engine, settings, numbers=math.prod(dataset.image_shape))
    for each in engines:
        each.prepare(dataset.test.images(positions[:1]).to(each.device)[0])
        if each.precision != engine.precision:
            raise BadInput(
                f"precision on {each.device}",
                expected=f"{engine.precision}, as on {engine.device}",
                got=each.precision,
                fix="use --no-compile, or one device",
            )
    config = run_config(
        loaded, dataset, positions, settings, policy, member_names, weightings, skipped
    )
    if other_exits:
        config["exits"] = {
            name_with_exit(loaded.name, other): other.describe() for other in other_exits
        }
    config |= {
        "device": engine.device.type,
        "forward_rows": engine.rows_asked,
        "precision": engine.precision,
        "noise": engine.noise.name,
    }
    with run_folder(out, config, rows="certificates.jsonl") as path:
        known = {(row.model, row.index) for row in _rows_so_far(path, dataset)}
        names = engine.panel.names
        left = [index for index in positions if any((name, index) not in known for name in names)]
        tag = run_tag(read_config(out))
        plans = plans_of(engine, dataset, positions, settings) if left else {}
        return _certify_left(engines, dataset, left, settings, plans, path, known, tag, quiet)


def plans_of(
    engine: VoteEngine, dataset: Dataset, positions: Sequence[int], settings: CertifySettings
) -> dict[int, Plan]:
    """With a budget, the votes of each image: the pilots of all of them, also of those done."""
    if settings.sampling != "budget":
        return {}

    def parts() -> Iterator[tuple[torch.Tensor, Sequence[int]]]:
        for start in range(0, len(positions), PILOTS_TOGETHER):
            keys = positions[start : start + PILOTS_TOGETHER]
            yield sent(dataset.test.images(keys), engine.device), keys

    return dict(zip(positions, plan_budget(engine, parts, settings), strict=True))


def _rows_so_far(path: Path, dataset: Dataset) -> Sequence[Certificate]:
    """What a stopped run left, checked: rows that `sween verify` refuses are not added to."""
    if not path.exists():
        return ()
    run = read_run(path.parent)
    refuse_other_labels(run, dataset.test.labels.tolist())
    return run.certificates


def _certify_left(
    engines: Sequence[VoteEngine],
    dataset: Dataset,
    left: Sequence[int],
    settings: CertifySettings,
    plans: Mapping[int, Plan],
    path: Path,
    known: Set[tuple[str, int]],
    tag: str,
    quiet: bool,
) -> list[Certificate]:
    """Certify the images that are left and append the rows that are not there yet."""
    if not left:
        return []
    written: list[Certificate] = []
    done = 0
    names = engines[0].panel.names
    together = images_at_once(engines[0], settings)
    groups = [left[start : start + together] for start in range(0, len(left), together)]
    known_cost = settings.sampling == "fixed"  # else only the images can be counted down
    total = len(left) * (settings.n0 + settings.n if known_cost else 1)
    with (
        RowWriter(path) as writer,
        track(f"certify {names[-1]}", total, quiet=quiet) as advance,
    ):

        def handle(item: Item) -> None:
            nonlocal done
            if isinstance(item, int):
                if known_cost:
                    advance(item, _note(written, done, len(left)))
                return
            fresh = [
                dataclasses.replace(row, run=tag)
                for row in item
                if (row.model, row.index) not in known
            ]
            writer.append([to_row(certificate) for certificate in fresh])
            written.extend(fresh)
            done += 1
            if not known_cost:
                advance(1, f"images, last radius {format_radius(item[-1].radius)}")

        run_all(engines, groups, work_on(dataset, settings, plans), handle)
        if known_cost:  # the last votes were counted before their row was made of them
            advance(0, _note(written, done, len(left)))
    return written


def work_on(dataset: Dataset, settings: CertifySettings, plans: Mapping[int, Plan]) -> Work:
    """How an engine certifies a group of test images."""

    def work(engine: VoteEngine, keys: Sequence[int], emit: Emit) -> None:
        for rows in certify_each(
            engine,
            sent(dataset.test.images(keys), engine.device),
            keys,
            [int(dataset.test.labels[key]) for key in keys],
            settings,
            plans=[plans[key] for key in keys] if plans else None,
            on_progress=emit,
        ):
            emit(rows)

    return work


def _note(written: Sequence[Certificate], done: int, images: int) -> str:
    last = f", radius {format_radius(written[-1].radius)}" if written else ""
    return f"votes; {done}/{images} images{last}"


def _check_exits(policy: ExitPolicy, others: Sequence[ExitPolicy]) -> None:
    names = [policy.name, *(other.name for other in others)]
    if len(set(names)) < len(names):
        raise BadInput(
            "exits", expected="each once", got=", ".join(names), fix="leave out the double one"
        )


def _check_fit(loaded: LoadedEnsemble, dataset: Dataset) -> None:
    for what, wanted, got in (
        ("dataset", loaded.dataset, dataset.name),
        ("image shape", loaded.image_shape, dataset.image_shape),
        ("classes", loaded.class_names, dataset.class_names),
    ):
        if wanted != got:
            raise BadInput(
                what, expected=f"{wanted}, as the members have", got=got, fix="load that data set"
            )


def subject_config(
    loaded: LoadedEnsemble, dataset: Dataset, positions: Sequence[int], skipped: Sequence[int] = ()
) -> dict[str, Any]:
    """Which ensemble on which test images: what the configs of all runs on them begin with."""
    contents = dataset.test.pixels.contents(positions)
    return {
        "dataset": loaded.dataset,
        "split": "test",
        "data": dataset.test.pixels.fingerprint(),
        "labels": dataset.test.label_fingerprint(),
        **({} if contents is None else {"contents": contents}),
        **dataset.options,
        "indices": format_indices(positions),
        "images": len(positions),
        **({"skipped": format_indices(skipped)} if skipped else {}),
        "model": loaded.name,
        "fingerprint": loaded.fingerprint,
        "candidates": list(loaded.member_names),
        "weights": loaded.weights.tolist(),
        "sigma": loaded.sigma,
    }


def run_config(
    loaded: LoadedEnsemble,
    dataset: Dataset,
    positions: Sequence[int],
    settings: CertifySettings,
    policy: ExitPolicy,
    member_names: Sequence[str] | None,
    weightings: Mapping[str, Sequence[float]] | None = None,
    skipped: Sequence[int] = (),
) -> dict[str, Any]:
    """The config of a certification run: enough to tell what was certified, and to check rows.

    A lone member is its own ensemble: certifying it twice would say nothing more, so `member_names`
    is None for it.
    """
    config: dict[str, Any] = {
        "kind": "certificates",
        **subject_config(loaded, dataset, positions, skipped),
        "exit": policy.describe(),
        **settings.as_dict(),
    }
    if member_names is not None:
        config |= {"members": list(member_names), "ensemble": loaded.name}
    if weightings:
        config["weightings"] = {name: list(weights) for name, weights in weightings.items()}
    return config
