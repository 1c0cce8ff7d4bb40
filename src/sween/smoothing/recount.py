"""Counting the votes of a finished run again, with its model and its data.

A folder alone shows whether its rows follow from their votes, not whether the votes were ever cast.
Noise is keyed by seed, purpose and image, and a forward pass has one shape, so on the same kind of
device the same votes come out again, bit for bit: rows of made-up votes, of another seed, sigma or
image, or with another label, do not.
"""

import dataclasses
import math
import secrets
from collections.abc import Sequence
from typing import Any

from sween.data.dataset import Dataset
from sween.engine.engine import VoteEngine
from sween.engine.workers import Item, run_all
from sween.ensemble.early_exit import exit_of
from sween.ensemble.loaded import LoadedEnsemble
from sween.errors import BadInput, CheckFailed
from sween.paths import AnyPath
from sween.progress import track
from sween.records import Certificate
from sween.runs import config_differences
from sween.seeding import numpy_generator
from sween.smoothing.certify import check_sampling
from sween.smoothing.classifier import SmoothedClassifier
from sween.smoothing.draws import Plan, images_at_once
from sween.smoothing.run import plans_of, subject_config, work_on
from sween.smoothing.subject import indices_of
from sween.smoothing.verify import CheckedRun, check_complete, read_run, settings_of

NOT_COUNTED = frozenset({"seconds", "run"})
"""Fields that counting again does not give: the clock's, and the name of the config."""


@dataclasses.dataclass(frozen=True)
class RecountedRun:
    """What was counted again.

    Attributes:
        rows: that came out the same.
        indices: of their images, ascending.
        seed: of the choice of these images.
    """

    rows: int
    indices: tuple[int, ...]
    seed: int


def recount_folder(
    folder: AnyPath,
    loaded: LoadedEnsemble,
    dataset: Dataset,
    *,
    images: int | None = None,
    seed: int | None = None,
    quiet: bool = False,
) -> RecountedRun:
    """Certify images of a finished run again and compare every field but the time.

    The folder must pass `read_run` and be complete; counting adds to what `verify_folder` checks.
    Images that are not among those chosen stay unproven; with a budget the pilot votes of all
    images are counted again, since every size hangs on them.

    Args:
        folder: written by `sween certify`.
        loaded: the ensemble that the run certified, on the kind of device that it was certified on.
        dataset: the one that the run certified, with its labels.
        images: how many; all by default.
        seed: of the choice of images; from the operating system when None, so that nobody can know
            beforehand which rows will be counted again.
        quiet: no progress display.

    Raises:
        BadInput: another ensemble, other data, another kind of device or another arithmetic.
        CheckFailed: naming the first row that came out otherwise, and both values.
    """
    run = read_run(folder)
    check_complete(run)
    _check_subject(run, loaded, dataset)
    seed = secrets.randbits(31) if seed is None else seed
    chosen = _choice(indices_of(run.config), images, seed)
    settings = settings_of(run.config)
    places = {(row.model, row.index): place for place, row in enumerate(run.certificates)}
    with track(f"recount {loaded.name}", len(chosen), quiet=quiet) as advance:
        for rows, keys in _by_forward_rows(run, chosen).items():
            engine = _engine(run, loaded, dataset, rows, keys[0])
            check_sampling(engine, settings, numbers=math.prod(dataset.image_shape))
            plans = plans_of(engine, dataset, indices_of(run.config), settings)
            _check_pilots(run, plans)

            def handle(item: Item) -> None:
                if not isinstance(item, int):
                    for certificate in item:
                        place = places[certificate.model, certificate.index]
                        _compare(run, place, certificate)
                    advance(1, "images")

            together = images_at_once(engine, settings)
            groups = [keys[start : start + together] for start in range(0, len(keys), together)]
            run_all([engine], groups, work_on(dataset, settings, plans), handle)
    return RecountedRun(len(chosen) * len(run.models), tuple(chosen), seed)


def _choice(indices: Sequence[int], images: int | None, seed: int) -> list[int]:
    if images is None or images >= len(indices):
        return sorted(indices)
    if images < 1:
        raise BadInput("images", expected="at least 1", got=images, fix="recount 20, or all")
    # Raw words: numpy may change how it makes a choice of them.
    words = numpy_generator(seed, "recount").bit_generator.random_raw(len(indices))
    order = sorted(range(len(indices)), key=lambda place: (int(words[place]), place))
    return sorted(indices[place] for place in order[:images])


