"""The data model: pixels, labelled splits and data sets."""

import dataclasses
import hashlib
import os
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, Self

import torch

from sween.data.read_ahead import read_ahead
from sween.errors import BadInput, DataError

AUGMENTATIONS = ("none", "crop-flip", "resized-crop-flip")

MEMORY_VARIABLE = "SWEEN_STREAM_ABOVE"
"""Environment variable that overrides the size from which images are not held in memory."""

_STREAM_ABOVE = 4 * 10**9

Crop = Callable[[int, torch.Tensor], torch.Tensor]
"""Makes a training image of the shape of all others from the photo (C, h, w) at a position."""


def stream_above() -> int:
    """The most bytes of pixels that are held in memory at once; $SWEEN_STREAM_ABOVE, or 4 GB."""
    named = os.environ.get(MEMORY_VARIABLE, str(_STREAM_ABOVE))
    if not named.isdecimal():
        raise BadInput(MEMORY_VARIABLE, expected="a number of bytes", got=named, fix="unset it")
    return int(named)


class Pixels(Protocol):
    """Where pixels come from: memory, image files, or a torch data set that is read on demand.

    All of them are uint8, or all are float32 in [0, 1].
    """

    def __len__(self) -> int: ...

    @property
    def image_shape(self) -> tuple[int, int, int]: ...

    def load(self, positions: Sequence[int]) -> torch.Tensor:
        """The images at these positions, of shape (len(positions), C, H, W)."""
        ...

    @property
    def dtype(self) -> torch.dtype: ...

    def load_all(self) -> torch.Tensor:
        """Every image, as `load` gives them; image files are decoded once and cached."""
        ...

    def stream(
        self, groups: Iterable[Sequence[int]], crop: Crop | None = None
    ) -> Generator[torch.Tensor, None, None]:
        """The images of each group in turn, read ahead in the background, in bounded memory.

        With `crop` each image is what that makes of it; image files are then cropped at their full
        size, where `load` would scale them first.
        """
        ...

    def unreadable(self, positions: Sequence[int], *, quiet: bool = True) -> dict[int, DataError]:
        """The images at these positions that cannot be read, and why."""
        ...

    def fingerprint(self) -> str:
        """SHA-256 that identifies these pixels as far as possible without decoding images."""
        ...

    def contents(self, positions: Sequence[int] | None = None) -> str | None:
        """SHA-256 of the images at these positions, of every image when None.

        The order of the positions does not matter. None where `fingerprint` covers every pixel.
        """
        ...

    def photo_contents(self) -> str | None:
        """Like `contents()`, for use with `crop`: image files are covered at their full size."""
        ...


@dataclasses.dataclass(frozen=True)
class StoredPixels:
    """Pixels held in memory as one tensor (N, C, H, W), uint8 or float32 in [0, 1]."""

    tensor: torch.Tensor

    def __len__(self) -> int:
        return len(self.tensor)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        channels, height, width = self.tensor.shape[1:]
        return channels, height, width

    @property
    def dtype(self) -> torch.dtype:
        return self.tensor.dtype

    def load(self, positions: Sequence[int]) -> torch.Tensor:
        return self.tensor[torch.as_tensor(positions, dtype=torch.long)]

    def load_all(self) -> torch.Tensor:
        return self.tensor

    def stream(
        self, groups: Iterable[Sequence[int]], crop: Crop | None = None
    ) -> Generator[torch.Tensor, None, None]:
        return stream_cropped(self.load, groups, crop)

    def unreadable(self, positions: Sequence[int], *, quiet: bool = True) -> dict[int, DataError]:
        return {}

    def contents(self, positions: Sequence[int] | None = None) -> None:
        return None

    def photo_contents(self) -> None:
        return None

    def fingerprint(self) -> str:
        return hash_pixels(tuple(self.tensor.shape), [self.tensor])


def hash_pixels(shape: tuple[int, ...], parts: Iterable[torch.Tensor]) -> str:
    """SHA-256 of a tensor of this shape, given in parts along its first dimension."""
    hasher = hashlib.sha256(f"{shape}".encode())
    for part in parts:
        hasher.update(part.contiguous().flatten().view(torch.uint8).numpy().data)
    return hasher.hexdigest()


def stream_cropped(
    load: Callable[[Sequence[int]], torch.Tensor],
    groups: Iterable[Sequence[int]],
    crop: Crop | None,
    *,
    threads: int = 2,
) -> Generator[torch.Tensor, None, None]:
    """`Pixels.stream` by way of `load`, for images that are stored in their final shape."""

    def read(group: Sequence[int]) -> torch.Tensor:
        pixels = load(group)
        if crop is None:
            return pixels
        return torch.stack([crop(*one) for one in zip(group, pixels, strict=True)])

    return read_ahead(read, groups, threads=threads)


