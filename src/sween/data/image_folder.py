"""A folder of photos laid out like ImageNet: root/{train,val}/<class>/<image>."""

import dataclasses
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import torch

from sween.data.dataset import Dataset, Split
from sween.data.decoded import decoded_once
from sween.data.images import read_image
from sween.errors import BadInput, DataError

SUFFIXES = (".jpeg", ".jpg", ".png", ".webp")
DEFAULT_IMAGE_SIZE = 224
MOST_WEIGHT_IMAGES = 2000
"""As many as the paper uses on CIFAR-10; they are held in memory at once."""
_LAYOUT = "lay it out as train/<class>/*.jpeg and val/<class>/*.jpeg"


@dataclasses.dataclass(frozen=True)
class FilePixels:
    """Pixels decoded from files when asked for.

    Names, not paths: ImageNet has 1.3 million of them, and a `Path` takes several times the room.
    """

    folder: Path
    names: tuple[str, ...]
    image_size: int
    convert: bool = False

    def __len__(self) -> int:
        return len(self.names)

    def load(self, positions: Sequence[int]) -> torch.Tensor:
        pixels = torch.empty((len(positions), *self._shape), dtype=torch.uint8)
        for row, position in enumerate(positions):
            pixels[row] = self._read(position)
        return pixels

    def load_all(self) -> torch.Tensor:
        """Every image, decoded once and kept in the cache folder."""
        hasher = hashlib.sha256(self.fingerprint().encode())
        for name in self.names:
            hasher.update(str((self.folder / name).stat().st_mtime_ns).encode())
        return decoded_once(hasher.hexdigest(), len(self), self._shape, self._read)

    @property
    def _shape(self) -> tuple[int, int, int]:
        return (3, self.image_size, self.image_size)

    def _read(self, position: int) -> torch.Tensor:
        return read_image(
            self.folder / self.names[position],
            image_shape=self._shape,
            channels=3,
            convert=self.convert,
            resize=True,
        )

    def fingerprint(self) -> str:
        """SHA-256 of names, file sizes and how they are decoded."""
        hasher = hashlib.sha256(f"{self.image_size} {self.convert}\n".encode())
        for name in self.names:
            hasher.update(f"{name} {(self.folder / name).stat().st_size}\n".encode())
        return hasher.hexdigest()


def load_image_folder(
    root: Path,
    *,
    image_size: int = DEFAULT_IMAGE_SIZE,
    convert: bool = False,
    weights_fraction: float = 0.04,
) -> Dataset:
    """A data set of image files, listed now and decoded on demand.

    Every image is scaled so that its shortest side is `image_size`, then cropped at its centre.
    The last `weights_fraction` of each class's training files, in the order of their names and at
    most about `MOST_WEIGHT_IMAGES` in all, solve the ensemble's weights and do not train; `val` is
    the test split, ordered by class and name.

    Args:
        root: the folder with `train` and `val`.
        image_size: height and width in pixels.
        convert: convert palette, grayscale, CMYK and alpha images to RGB instead of refusing them.
        weights_fraction: in (0, 1); at least one image of each class goes to either split.

    Raises:
        BadInput: on an image_size or weights_fraction out of range.
        DataError: when the layout is not as described; the message names the file or folder.
    """
    root = Path(root)
    if image_size < 1:
        raise BadInput("image_size", expected="1 or more", got=image_size, fix="use 224")
    if not 0 < weights_fraction < 1:
        raise BadInput(
            "weights_fraction", expected="between 0 and 1", got=weights_fraction, fix="use 0.04"
        )
    train_files, test_files = _list_classes(root / "train"), _list_classes(root / "val")
    _check_same_classes(root, set(train_files), set(test_files))
    most_per_class = -(-MOST_WEIGHT_IMAGES // len(train_files))
    kept: dict[str, list[str]] = {}
    held_out: dict[str, list[str]] = {}
    for name, files in train_files.items():
        if len(files) < 2:
            raise DataError(
                root / "train" / name,
                expected="2 or more images: one trains, one solves the weights",
                got=len(files),
                fix="add images of this class",
            )
        count = min(max(1, round(len(files) * weights_fraction)), most_per_class, len(files) - 1)
        kept[name], held_out[name] = files[:-count], files[-count:]

    def split(name: str, folder: str, files: dict[str, list[str]]) -> Split:
        names = tuple(f"{label}/{file}" for label in files for file in files[label])
        counts = torch.tensor([len(files[label]) for label in files])
        labels = torch.repeat_interleave(torch.arange(len(files)), counts)
        return Split(name, FilePixels(root / folder, names, image_size, convert), labels)

    return Dataset(
        name="image_folder",
        class_names=tuple(train_files),
        image_shape=(3, image_size, image_size),
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        augmentation="crop-flip",
        train=split("train", "train", kept),
        weights=split("weights", "train", held_out),
        test=split("test", "val", test_files),
        crop_padding=image_size // 8,
        root=root,
        options={"image_size": image_size, "convert": convert},
    )


def _list_classes(folder: Path) -> dict[str, list[str]]:
    """Class name to its sorted file names, sorted by class; hidden files do not count."""
    if not folder.is_dir():
        got = "a file" if folder.exists() else "nothing there"
        raise DataError(folder, expected="a folder of class folders", got=got, fix=_LAYOUT)
    classes: dict[str, list[str]] = {}
    for entry in _visible(folder):
        if not entry.is_dir():
            raise DataError(
                entry.path,
                expected="only class folders here",
                got="a file",
                fix="move it into its class folder or away",
            )
        classes[entry.name] = _list_images(folder / entry.name)
    if not classes:
        raise DataError(folder, expected="class folders", got="an empty folder", fix=_LAYOUT)
    return classes


def _list_images(folder: Path) -> list[str]:
    names = []
    for entry in _visible(folder):
        if not entry.is_file() or not entry.name.lower().endswith(SUFFIXES):
            raise DataError(
                entry.path,
                expected=f"only {' '.join(SUFFIXES)} files here",
                got="a folder" if entry.is_dir() else "another file",
                fix="move it away or save it as one of these",
            )
        names.append(entry.name)
    if not names:
        raise DataError(folder, expected="images", got="none", fix="add some or remove the folder")
    return names


def _visible(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            visible = [entry for entry in entries if not entry.name.startswith(".")]
    except OSError as error:
        raise DataError(
            folder,
            expected="a readable folder",
            got=error.strerror,
            fix="change its permissions",
        ) from error
    return sorted(visible, key=lambda entry: entry.name)


def _check_same_classes(root: Path, train: set[str], test: set[str]) -> None:
    differing = [
        f"{name} only in {'train' if name in train else 'val'}" for name in sorted(train ^ test)
    ]
    if differing:
        shown = ", ".join(differing[:5]) + (", ..." if len(differing) > 5 else "")
        raise DataError(
            root,
            expected="the same classes in train and val",
            got=shown,
            fix="add or remove these folders",
        )
