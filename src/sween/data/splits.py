"""Custom training and test images, as a data set with the three splits that sween needs."""

import bisect
import dataclasses
from collections.abc import Generator, Iterable, Sequence
from typing import Any

import torch
from torch.utils import data as torch_data

from sween.data.dataset import (
    AUGMENTATIONS,
    Crop,
    Dataset,
    ImageSet,
    Pixels,
    Split,
    StoredPixels,
    hash_pixels,
)
from sween.data.image_set import as_image_set
from sween.data.read_ahead import chunks
from sween.errors import BadInput, DataError, UnknownName

MOST_WEIGHT_IMAGES = 2000
"""As many as the paper uses on CIFAR-10; they are held in memory at once."""

WEIGHTS_FRACTION = 0.04
"""Of each class's training images."""


def held_out_count(images: int, num_classes: int) -> int:
    """How many of one class's training images, 2 or more, are held out to solve the weights."""
    most = -(-MOST_WEIGHT_IMAGES // num_classes)
    return min(max(1, round(images * WEIGHTS_FRACTION)), most, images - 1)


def as_dataset(
    train: object,
    test: object,
    *,
    name: str = "dataset",
    class_names: Sequence[str] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    augmentation: str = "none",
    crop_padding: int = 4,
    white: int = 255,
    test_only: bool = False,
) -> Dataset:
    """A data set of custom training and test images.

    The last 4% of each class's training images, at most about 2,000 in all, are held out to solve
    the ensemble's weights. Training images are read into memory if they fit there (see
    `stream_above`), others and test images on demand.

    Args:
        train: labelled images in any form that `as_image_set` takes.
        test: likewise, of the same shape.
        name: of the data set, for errors and records.
        class_names: one per class; by default the `classes` that `train` or `test` has, else the
            class indices.
        mean: per channel, for the normalisation inside registered networks; 0.5 by default.
        std: likewise; 0.25 by default.
        augmentation: of training images; see `Dataset`.
        crop_padding: pixels on each side.
        white: the uint8 value that becomes 1.0.
        test_only: leave the training images out, as certifying does.

    Raises:
        BadInput: images or labels cannot be used, or train and test do not fit together; see
            `as_image_set`.

    Example:
        >>> import torch
        >>> from sween.data import as_dataset
        >>> images, labels = torch.rand(100, 3, 8, 8), torch.arange(100) % 2
        >>> train, test = (images[:90], labels[:90]), (images[90:], labels[90:])
        >>> dataset = as_dataset(train, test, name="mine", class_names=["cat", "dog"])
        >>> len(dataset.train), len(dataset.weights), len(dataset.test)
        (86, 4, 10)
        >>> dataset.num_classes, dataset.image_shape
        (2, (3, 8, 8))
    """
    if augmentation not in AUGMENTATIONS:
        raise UnknownName("augmentation", augmentation, AUGMENTATIONS)
    names = tuple(str(each) for each in class_names or ())
    names = names or listed_classes(train) or listed_classes(test)
    tested = _labelled("test", as_image_set(test, name=f"{name} test", white=white))
    trained = None
    if not test_only or not names:
        trained = _labelled("train", as_image_set(train, name=f"{name} train", white=white))
        if trained.image_shape != tested.image_shape:
            raise BadInput(
                f"{name}: image shape",
                expected=f"{trained.image_shape} in test, as in train",
                got=tested.image_shape,
                fix="bring all images to one shape",
            )
    splits = [split for split in (trained, tested) if split is not None]
    most = max(int(split.labels.max()) for split in splits)
    names = names or tuple(str(label) for label in range(most + 1))
    for split in splits:
        _check_labels(name, split, names)
    kept, held_out = list[int](), list[int]()
    if trained is not None and not test_only:
        kept, held_out = _hold_out(name, trained, names)
    channels = tested.image_shape[0]
    return Dataset(
        name=name,
        class_names=names,
        image_shape=tested.image_shape,
        mean=tuple(mean or (0.5,) * channels),
        std=tuple(std or (0.25,) * channels),
        augmentation=augmentation,
        train=_part("train", trained, kept, tested.image_shape),
        weights=_part("weights", trained, held_out, tested.image_shape),
        test=tested,
        crop_padding=crop_padding,
    )


def listed_classes(source: Any) -> tuple[str, ...]:
    """The class names that a data set lists, as torchvision's do."""
    classes = getattr(source, "classes", None)
    if classes is None and isinstance(source, torch_data.Subset | torch_data.DataLoader):
        return listed_classes(source.dataset)
    if not isinstance(classes, list | tuple) or not all(isinstance(one, str) for one in classes):
        return ()
    return tuple(classes)


def _labelled(name: str, images: ImageSet) -> Split:
    if images.labels is None:
        raise BadInput(
            images.name,
            expected="a label for each image",
            got="images without labels",
            fix="give (image, class index) for each",
        )
    return Split(name, images.pixels, images.labels, images.white)


def _check_labels(name: str, split: Split, class_names: tuple[str, ...]) -> None:
    index = int(split.labels.argmax())
    if int(split.labels[index]) >= len(class_names):
        raise BadInput(
            f"{name} {split.name}[{index}]: label",
            expected=f"0 to {len(class_names) - 1}, as there are {len(class_names)} class names",
            got=int(split.labels[index]),
            fix="name every class",
        )


def _hold_out(name: str, split: Split, class_names: tuple[str, ...]) -> tuple[list[int], list[int]]:
    """The positions to train on, and those held out."""
    held_out = list[int]()
    for label, class_name in enumerate(class_names):
        positions = (split.labels == label).nonzero().flatten().tolist()
        if len(positions) < 2:
            raise BadInput(
                f"{name}: training images of class {class_name}",
                expected="2 or more: one trains, one solves the weights",
                got=len(positions),
                fix="add some, or leave the class out",
            )
        held_out += positions[-held_out_count(len(positions), len(class_names)) :]
    kept = sorted(set(range(len(split))) - set(held_out))
    return kept, sorted(held_out)


def _part(
    name: str, split: Split | None, positions: Sequence[int], shape: tuple[int, int, int]
) -> Split:
    """Some images of a split, in memory if they fit there."""
    if split is None or not positions:
        nothing = StoredPixels(torch.empty((0, *shape), dtype=torch.uint8))
        return Split(name, nothing, torch.empty(0, dtype=torch.int64))
    pixels = _Part(split.pixels, positions)
    part = Split(name, pixels, split.labels[list(positions)], split.white)
    return part.held_in_memory()


@dataclasses.dataclass(frozen=True)
class _Part:
    """Images at some positions of other pixels, read on demand; identified as if in memory."""

    whole: Pixels
    positions: Sequence[int]
    """Increasing."""

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return self.whole.image_shape

    @property
    def dtype(self) -> torch.dtype:
        return self.whole.dtype

    def _of(self, positions: Sequence[int]) -> list[int]:
        return [self.positions[position] for position in positions]

    def load(self, positions: Sequence[int]) -> torch.Tensor:
        return self.whole.load(self._of(positions))

    def load_all(self) -> torch.Tensor:
        return self.whole.load(self.positions)

    def stream(
        self, groups: Iterable[Sequence[int]], crop: Crop | None = None
    ) -> Generator[torch.Tensor, None, None]:
        def by_own_position(position: int, photo: torch.Tensor) -> torch.Tensor:
            assert crop is not None
            return crop(bisect.bisect_left(self.positions, position), photo)

        theirs = (self._of(group) for group in groups)
        return self.whole.stream(theirs, None if crop is None else by_own_position)

    def unreadable(self, positions: Sequence[int], *, quiet: bool = True) -> dict[int, DataError]:
        found = self.whole.unreadable(self._of(positions), quiet=quiet)
        return {own: found[whole] for own in positions if (whole := self.positions[own]) in found}

    def fingerprint(self) -> str:
        """As `StoredPixels.fingerprint`, by parts; it covers every pixel."""
        image_bytes = torch.Size(self.image_shape).numel() * self.dtype.itemsize
        parts = self.stream(chunks(0, len(self), image_bytes))
        return hash_pixels((len(self), *self.image_shape), parts)

    def contents(self, positions: Sequence[int] | None = None) -> None:
        return None

    def photo_contents(self) -> None:
        return None
