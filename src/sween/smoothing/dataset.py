"""Certifies a data set into a run folder: row by row, resumable, verifiable."""

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
from sween.errors import BadInput, ContractError, describe_type
from sween.models.source_code import source_digest
from sween.paths import AnyPath, as_folder
from sween.progress import track
from sween.records import Certificate, format_radius
from sween.runs.certification import CertificationRun, writing
from sween.runs.subject import UNLABELED
from sween.sampling import CertifySettings
from sween.sampling.settings import ALPHA, N, settings_of
from sween.smoothing import pipeline
from sween.smoothing.classifier import SmoothedClassifier
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
    skipped: Sequence[int] = (),
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
        skipped: images that were requested but left out because they cannot be read; recorded in
            the config.
        quiet: no progress display.

    Returns:
        The complete run. Without labels it has no accuracy and no report.
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
    """`certify_dataset` as a generator: yields each certificate of the model once it is written.

    When resuming, existing certificates come first. The model must not change until the last one;
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
    """`iter_certificates`; if `watched`, a model that changes between certificates is refused."""
    if not isinstance(smoothed, SmoothedClassifier):
        raise ContractError(
            "smoothed",
            expected="a SmoothedClassifier",
            got=describe_type(smoothed),
            fix="make one: SmoothedClassifier(model, sigma=..., num_classes=...)",
        )
    out = as_folder("out", out)
    if indices is not None:
        indices = list(indices) if isinstance(indices, Iterable) else [indices]
    images = _images_of(smoothed, data, name, indices, quiet)
    positions = _positions(indices, images)
    _check_fit(smoothed, data if isinstance(data, Dataset) else None, images)
    # Separate engines, since the classifier may be used meanwhile, by this or another thread.
    engines = [smoothed.twin(device).engine for device in devices or (None,)]
    _prepare(engines, images, positions, settings)
    dataset = data if isinstance(data, Dataset) else None
    config = run_config(
        smoothed, engines[0], images, positions, settings, dataset=dataset, skipped=skipped
    )
    labels = None if images.labels is None else images.labels.tolist()
    watched = watched or any(engine.shared for engine in engines)
    source = ImagesOfDataset(images)
    with writing(out, config, labels) as run:
        yield from [row for row in run.rows if row.model == smoothed.name]
        if watched:
            _refuse_changed(engines)
        left = run.left
        plans = pipeline.plan_all(engines[0], source, positions, settings) if left else {}
        if left:
            refuse_other_votes(run.rows, engines[0], source, positions, settings, plans)
        with _Progress(settings, smoothed.name, len(left), quiet) as progress:
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


def _positions(asked: Sequence[int] | None, images: ImageSet) -> list[int]:
    if asked is None:
        return list(range(len(images)))
    if not asked:
        raise BadInput("indices", expected="at least one image", got="none", fix="pass some")
    positions = check_indices([int(index) for index in asked], len(asked))
    if max(positions) >= len(images):
        raise BadInput(
            "indices",
            expected=f"positions below {len(images)}, the number of images",
            got=max(positions),
            fix="leave out those that do not exist",
        )
    return positions


def _prepare(
    engines: Sequence[VoteEngine],
    images: ImageSet,
    positions: Sequence[int],
    settings: CertifySettings,
) -> None:
    """Prepare every engine with the first image; all must use the same arithmetic."""
    first = images.images(positions[:1])
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
            engines[0].noise.check(images.images(positions[start : start + CHECKED_TOGETHER]))
    for engine in engines:
        pipeline.check_engine(engine, settings, numbers=math.prod(images.image_shape))
        engine.prepare(first[0])
        if engine.precision != engines[0].precision:
            raise BadInput(
                f"precision on {engine.device}",
                expected=f"{engines[0].precision}, as on {engines[0].device}",
                got=engine.precision,
                fix="turn compilation off, or use one device",
            )


class ImagesOfDataset:
    """The images of a data set as a `pipeline.ImageSource`."""

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
    """Progress by votes if their number is known, otherwise by images."""

    def __init__(self, settings: CertifySettings, name: str, images: int, quiet: bool) -> None:
        self.by_votes = settings.sampling == "fixed"
        self.done, self.images, self.last = 0, images, ""
        total = images * (settings.n0 + settings.n if self.by_votes else 1)
        self._track = track(f"certify {name}", total, quiet=quiet or not images)

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
            self._advance(1, f"images, last {self.last}")

    def _note(self) -> str:
        return f"votes; {self.done}/{self.images} images{self.last and ', '}{self.last}"


def _images_of(
    smoothed: SmoothedClassifier,
    data: object,
    name: str,
    indices: Sequence[int] | None,
    quiet: bool,
) -> ImageSet:
    """The images; 8-bit images are scaled as a loaded ensemble's training images were."""
    if isinstance(data, Dataset | ImageSet):
        return as_image_set(data)
    if name in DATASETS:
        raise BadInput(
            "name",
            expected="a name that is not one of sween's data sets",
            got=name,
            fix="choose another name, or pass what sween.load_dataset returns",
        )
    model = smoothed.model
    white = model.white if isinstance(model, LoadedEnsemble) else 255
    return as_image_set(data, name=name, white=white, indices=indices, quiet=quiet)


def _check_fit(smoothed: SmoothedClassifier, dataset: Dataset | None, images: ImageSet) -> None:
    """Refuse data with other classes or another shape than the classifier was trained on."""
    if images.labels is not None and len(images.labels):
        most = int(images.labels.max())
        if most >= smoothed.num_classes:
            raise BadInput(
                f"{images.name}[{int(images.labels.argmax())}]: label",
                expected=f"below num_classes = {smoothed.num_classes}",
                got=most,
                fix="pass the model's number of classes",
            )
    if dataset is not None and dataset.num_classes != smoothed.num_classes:
        raise BadInput(
            "num_classes",
            expected=f"{dataset.num_classes}, as {dataset.name} has",
            got=smoothed.num_classes,
            fix="certify a model trained on that data set",
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
    """SHA-256 of the class names and settings of all submodules and of all tensors.

    It does not cover code; see `source_digest`.
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
    """The model and the images: the first part of every run's config."""
    candidates, weights = [name], [1.0]
    if isinstance(model, LoadedEnsemble):
        candidates = list(model.member_names)
    elif isinstance(model, WeightedEnsemble):
        numbered = (f"member{number}" for number in range(1, len(model.members) + 1))
        candidates = list(member_names or numbered)
    if isinstance(model, WeightedEnsemble):
        weights = model.weights.tolist()
    contents = images.pixels.contents(positions)
    archs = [each.arch for each in model.manifests] if isinstance(model, LoadedEnsemble) else ()
    code = source_digest(model, archs)
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
        **({} if code is None else {"source_code": code}),
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
    """The config of a certification run: what was certified, and what is needed to check rows."""
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
