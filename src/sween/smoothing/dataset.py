"""Certifying a data set into a run folder: row by row, resumable, verifiable."""

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from sween.data import DATASETS, Dataset, as_image_set
from sween.data.dataset import ImageSet
from sween.data.selection import format_indices
from sween.data.validation import check_indices
from sween.engine import VoteEngine
from sween.ensemble import LoadedEnsemble, WeightedEnsemble
from sween.errors import BadInput
from sween.models.device import evaluating
from sween.paths import AnyPath
from sween.progress import track
from sween.records import Certificate, format_radius
from sween.runs.certification import CertificationRun, writing
from sween.runs.subject import UNLABELED
from sween.sampling import CertifySettings
from sween.sampling.settings import ALPHA, N
from sween.smoothing import pipeline
from sween.smoothing.classifier import SmoothedClassifier

CHECKED_TOGETHER = 256
"""Images that are read at once to be checked."""


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
    skipped: Sequence[int] = (),
    quiet: bool = False,
) -> CertificationRun:
    """Certify the images of a data set into a folder that `sween verify` and `sween report` take.

    A folder of the same settings is resumed: rows already there are kept, and the rest are those
    of an uninterrupted run. Model, data and kind of device must be the same. Each certificate holds
    with probability 1 - alpha on its own (see `SmoothedClassifier.certify`).

    Args:
        smoothed: the classifier; where it was made with `member_names`, `weightings` or
            `other_exits`, these are certified in the same pass.
        data: a torch `Dataset`, a `DataLoader` that does not shuffle, a pair (images, labels) or
            anything else that `as_image_set` takes.
        out: folder for config, environment and certificates.
        indices: which images; all when None.
        name: of the data set, for records and reports.
        n0: votes that select the class; 100, or 1,000 with `tolerance` and `budget`, when None.
        n: fresh votes that bound its probability.
        alpha: failure probability of one certificate.
        seed: of the noise. Keep it secret where images could be chosen with knowledge of it.
        bound: `cohen` or `two-class`.
        sampling: `fixed`, `decide`, `tolerance` or `budget`; see `CertifySettings`.
        radii: to decide, with `decide`.
        tolerance: share of the radius that may be lost, with `tolerance`.
        budget: noisy images in all, with `budget`.
        votes: `hard` or `soft`.
        settings: all of these at once, in their place.
        devices: of one kind, to share the images; the model's own when None.
        skipped: images that were asked for and left out, as those that cannot be read; for the
            config.
        quiet: no progress display.

    Returns:
        The run, with the certificates that were there before. Without labels it has no accuracy,
        and no report.
    """
    if settings is None:
        settings = CertifySettings(
            n0=n0,  # type: ignore[arg-type]  # None is the strategy's default
            n=n,
            alpha=alpha,
            seed=seed,
            bound=bound,
            sampling=sampling,
            radii=radii,
            tolerance=tolerance,
            budget=budget,
            votes=votes,
        )
    for _ in _certified(
        smoothed, data, out, settings, indices, name, devices, skipped, quiet, watched=False
    ):
        pass
    return CertificationRun.read(out)


def iter_certificates(
    smoothed: SmoothedClassifier,
    data: object,
    *,
    out: AnyPath,
    settings: CertifySettings | None = None,
    indices: Iterable[int] | int | None = None,
    name: str = "dataset",
    devices: Sequence[torch.device] | None = None,
    skipped: Sequence[int] = (),
    quiet: bool = False,
) -> Iterator[Certificate]:
    """`certify_dataset`, one certificate of the model at a time, each once its row is written.

    Those that a resumed run has already come first. The model must stay as it is until the last:
    a change between two certificates is refused.
    """
    settings = settings or CertifySettings()
    yield from _certified(
        smoothed, data, out, settings, indices, name, devices, skipped, quiet, watched=True
    )


def _certified(
    smoothed: SmoothedClassifier,
    data: object,
    out: AnyPath,
    settings: CertifySettings,
    indices: Iterable[int] | int | None,
    name: str,
    devices: Sequence[torch.device] | None,
    skipped: Sequence[int],
    quiet: bool,
    *,
    watched: bool,
) -> Iterator[Certificate]:
    """`iter_certificates`; where `watched`, a model that changes in between is refused."""
    images = _images_of(smoothed, data, name)
    positions = _positions(indices, images)
    _check_fit(smoothed, data if isinstance(data, Dataset) else None, images)
    # Engines of their own: the classifier may be asked meanwhile, by this thread or another.
    engines = [smoothed.twin(device).engine for device in devices or (None,)]
    _prepare(engines, images, positions, settings)
    dataset = data if isinstance(data, Dataset) else None
    config = run_config(
        smoothed, engines[0], images, positions, settings, dataset=dataset, skipped=skipped
    )
    labels = None if images.labels is None else images.labels.tolist()
    with writing(out, config, labels) as run:
        yield from [row for row in run.rows if row.model == smoothed.name]
        if watched:
            with evaluating(smoothed.model):
                _refuse_changed(engines)
        left = run.left
        with _Progress(settings, smoothed.name, len(left), quiet) as progress:
            certified = pipeline.certify(
                engines,
                TestImages(images),
                positions,
                settings,
                left=left,
                on_progress=progress.votes,
            )
            for rows in certified:
                written = run.append(rows)
                progress.image(rows[-1])
                for row in written:
                    if row.model == smoothed.name:
                        yield row
                        if watched:
                            _refuse_changed(engines)


