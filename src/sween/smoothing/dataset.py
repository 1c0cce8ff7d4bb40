"""Certifies a data set into a run folder: row by row, resumable, verifiable."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sween.arguments import check_type
from sween.engine import Pool, VoteEngine
from sween.engine.inspection import A_COPY_DIFFERS, inspect_module
from sween.engine.pooled import pooled_engines
from sween.ensemble import WeightedEnsemble
from sween.errors import BadInput, ContractError
from sween.models.device import as_device, device_of
from sween.models.evaluation_mode import evaluating
from sween.paths import AnyPath, as_folder
from sween.progress import track
from sween.records import Certificate, format_radius
from sween.runs.certification import CertificationRun, writing
from sween.runs.pilots import read_plans
from sween.runs.shards import Shard
from sween.sampling import CertifySettings
from sween.sampling.settings import ALPHA, N, settings_of
from sween.sampling.strategy import Plan
from sween.smoothing import pipeline
from sween.smoothing.chosen_images import ChosenImages, images_to_certify
from sween.smoothing.classifier import SmoothedClassifier
from sween.smoothing.pilots import draw_pilots
from sween.smoothing.run_config import run_config
from sween.smoothing.same_votes import refuse_other_votes

CHECKED_TOGETHER = 256
"""Images read at a time to check them."""


def certify_dataset(
    smoothed: SmoothedClassifier,
    data: object,
    *,
    out: AnyPath,
    indices: Iterable[int] | int | None = None,
    name: str = "dataset",
    n0: int | None = None,
    n: int = N,
    alpha: float = ALPHA,
    seed: int = 0,
    bound: str = "cohen",
    sampling: str = "fixed",
    radii: Sequence[float] = (),
    tolerance: float | None = None,
    budget: int | None = None,
    votes: str = "hard",
    settings: CertifySettings | None = None,
    devices: Sequence[torch.device] | None = None,
    pool: Pool | None = None,
    skipped: Sequence[int] = (),
    shard: Shard | None = None,
    quiet: bool = False,
) -> CertificationRun:
    """Certify the images of a data set into a folder that `sween verify` and `sween report` take.

    If the folder holds an unfinished run with the same settings, it is resumed, and the rows will
    be those of an uninterrupted run. Model, data and kind of device must be the same. Each single
    certificate holds with probability at least 1 - alpha (see `SmoothedClassifier.certify`).

    Args:
        smoothed: the classifier, with any `member_names`, `weightings` and `other_exits` that
            should be certified in the same pass.
        data: a torch `Dataset`, a `DataLoader` that does not shuffle, a pair (images, labels) or
            anything else that `as_image_set` accepts.
        out: folder for config, environment and certificates.
        indices: of the images to certify; all by default.
        name: of the data set, for records and reports.
        n0: votes that select the class; by default 100, or 1,000 with `tolerance` and `budget`.
        n: fresh votes that bound its probability.
        alpha: failure probability of one certificate.
        seed: of the noise. Keep it secret if someone could choose images with knowledge of it.
        bound: `cohen` or `two-class`.
        sampling: `fixed`, `decide`, `tolerance` or `budget`; see `CertifySettings`.
        radii: to decide, with `decide`.
        tolerance: share of the radius that may be lost, with `tolerance`.
        budget: total number of noisy images, with `budget`.
        votes: `hard` or `soft`.
        settings: all of the above from n0 on at once.
        devices: of one kind, to share the images; by default the model's own device.
        pool: workers that count the votes instead, such as `sween.cluster.RayPool`; the rows are
            the same.
        skipped: images that were requested but left out because they cannot be read; recorded in
            the config.
        shard: certify only this part of the images, into a folder for `merge_runs`. If the
            sampling plans for all images together, as `budget` does, the first call only writes
            pilot votes; once all shards have theirs, `merge_runs` makes the plan for the next call.
        quiet: no progress display.

    Returns:
        The complete run, or shard. Without labels it has no accuracy and no report.

    Example:
        >>> import sween
        >>> digits = sween.load_dataset("digits").test
        >>> images, labels = digits.images(range(20)), digits.labels[:20]
        >>> smoothed = sween.SmoothedClassifier.load("digits-sween3-gaussian-sigma0.50")
        >>> run = sween.certify_dataset(smoothed, (images, labels), out="run", n=500, quiet=True)
        >>> run
        CertificationRun('run', model='SWEEN-3', 20 of 20 images)
        >>> run.certified_accuracy([0.0])[0] > 0.5
        True
    """
    options = {
        "n0": n0,
        "n": n,
        "alpha": alpha,
        "seed": seed,
        "bound": bound,
        "sampling": sampling,
        "radii": radii,
        "tolerance": tolerance,
        "budget": budget,
        "votes": votes,
    }
    settings = settings_of(settings, options, seed=0)
    folder = as_folder("out", out)
    chosen = images_to_certify(smoothed, data, name, indices, skipped=skipped, quiet=quiet)
    with _engines(smoothed, chosen, devices, pool, quiet=quiet) as engines:
        for _ in _certify(
            smoothed, chosen, settings, folder, engines, shard, quiet=quiet, watched=False
        ):
            pass
    return CertificationRun.read(out, part=True)


def iter_certificates(
    smoothed: SmoothedClassifier,
    data: object,
    *,
    out: AnyPath,
    settings: CertifySettings | None = None,
    indices: Iterable[int] | int | None = None,
    name: str = "dataset",
    devices: Sequence[torch.device] | None = None,
    pool: Pool | None = None,
    skipped: Sequence[int] = (),
    shard: Shard | None = None,
    quiet: bool = False,
) -> Iterator[Certificate]:
    """`certify_dataset` as a generator: yields each certificate of the model once it is written.

    When resuming, existing certificates come first. A shard that only has its pilot votes to draw
    yields none. The model must not change until the last certificate; a change between two of them
    is refused.

    Example:
        >>> import sween
        >>> from sween.sampling import CertifySettings
        >>> from sween.smoothing import iter_certificates
        >>> digits = sween.load_dataset("digits")
        >>> smoothed = sween.SmoothedClassifier.load("digits-sween3-gaussian-sigma0.50")
        >>> settings = CertifySettings(n=200)
        >>> found = iter_certificates(
        ...     smoothed, digits, out="run", settings=settings, indices=range(3), quiet=True
        ... )
        >>> [certificate.index for certificate in found]
        [0, 1, 2]
    """
    settings = settings_of(settings, {}, seed=0)
    folder = as_folder("out", out)
    chosen = images_to_certify(smoothed, data, name, indices, skipped=skipped, quiet=quiet)
    with _engines(smoothed, chosen, devices, pool, quiet=quiet) as engines:
        yield from _certify(
            smoothed, chosen, settings, folder, engines, shard, quiet=quiet, watched=True
        )


@contextlib.contextmanager
def _engines(
    smoothed: SmoothedClassifier,
    chosen: ChosenImages,
    devices: Sequence[torch.device] | None,
    pool: Pool | None,
    *,
    quiet: bool,
) -> Iterator[Sequence[VoteEngine]]:
    """Separate engines, since the classifier may be used meanwhile, by this or another thread."""
    if (pool is not None or devices is not None) and chosen.positions:
        _refuse_uncopyable(smoothed.model, chosen.source.images(chosen.positions[:1]))
    if pool is None:
        named = None if devices is None else [as_device("devices", own) for own in devices]
        yield [smoothed.twin(device).engine for device in named or (None,)]
        return
    check_type("pool", pool, Pool, fix="pass a RayPool")
    with pooled_engines(smoothed.twin(torch.device("cpu")).engine, pool, quiet=quiet) as engines:
        yield engines


def _refuse_uncopyable(model: nn.Module, images: torch.Tensor) -> None:
    """Refuse a model of which a copy, as for another device, computes something else."""
    members = model.members if isinstance(model, WeightedEnsemble) else [model]
    images = images.to(device_of(model))
    with torch.no_grad(), evaluating(model):
        for member in members:
            with contextlib.suppress(Exception):  # its first engine says what is wrong
                member(images.clone())  # it may work in place
                if not inspect_module(member, images).copies:
                    break
        else:
            return
    raise ContractError(
        "model",
        expected="a module that can be copied to other devices",
        got=A_COPY_DIFFERS,
        fix="keep what layers share in their arguments, or leave out `devices` and `pool`",
    )


def _certify(
    smoothed: SmoothedClassifier,
    chosen: ChosenImages,
    settings: CertifySettings,
    out: Path,
    engines: Sequence[VoteEngine],
    shard: Shard | None,
    *,
    quiet: bool,
    watched: bool,
) -> Iterator[Certificate]:
    """Certify chosen images; if `watched`, a model that changes between certificates is refused."""
    if shard is not None:
        check_type("shard", shard, Shard, fix="pass Shard(1, 16)")
        shard.take(chosen.positions)  # refuses too many shards before the model is prepared
    _prepare(engines, chosen, settings)
    config = run_config(smoothed, engines[0], chosen, settings)
    source, positions = chosen.source, chosen.positions
    labels = None if source.labels is None else source.labels.tolist()
    watched = watched or any(engine.shared for engine in engines)
    plans: Mapping[int, Plan] | None = None
    if shard is not None and settings.strategy.planned:
        plans = read_plans(out)
        draw_pilots(engines[0], chosen, settings, out, config, shard, quiet=quiet)
        if plans is None:
            return
    with writing(out, config, labels, shard) as run:
        yield from [row for row in run.rows if row.model == smoothed.name]
        if watched:
            _refuse_changed(engines)
        left = run.left
        if plans is None:
            plans = pipeline.plan_all(engines[0], source, positions, settings) if left else {}
        if left:
            refuse_other_votes(run.rows, engines[0], source, positions, settings, plans)
        with _Progress(settings, engines[0], len(left), quiet) as progress:
            certified = pipeline.certify(
                engines,
                source,
                positions,
                settings,
                left=left,
                plans=plans,
                on_progress=progress.votes,
            )
            for rows in certified:
                if watched:
                    _refuse_changed(engines)
                written = run.append(rows)
                progress.image(rows[-1])
                for row in written:
                    if row.model == smoothed.name:
                        yield row
                        if watched:  # the caller may have changed it
                            _refuse_changed(engines)


def _refuse_changed(engines: Sequence[VoteEngine]) -> None:
    """Refuse a model that changed since the config was written."""
    if not all(engine.is_current for engine in engines):
        raise BadInput(
            "model",
            expected="the weights, parameters, buffers and modes it had at the start",
            got="a model that was changed between two certificates",
            fix="change it after the last certificate; this run can be resumed",
        )


def _prepare(
    engines: Sequence[VoteEngine], chosen: ChosenImages, settings: CertifySettings
) -> None:
    """Prepare every engine with the first image; all must use the same arithmetic."""
    source, positions = chosen.source, chosen.positions
    first = source.images(positions[:1])
    kinds = {engine.follow_device().type for engine in engines}
    if len(kinds) > 1:
        raise BadInput(
            "devices",
            expected="devices of one kind, since each kind draws different noise",
            got=", ".join(sorted(kinds)),
            fix="use one kind of device",
        )
    if engines[0].noise.name != "float32":  # before anything is written
        for start in range(0, len(positions), CHECKED_TOGETHER):
            engines[0].noise.check(source.images(positions[start : start + CHECKED_TOGETHER]))
    for engine in engines:
        pipeline.check_engine(engine, settings, numbers=first[0].numel())
        engine.prepare(first[0])
        if engine.precision != engines[0].precision:
            raise BadInput(
                f"precision on {engine.device}",
                expected=f"{engines[0].precision}, as on {engines[0].device}",
                got=engine.precision,
                fix="turn compilation off, or use one device",
            )


class _Progress:
    """Progress by votes if their number is known, otherwise by images."""

    def __init__(
        self, settings: CertifySettings, engine: VoteEngine, images: int, quiet: bool
    ) -> None:
        votes = settings.strategy.votes_per_image(settings)
        self.by_votes, self._engine = votes is not None, engine
        self.done, self.images, self.last = 0, images, ""
        total = images * (1 if votes is None else votes)
        self._track = track(f"certify {engine.name}", total, quiet=quiet or not images)

    def __enter__(self) -> "_Progress":
        self._advance = self._track.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self.by_votes:  # the last votes were counted before their row was written
            self._advance(0, self._note())
        self._track.__exit__(*error)

    def votes(self, copies: int) -> None:
        if self.by_votes:
            self._advance(copies, self._note())

    def image(self, certificate: Certificate) -> None:
        self.done += 1
        self.last = f"radius {format_radius(certificate.radius)}"
        if not self.by_votes:
            self._advance(1, self._note())

    def _note(self) -> str:
        if self.by_votes:
            parts = [f"votes; {self.done}/{self.images} images", self.last]
        else:
            parts = ["images", f"last {self.last}"]
        return ", ".join(part for part in (*parts, self._engine.status) if part)
