"""Which images of a data set to certify, and whether a classifier suits them."""

import dataclasses
from collections.abc import Iterable, Sequence

from sween.arguments import check_type
from sween.data import DATASETS, Dataset, as_image_set
from sween.data.dataset import ImageSet
from sween.data.validation import check_indices, whole_numbers
from sween.ensemble import LoadedEnsemble
from sween.errors import BadInput, ContractError
from sween.smoothing.classifier import SmoothedClassifier


@dataclasses.dataclass(frozen=True)
class ChosenImages:
    """Images of a data set to certify or to attack.

    Attributes:
        source: the images from which they were chosen.
        positions: of the chosen ones.
        dataset: to which they belong, if it is one of sween's.
        skipped: images that were requested but cannot be read.
    """

    source: ImageSet
    positions: Sequence[int]
    dataset: Dataset | None = None
    skipped: Sequence[int] = ()


def images_to_certify(
    smoothed: SmoothedClassifier,
    data: object,
    name: str,
    indices: Iterable[int] | int | None,
    *,
    skipped: Sequence[int],
    quiet: bool,
) -> ChosenImages:
    """The images of `data` at `indices`, all by default; refuses those unfit for the classifier."""
    check_type(
        "smoothed",
        smoothed,
        SmoothedClassifier,
        fix="make one: SmoothedClassifier(model, sigma=..., num_classes=...)",
        error=ContractError,
    )
    if indices is not None:
        own = list(indices) if isinstance(indices, Iterable) else [indices]
        indices = whole_numbers("indices", own).tolist() if own else []
    dataset = data if isinstance(data, Dataset) else None
    if isinstance(data, Dataset | ImageSet):
        images = as_image_set(data)
    elif name in DATASETS:
        raise BadInput(
            "name",
            expected="a name that is not one of sween's data sets",
            got=name,
            fix="choose another name, or pass what sween.load_dataset returns",
        )
    else:
        images = as_image_set(data, name=name, indices=indices, quiet=quiet)
    positions = _positions(indices, len(images))
    _check_fit(smoothed, dataset, images)
    return ChosenImages(images, positions, dataset, skipped)


def _positions(asked: Sequence[int] | None, size: int) -> list[int]:
    if asked is None:
        return list(range(size))
    if not asked:
        raise BadInput("indices", expected="at least one image", got="none", fix="pass some")
    positions = check_indices(asked, len(asked))
    if max(positions) >= size:
        raise BadInput(
            "indices",
            expected=f"positions below {size}, the number of images",
            got=max(positions),
            fix="leave out those that do not exist",
        )
    return positions


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