def _refuse_changed(engines: Sequence[VoteEngine]) -> None:
    """Refuse a model that is no longer the one that the config names."""
    if not all(engine.is_current for engine in engines):
        raise BadInput(
            "model",
            expected="the weights, parameters, buffers and modes it had at the start",
            got="a model that was changed between two certificates",
            fix="do not change it until the last certificate; the run resumes",
        )


def _positions(indices: Iterable[int] | int | None, images: ImageSet) -> list[int]:
    if indices is None:
        return list(range(len(images)))
    asked = list(indices) if isinstance(indices, Iterable) else [indices]
    if not asked:
        raise BadInput("indices", expected="at least one image", got="none", fix="name some")
    positions = check_indices([int(index) for index in asked], len(asked))
    if max(positions) >= len(images):
        raise BadInput(
            "indices",
            expected=f"positions below {len(images)}, the number of images",
            got=max(positions),
            fix="choose among them",
        )
    return positions


def _prepare(
    engines: Sequence[VoteEngine],
    images: ImageSet,
    positions: Sequence[int],
    settings: CertifySettings,
) -> None:
    """Make every engine ready for the first image; all must compute in the same arithmetic."""
    first = images.images(positions[:1])
    kinds = {engine.follow_device().type for engine in engines}
    if len(kinds) > 1:
        raise BadInput(
            "devices",
            expected="of one kind: each kind draws its own noise",
            got=", ".join(sorted(kinds)),
            fix="use one kind",
        )
    if engines[0].noise.name != "float32":  # before anything is written
        for start in range(0, len(positions), CHECKED_TOGETHER):
            engines[0].noise.check(images.images(positions[start : start + CHECKED_TOGETHER]))
    for engine in engines:
        pipeline.check_engine(engine, settings, numbers=math.prod(images.image_shape))
        engine.prepare(first[0])
        if engine.precision != engines[0].precision:
            raise BadInput(
                f"precision on {engine.device}",
                expected=f"{engines[0].precision}, as on {engines[0].device}",
                got=engine.precision,
                fix="use --no-compile, or one device",
            )


class TestImages:
    """The images of a data set; see `pipeline.ImageSource`."""

    def __init__(self, images: ImageSet) -> None:
        self._images = images

    def images(self, positions: Sequence[int]) -> torch.Tensor:
        return self._images.images(positions)

    def index(self, position: int) -> int:
        return position

    def label(self, position: int) -> int | None:
        labels = self._images.labels
        return None if labels is None else int(labels[position])


class _Progress:
    """Progress by votes where their number is known, else by images."""

    def __init__(self, settings: CertifySettings, name: str, images: int, quiet: bool) -> None:
        self.by_votes = settings.sampling == "fixed"
        self.done, self.images, self.last = 0, images, ""
        total = images * (settings.n0 + settings.n if self.by_votes else 1)
        self._track = track(f"certify {name}", total, quiet=quiet or not images)

    def __enter__(self) -> "_Progress":
        self._advance = self._track.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self.by_votes:  # the last votes were counted before their row was made of them
            self._advance(0, self._note())
        self._track.__exit__(*error)

    def votes(self, copies: int) -> None:
        if self.by_votes:
            self._advance(copies, self._note())

    def image(self, certificate: Certificate) -> None:
        self.done += 1
        self.last = f"radius {format_radius(certificate.radius)}"
        if not self.by_votes:
            self._advance(1, f"images, last {self.last}")

    def _note(self) -> str:
        return f"votes; {self.done}/{self.images} images{self.last and ', '}{self.last}"


def _images_of(smoothed: SmoothedClassifier, data: object, name: str) -> ImageSet:
    """The images; 8-bit ones on the scale that a loaded ensemble was trained on."""
    if isinstance(data, Dataset | ImageSet):
        return as_image_set(data)
    if name in DATASETS:
        raise BadInput(
            "name",
            expected="a name of your own for your own data",
            got=f"{name}, which is a data set of sween",
            fix="choose another name, or pass sween.load_dataset's data set",
        )
    model = smoothed.model
    white = model.white if isinstance(model, LoadedEnsemble) else 255
    return as_image_set(data, name=name, white=white)


