"""What every data set looks like to the rest of sween."""

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from sween.errors import BadInput, DataError


class Pixels(Protocol):
    """Where a split's pixels come from: memory, or files decoded when asked for."""

    def __len__(self) -> int: ...

    def load(self, positions: Sequence[int]) -> torch.Tensor:
        """The images at these positions, uint8 of shape (len(positions), C, H, W)."""
        ...

    def load_all(self) -> torch.Tensor:
        """Every image, as `load` gives them; files are decoded once and kept for the next time."""
        ...

    def unreadable(self, positions: Sequence[int], *, quiet: bool = True) -> dict[int, DataError]:
        """Those of the images at these positions that cannot be decoded, and why."""
        ...

    def fingerprint(self) -> str:
        """What tells these pixels from others, without decoding files."""
        ...

    def contents(self, positions: Sequence[int] | None = None) -> str | None:
        """SHA-256 of the images at these positions, of every image when None.

        The order of the positions does not matter. None where `fingerprint` covers every pixel.
        """
        ...


@dataclasses.dataclass(frozen=True)
class StoredPixels:
    """Pixels held in memory as one uint8 tensor (N, C, H, W)."""

    tensor: torch.Tensor

    def __len__(self) -> int:
        return len(self.tensor)

    def load(self, positions: Sequence[int]) -> torch.Tensor:
        return self.tensor[torch.as_tensor(positions, dtype=torch.long)]

    def load_all(self) -> torch.Tensor:
        return self.tensor

    def unreadable(self, positions: Sequence[int], *, quiet: bool = True) -> dict[int, DataError]:
        return {}

    def contents(self, positions: Sequence[int] | None = None) -> None:
        return None

    def fingerprint(self) -> str:
        """SHA-256 of shape and bytes."""
        content = self.tensor.contiguous().numpy().tobytes()
        return hashlib.sha256(f"{tuple(self.tensor.shape)}".encode() + content).hexdigest()


@dataclasses.dataclass(frozen=True)
class Split:
    """Images and labels for one use; position i is the image's index in every record.

    `white` is the pixel value that becomes 1.0: 255 for photos, 16 for the digits.
    """

    name: str
    pixels: Pixels
    labels: torch.Tensor
    white: int = 255

    def __len__(self) -> int:
        return len(self.labels)

    def images(self, positions: Sequence[int]) -> torch.Tensor:
        """Float32 NCHW in [0, 1]."""
        return self.pixels.load(positions).float() / self.white

    def all_images(self) -> torch.Tensor:
        """Every image of the split at once; for splits that fit in memory."""
        return self.pixels.load_all().float() / self.white

    def label_fingerprint(self) -> str:
        """SHA-256 of the true classes, in their order."""
        return hashlib.sha256(self.labels.to(torch.int64).numpy().tobytes()).hexdigest()


@dataclasses.dataclass(frozen=True)
class Dataset:
    """A data set with three disjoint splits: train, weight-solving, test."""

    name: str
    class_names: tuple[str, ...]
    image_shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augmentation: str
    """`none` or `crop-flip` (pad by `crop_padding`, crop back, flip left-right)."""
    train: Split
    weights: Split
    test: Split
    crop_padding: int = 4
    root: Path | None = None
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """What `load_dataset` was told beside its name and root, where that changes the pixels."""

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    def check_trainable(self) -> None:
        """Refuse a data set of test images alone, which can only be certified.

        Raises:
            BadInput: it has no images to train on or to solve weights on.
        """
        if not len(self.train) or not len(self.weights):
            raise BadInput(
                f"{self.name if self.root is None else self.root}: training images",
                expected="some, to train on and to solve the weights on",
                got="none",
                fix="add them, in a folder of images as train/<class>/; certifying needs none",
            )
