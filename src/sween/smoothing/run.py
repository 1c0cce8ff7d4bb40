"""Certifying a data set's test images into a folder, row by row, resumable."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sween.data.dataset import Dataset
from sween.data.selection import format_indices
from sween.ensemble.early_exit import ExitPolicy
from sween.ensemble.folder import LoadedEnsemble
from sween.errors import BadInput, UnknownName
from sween.progress import track
from sween.records import Certificate, RowWriter, format_radius, read_rows, to_row
from sween.runs import start_run
from sween.smoothing.classifier import SmoothedClassifier
from sween.smoothing.decision import check_certify_arguments

SAMPLING = ("fixed",)
"""How samples are spent on an image."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CertifySettings:
    """What decides the rows of a certification run, given the model and the images."""

    n0: int = 100
    n: int = 100_000
    alpha: float = 0.001
    bound: str = "cohen"
    sampling: str = "fixed"
    exit: ExitPolicy = dataclasses.field(default_factory=ExitPolicy)
    members: bool = False
    seed: int = 0


def certify_images(
    loaded: LoadedEnsemble,
    dataset: Dataset,
    positions: Sequence[int],
    settings: CertifySettings,
    out: Path,
    *,
    batch_size: int = 1000,
    quiet: bool = False,
) -> list[Certificate]:
    """Certify test images with fixed-size sampling and append their rows to `out`.

    A folder of the same settings is taken up where it stopped: rows already there are kept, and the
    rest come out as they would have without the stop. Each certificate holds with probability
    1 - alpha on its own (see `SmoothedClassifier.certify`).

    Returns:
        The certificates computed by this call.
    """
    if settings.sampling not in SAMPLING:
        raise UnknownName("sampling", settings.sampling, SAMPLING)
    check_certify_arguments(
        n0=settings.n0,
        n=settings.n,
        alpha=settings.alpha,
        sigma=loaded.sigma,
        bound=settings.bound,
    )
    _check_fit(loaded, dataset)
    classifier = SmoothedClassifier(
        loaded.ensemble,
        sigma=loaded.sigma,
        num_classes=loaded.num_classes,
        exit=settings.exit,
        name=loaded.name,
        batch_size=batch_size,
        member_names=_member_names(loaded, settings),
    )
    start_run(out, run_config(loaded, positions, settings))
    path = out / "certificates.jsonl"
    known = {(row["model"], row["index"]) for row in read_rows(path)} if path.exists() else set()
    names = classifier.panel.names
    left = [index for index in positions if any((name, index) not in known for name in names)]
    per_image = settings.n0 + settings.n
    written: list[Certificate] = []
    together = max(1, batch_size // settings.n)
    with (
        RowWriter(path) as writer,
        track(f"certify {loaded.name}", len(left) * per_image, quiet=quiet) as advance,
    ):

        def on_progress(done: int) -> None:
            advance(done, _note(written, len(left)))

        for start in range(0, len(left), together):
            keys = left[start : start + together]
            groups = classifier.certify_panel(
                dataset.test.images(keys).to(classifier.device),
                keys,
                [int(dataset.test.labels[key]) for key in keys],
                n0=settings.n0,
                n=settings.n,
                alpha=settings.alpha,
                seed=settings.seed,
                bound=settings.bound,
                on_progress=on_progress,
            )
            for group in groups:
                fresh = [row for row in group if (row.model, row.index) not in known]
                writer.append([to_row(certificate) for certificate in fresh])
                written += fresh
    return written


def _note(written: Sequence[Certificate], images: int) -> str:
    if not written:
        return f"samples; 0/{images} images"
    last = written[-1]
    done = len({certificate.index for certificate in written})
    return f"samples; {done}/{images} images, last radius {format_radius(last.radius)}"


def _member_names(loaded: LoadedEnsemble, settings: CertifySettings) -> tuple[str, ...] | None:
    """A lone member is its own ensemble: certifying it twice would say nothing more."""
    several = len(loaded.member_names) > 1
    return loaded.member_names if settings.members and several else None


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


def run_config(
    loaded: LoadedEnsemble, positions: Sequence[int], settings: CertifySettings
) -> dict[str, Any]:
    """The config of a certification run: enough to tell what was certified, and to check rows."""
    members = _member_names(loaded, settings)
    config: dict[str, Any] = {
        "kind": "certificates",
        "dataset": loaded.dataset,
        "split": "test",
        "indices": format_indices(positions),
        "images": len(positions),
        "model": loaded.name,
        "fingerprint": loaded.fingerprint,
        "candidates": list(loaded.member_names),
        "weights": loaded.ensemble.weights.tolist(),
        "sigma": loaded.sigma,
        "n0": settings.n0,
        "n": settings.n,
        "alpha": settings.alpha,
        "bound": settings.bound,
        "sampling": settings.sampling,
        "exit": settings.exit.describe(),
        "seed": settings.seed,
    }
    if members is not None:
        config |= {"members": list(members), "ensemble": loaded.name}
    return config