def _check_fit(smoothed: SmoothedClassifier, dataset: Dataset | None, images: ImageSet) -> None:
    """Refuse data that the classifier was not trained for, or whose labels it does not have."""
    if images.labels is not None and len(images.labels):
        most = int(images.labels.max())
        if most >= smoothed.num_classes:
            raise BadInput(
                f"{images.name}[{int(images.labels.argmax())}]: label",
                expected=f"below num_classes = {smoothed.num_classes}",
                got=most,
                fix="pass the number of classes that the model has",
            )
    if dataset is not None and dataset.num_classes != smoothed.num_classes:
        raise BadInput(
            "num_classes",
            expected=f"{dataset.num_classes}, as {dataset.name} has",
            got=smoothed.num_classes,
            fix="certify a model of that data set",
        )
    model = smoothed.model
    if not isinstance(model, LoadedEnsemble):
        return
    wanted: list[tuple[str, object, object]] = []
    if dataset is not None:
        wanted += [("dataset", model.dataset, dataset.name)]
        wanted += [("classes", model.class_names, dataset.class_names)]
    wanted += [("image shape", model.image_shape, images.image_shape)]
    for what, own, got in wanted:
        if own != got:
            raise BadInput(
                what, expected=f"{own}, as the members have", got=got, fix="load that data set"
            )


def _fingerprint(module: nn.Module) -> str:
    """SHA-256 of the classes of all submodules, what they print of themselves, and all tensors.

    Code is known by its name alone: a class that was rewritten has the fingerprint it had.
    """
    hasher = hashlib.sha256()
    for name, part in module.named_modules():
        own = f"{type(part).__module__}.{type(part).__qualname__}({part.extra_repr()})"
        hasher.update(f"{name} {own}\n".encode())
    tensors = (*module.named_parameters(), *module.named_buffers())
    for name, tensor in sorted(tensors, key=lambda named: named[0]):
        hasher.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        content = tensor.detach().cpu().contiguous().flatten()
        hasher.update(content.view(torch.uint8).numpy().data if content.numel() else b"")
    if isinstance(module, WeightedEnsemble):
        hasher.update(repr(module.weights.tolist()).encode())
    return hasher.hexdigest()


def subject_config(
    model: nn.Module,
    images: ImageSet,
    positions: Sequence[int],
    *,
    name: str,
    sigma: float,
    member_names: Sequence[str] | None = None,
    dataset: Dataset | None = None,
    skipped: Sequence[int] = (),
) -> dict[str, Any]:
    """Which model on which images: what the configs of all runs on them begin with."""
    candidates, weights = [name], [1.0]
    if isinstance(model, LoadedEnsemble):
        candidates = list(model.member_names)
    elif isinstance(model, WeightedEnsemble):
        numbered = (f"member{number}" for number in range(1, len(model.members) + 1))
        candidates = list(member_names or numbered)
    if isinstance(model, WeightedEnsemble):
        weights = model.weights.tolist()
    contents = images.pixels.contents(positions)
    return {
        "dataset": images.name if dataset is None else dataset.name,
        "split": "test",
        "data": images.pixels.fingerprint(),
        "labels": images.label_fingerprint() or UNLABELED,
        **({} if contents is None else {"contents": contents}),
        **({} if dataset is None else dataset.options),
        "indices": format_indices(positions),
        "images": len(positions),
        **({"skipped": format_indices(skipped)} if skipped else {}),
        "model": name,
        "fingerprint": (
            model.fingerprint if isinstance(model, LoadedEnsemble) else _fingerprint(model)
        ),
        "candidates": candidates,
        "weights": weights,
        "sigma": sigma,
    }


def run_config(
    smoothed: SmoothedClassifier,
    engine: VoteEngine,
    images: ImageSet,
    positions: Sequence[int],
    settings: CertifySettings,
    *,
    dataset: Dataset | None = None,
    skipped: Sequence[int] = (),
) -> dict[str, Any]:
    """The config of a certification run: enough to tell what was certified, and to check rows."""
    members, variants = engine.member_names, engine.variants
    config: dict[str, Any] = {
        "kind": "certificates",
        **subject_config(
            smoothed.model,
            images,
            positions,
            name=smoothed.name,
            sigma=smoothed.sigma,
            member_names=members,
            dataset=dataset,
            skipped=skipped,
        ),
        "exit": engine.exits[smoothed.name],
        **settings.as_dict(),
    }
    if members is not None:
        config |= {"members": list(members), "ensemble": smoothed.name}
    weightings = {own.name: list(own.weights) for own in variants if own.weights is not None}
    if weightings:
        config["weightings"] = weightings
    exits = {
        own.name: own.policy.describe()
        for own in variants
        if own.weights is None and own.name != smoothed.name
    }
    if exits:
        config["exits"] = exits
    return config | {
        "device": engine.device.type,
        "forward_rows": engine.rows_asked,
        "precision": engine.precision,
        "noise": engine.noise.name,
    }