def to_unit_range(pixels: torch.Tensor, white: int) -> torch.Tensor:
    """Stored pixels as float32 in [0, 1]: uint8 is divided by `white`, floats are unchanged."""
    check_white(pixels, white)
    return scale_to_unit(pixels, white)


def check_white(pixels: torch.Tensor, white: int) -> None:
    """Refuse stored pixels above `white`. Of pixels on a GPU the host waits for the largest."""
    if pixels.is_floating_point() or white >= 255 or not pixels.numel():
        return
    if (largest := int(pixels.max())) > white:
        raise BadInput(
            "images",
            expected=f"pixels from 0 to {white}, the value of white",
            got=largest,
            fix="pass the white level of these images",
        )


def scale_to_unit(pixels: torch.Tensor, white: int) -> torch.Tensor:
    """`to_unit_range` of pixels that were checked before; nothing waits for a GPU."""
    return pixels if pixels.is_floating_point() else pixels.float() / white


@dataclasses.dataclass(frozen=True)
class ImageSet:
    """Images, with labels where they are known; position i is the image's index in every record.

    Attributes:
        name: for errors; `train`, `weights` or `test` for a split of a data set.
        pixels: where the images come from.
        labels: the true classes, int64 of shape (N,); None if unknown.
        white: the uint8 value that becomes 1.0: 255 for photos, 16 for the digits. Exact noise
            works on the grid of multiples of 1/white.

    Example:
        See `as_image_set`.
    """

    name: str
    pixels: Pixels
    labels: torch.Tensor | None
    white: int = 255

    def __len__(self) -> int:
        return len(self.pixels)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return self.pixels.image_shape

    @property
    def fits_in_memory(self) -> bool:
        """Whether the decoded pixels are few enough to be held in memory at once."""
        pixels = self.pixels
        image = torch.Size(pixels.image_shape).numel() * pixels.dtype.itemsize
        return len(pixels) * image <= stream_above()

    def held_in_memory(self) -> Self:
        """The same images, their pixels in memory if they fit there."""
        if not self.fits_in_memory:
            return self
        return dataclasses.replace(self, pixels=StoredPixels(self.pixels.load_all()))

    def images(self, positions: Sequence[int]) -> torch.Tensor:
        """Float32 NCHW in [0, 1]."""
        return to_unit_range(self.pixels.load(positions), self.white)

    def index(self, position: int) -> int:
        """The image's index in records."""
        return position

    def label(self, position: int) -> int | None:
        """The true class, if known."""
        return None if self.labels is None else int(self.labels[position])

    def all_images(self) -> torch.Tensor:
        """Every image at once; for sets that fit in memory."""
        return to_unit_range(self.pixels.load_all(), self.white)

    def label_fingerprint(self) -> str | None:
        """SHA-256 of the true classes, in their order; None if unknown."""
        if self.labels is None:
            return None
        return hashlib.sha256(self.labels.to(torch.int64).numpy().tobytes()).hexdigest()


@dataclasses.dataclass(frozen=True)
class Split(ImageSet):
    """The labelled images of a data set for one use: training, weight solving or testing.

    Example:
        See `as_dataset`.
    """

    labels: torch.Tensor

    def __len__(self) -> int:
        return len(self.labels)


@dataclasses.dataclass(frozen=True)
class Dataset:
    """A data set with three disjoint splits: train, weight-solving, test.

    Attributes:
        name: by which it is loaded, for records.
        class_names: in the order of the classes' numbers.
        image_shape: (C, H, W).
        mean: of each channel of the training images, in [0, 1].
        std: deviation of each channel.
        augmentation: `none`, `crop-flip` (pad by `crop_padding`, crop back, flip left-right) or
            `resized-crop-flip` (scale a random part of the photo to the image size, flip
            left-right).
        train: images to train on.
        weights: held-out images to solve the weights on.
        test: images to certify and to attack.
        crop_padding: pixels, of `crop-flip`.
        root: folder of its files; None if it has none.
        options: arguments of `load_dataset`, other than name and root, that change the pixels.

    Example:
        See `as_dataset`.
    """

    name: str
    class_names: tuple[str, ...]
    image_shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augmentation: str
    train: Split
    weights: Split
    test: Split
    crop_padding: int = 4
    root: Path | None = None
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def num_classes(self) -> int:
        """How many classes there are."""
        return len(self.class_names)

    def check_trainable(self) -> None:
        """Refuse a data set with one class, or with only test images, which can be certified."""
        if self.num_classes < 2:
            raise BadInput(
                f"{self.name if self.root is None else self.root}: classes",
                expected="2 or more to train on",
                got=", ".join(self.class_names) or "none",
                fix="add images of another class",
            )
        if not len(self.train) or not len(self.weights):
            raise BadInput(
                f"{self.name if self.root is None else self.root}: training images",
                expected="at least one to train on and one to solve the weights on",
                got="none",
                fix="add them, in an image folder as train/<class>/",
            )