def _check_subject(run: CheckedRun, loaded: LoadedEnsemble, dataset: Dataset) -> None:
    """Refuse another ensemble or other data than the config names.

    A config that names this very ensemble and these data, and says something else of them, was
    altered: that is a check that fails.
    """
    config = run.config
    now = subject_config(loaded, dataset, indices_of(config))
    then = {name: config[name] for name in now if name in config}
    differences = config_differences(then, {name: now[name] for name in then})
    if differences and all(now[name] == then.get(name) for name in ("fingerprint", "data")):
        raise CheckFailed(f"{run.file.parent}/config.toml: {'; '.join(differences)} of the model")
    if differences:
        raise BadInput(
            f"{run.file.parent}/config.toml",
            expected="the ensemble and the data that were certified",
            got=f"others ({'; '.join(differences)})",
            fix="pass them as --model and --data-root",
        )
    device = next(loaded.parameters()).device.type
    if "device" not in config:
        raise BadInput(
            f"{run.file.parent}/config.toml",
            expected="the kind of device that certified the run, since each draws its own noise",
            got="no device",
            fix="certify again with this version",
        )
    if config["device"] != device:
        raise BadInput(
            "--device",
            expected=f"{config['device']}, on which {run.file.parent} was certified: another kind "
            "draws other noise",
            got=device,
            fix=f"recount on a machine with {config['device']}",
        )


def _by_forward_rows(run: CheckedRun, chosen: Sequence[int]) -> dict[int, list[int]]:
    """The images by the rows of the forward passes that they were certified in.

    A run that ran out of memory went on with fewer.
    """
    rows = {certificate.index: certificate.forward_rows for certificate in run.certificates}
    asked = run.config["forward_rows"]
    if run.config["sampling"] == "budget" and {*rows.values()} != {asked}:
        raise BadInput(
            str(run.file),
            expected="a budget whose votes all come from one shape of forward passes",
            got=f"rows of {', '.join(map(str, sorted({*rows.values()})))}",
            fix="a run that ran out of memory cannot be recounted; certify again with fewer "
            "--forward-rows",
        )
    groups: dict[int, list[int]] = {}
    for index in chosen:
        groups.setdefault(rows[index], []).append(index)
    return groups


def _engine(
    run: CheckedRun, loaded: LoadedEnsemble, dataset: Dataset, rows: int, first: int
) -> VoteEngine:
    """What certified the run, made again; refused where it computes otherwise here."""
    config = run.config
    arithmetic = str(config["precision"])
    parts = {part.partition("+")[0].replace("tf32", "float32") for part in arithmetic.split(", ")}
    engine = SmoothedClassifier(
        loaded,
        sigma=loaded.sigma,
        num_classes=loaded.num_classes,
        exit=exit_of(config["exit"]),
        name=loaded.name,
        forward_rows=rows,
        member_names=config.get("members"),
        weightings=config.get("weightings"),
        other_exits=[exit_of(text) for text in config.get("exits", {}).values()],
        precision=parts.pop(),
        compile="+" in arithmetic,
        noise=str(config["noise"]).partition("(")[0],
        levels=dataset.test.white,
    ).engine
    engine.prepare(dataset.test.images([first]).to(engine.device)[0])
    for name, now, then in (
        ("precision", engine.precision, arithmetic),
        ("forward_rows", engine.forward_rows, rows),
        ("noise", engine.noise.name, config["noise"]),
        ("models", engine.panel.names, run.models),
    ):
        if now != then:
            raise BadInput(
                f"{name} on {engine.device}",
                expected=f"{then}, as {run.file.parent} was certified with",
                got=now,
                fix="recount on a machine like the one that its environment.json names",
            )
    return engine


def _check_pilots(run: CheckedRun, plans: dict[int, Plan]) -> None:
    """With a budget: the pilot votes of all images, and the sizes that they call for."""
    for place, certificate in enumerate(run.certificates):
        plan = plans.get(certificate.index)
        if plan is None:
            continue
        for name, now, then in (
            ("selection_counts", plan.pilot.counts, certificate.selection_counts),
            ("n", plan.size, certificate.n),
        ):
            if now != then:
                raise _differs(run, place, [f"{name} {_text(then)}, recounted {_text(now)}"])


def _compare(run: CheckedRun, place: int, again: Certificate) -> None:
    recorded = run.certificates[place]
    if again.forward_rows != recorded.forward_rows:
        raise BadInput(
            "memory",
            expected=f"room for forward passes of {recorded.forward_rows} rows, as in the run",
            got=f"room for {again.forward_rows}",
            fix="free some memory, or recount on a machine like that of its environment.json",
        )
    problems = [
        f"{field.name} {_text(then)}, recounted {_text(now)}"
        for field in dataclasses.fields(Certificate)
        if field.name not in NOT_COUNTED
        and (then := getattr(recorded, field.name)) != (now := getattr(again, field.name))
    ]
    if problems:
        raise _differs(run, place, problems)


def _differs(run: CheckedRun, place: int, problems: Sequence[str]) -> CheckFailed:
    certificate = run.certificates[place]
    return CheckFailed(f"{run.where(place)}, {certificate.model}: {'; '.join(problems)}")


def _text(value: Any) -> str:
    return str(list(value) if isinstance(value, tuple) else value)
