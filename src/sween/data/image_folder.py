"""A folder of photos laid out like ImageNet: root/{train,val}/<class>/<image>."""

import dataclasses
import functools
import hashlib
import os
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path

import torch

from sween.data.dataset import Crop, Dataset, Split
from sween.data.decode_cache import (
    DecodedImages,
    cached_text,
    check_cache,
    decode_all_cached,
    decode_cached,
    decode_many,
    in_threads,
)
from sween.data.images import read_image
from sween.data.read_ahead import CHUNK, chunks, read_ahead
from sween.data.splits import held_out_count
from sween.errors import BadInput, DataError
from sween.paths import AnyPath

SUFFIXES = (".jpeg", ".jpg", ".png", ".webp")
DEFAULT_IMAGE_SIZE = 224
_DIGEST_BYTES = 32
_LAYOUT = "lay it out as train/<class>/*.jpeg and val/<class>/*.jpeg"


@dataclasses.dataclass(frozen=True)
class FilePixels:
    """Pixels decoded from files on demand, and cached on disk.

    Names, not paths: ImageNet has 1.3 million of them, and a `Path` takes several times the memory.
    Files whose `contents` were computed must not change while this object is in use.
    """

    folder: Path
    names: tuple[str, ...]
    image_size: int
    convert: bool = False
    _digests: dict[int, bytes] = dataclasses.field(default_factory=dict, repr=False, compare=False)
    """SHA-256 of the files whose `contents` were computed, by position."""

    def __len__(self) -> int:
        return len(self.names)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return (3, self.image_size, self.image_size)

    @property
    def dtype(self) -> torch.dtype:
        return torch.uint8

    def load(self, positions: Sequence[int], *, remember: bool = False) -> torch.Tensor:
        def read(row: int) -> torch.Tensor:
            return self._kept(positions[row], remember=remember)

        return decode_many(len(positions), self.image_shape, read)

    def load_all(self) -> torch.Tensor:
        """Every image, decoded once and cached on disk."""
        return self._decoded().load_all()

    def _decoded(self) -> DecodedImages:
        return decode_all_cached(self._stamp(), len(self), self.image_shape, self._read)

    def _stamp(self) -> str:
        """SHA-256 that changes if any file does, found without reading them."""
        # Another folder may have files of the same names, sizes and even modification times, if
        # they were copied; the time of the last status change cannot be copied.
        hasher = hashlib.sha256(f"{self.fingerprint()} {self.folder.resolve()}\n".encode())
        for position, name in enumerate(self.names):
            try:
                status = (self.folder / name).stat()
            except OSError:
                self._read(position)  # raises an error that says why
                raise
            hasher.update(f"{status.st_mtime_ns} {status.st_ctime_ns}\n".encode())
        return hasher.hexdigest()

    @functools.cached_property
    def _opened(self) -> DecodedImages:
        """The decoded images, for one epoch after the other."""
        return self._decoded()

    def stream(
        self, groups: Iterable[Sequence[int]], crop: Crop | None = None
    ) -> Generator[torch.Tensor, None, None]:
        """From the decoded images in the cache; with `crop`, decoded from the files each time."""
        if crop is None:
            return read_ahead(self._opened.load, groups)

        def cropped(group: Sequence[int]) -> torch.Tensor:
            def read(row: int) -> torch.Tensor:
                return crop(group[row], self._photo(group[row]))

            return decode_many(len(group), self.image_shape, read)

        return read_ahead(cropped, groups)

    def unreadable(self, positions: Sequence[int], *, quiet: bool = True) -> dict[int, DataError]:
        """Those that cannot be decoded, in the order given; the others are cached.

        A file that an option would make readable, such as a grayscale image, raises instead.
        """
        found: dict[int, DataError] = {}

        def attempt(row: int) -> None:
            try:
                self._kept(positions[row])
            except DataError as error:
                if not error.unreadable:
                    raise
                found[positions[row]] = error

        in_threads(attempt, len(positions), quiet=quiet or len(positions) <= CHUNK)
        return {position: found[position] for position in positions if position in found}

    def contents(self, positions: Sequence[int] | None = None) -> str:
        """SHA-256 of the decoded pixels; from now on the files must not change."""
        hasher = hashlib.sha256()
        if positions is None:
            groups = chunks(0, len(self), torch.Size(self.image_shape).numel())
            for pixels in read_ahead(self._decoded().load, groups):
                hasher.update(pixels.flatten().numpy().data)
            return hasher.hexdigest()
        check_cache()
        ordered = sorted(positions)
        for start in range(0, len(ordered), CHUNK):
            part = ordered[start : start + CHUNK]
            hasher.update(f"{part}\n".encode())
            hasher.update(self.load(part, remember=True).flatten().numpy().data)
        return hasher.hexdigest()

    def photo_contents(self) -> str:
        """SHA-256 of the files, each of which is decoded once to see that it can be."""
        return cached_text(f"photos {self._stamp()}", self._check_photos)

    def _check_photos(self) -> str:
        digests = bytearray(_DIGEST_BYTES * len(self))

        def check(position: int) -> None:
            content = (self.folder / self.names[position]).read_bytes()
            self._photo(position, content)
            start = _DIGEST_BYTES * position
            digests[start : start + _DIGEST_BYTES] = hashlib.sha256(content).digest()

        in_threads(check, len(self), quiet=len(self) <= CHUNK)
        return hashlib.sha256(digests).hexdigest()

    def _kept(self, position: int, *, remember: bool = False) -> torch.Tensor:
        """An image from the cache, or decoded and added to it."""
        path = self.folder / self.names[position]
        try:
            content = path.read_bytes()
        except OSError:
            self._read(position)  # raises an error that says why
            raise
        digest = hashlib.sha256(content).digest()
        known = self._digests.get(position)
        if known not in (None, digest):
            raise DataError(
                path,
                expected="the same file as when the run began",
                got=f"SHA-256 {digest.hex()[:16]} instead of {(known or b'').hex()[:16]}",
                fix="restore it, or run the command again",
            )
        if remember:
            self._digests[position] = digest
        return decode_cached(
            f"{digest.hex()} {self.convert}",
            self.image_shape,
            lambda: self._read(position, content),
        )

    def _read(self, position: int, content: bytes | None = None) -> torch.Tensor:
        return self._photo(position, content, self.image_shape)

    def _photo(
        self,
        position: int,
        content: bytes | None = None,
        image_shape: tuple[int, int, int] | None = None,
    ) -> torch.Tensor:
        """A file at its full size, or at that of `image_shape`."""
        return read_image(
            self.folder / self.names[position],
            image_shape=image_shape,
            channels=3,
            convert=self.convert,
            resize=True,
            content=content,
        )

    def fingerprint(self) -> str:
        """SHA-256 of names, file sizes and how they are decoded; `contents` covers the pixels."""
        hasher = hashlib.sha256(f"{self.image_size} {self.convert}\n".encode())
        for name in self.names:
            try:
                size: int | None = (self.folder / name).stat().st_size
            except OSError:  # a dangling link, reported when that image is read
                size = None
            # A name that is no UTF-8 has surrogates.
            hasher.update(f"{name} {size}\n".encode(errors="surrogateescape"))
        return hasher.hexdigest()


def load_image_folder(
    root: AnyPath,
    *,
    image_size: int = DEFAULT_IMAGE_SIZE,
    convert: bool = False,
    test_only: bool = False,
) -> Dataset:
    """A data set of image files, listed now and decoded on demand.

    Every image is scaled so that its shortest side is `image_size`, then cropped at its centre.
    The last 4% of each class's training files by name, at most about 2,000 in total, are held out
    to solve the ensemble's weights; `val` is the test split, ordered by class and name. Without
    `train` there are only test images, which can be certified and attacked.

    Args:
        root: the folder with `val`, and `train` for the other splits.
        image_size: height and width in pixels.
        convert: convert palette, grayscale, CMYK and alpha images to RGB instead of refusing them.
        test_only: do not look at `train`.

    Raises:
        DataError: the layout is not as described; the message names the file or folder.
    """
    root = Path(root)
    if image_size < 1:
        raise BadInput("image_size", expected="1 or more", got=image_size, fix="use 224")
    # A folder with neither is the wrong one: the error then describes the whole layout.
    has_train = not test_only and ((root / "train").exists() or not (root / "val").exists())
    train_files = _list_classes(root / "train") if has_train else {}
    test_files = _list_classes(root / "val")
    differing = sorted(train_files.keys() ^ test_files.keys()) if has_train else []
    if differing:
        shown = [
            f"{name} only in {'train' if name in train_files else 'val'}" for name in differing
        ]
        raise DataError(
            root,
            expected="the same classes in train and val",
            got=", ".join([*shown[:5], *(["..."] if len(shown) > 5 else [])]),
            fix="add or remove these folders",
        )
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
        count = held_out_count(len(files), len(train_files))
        kept[name], held_out[name] = files[:-count], files[-count:]

    def split(name: str, folder: str, files: dict[str, list[str]]) -> Split:
        names = tuple(f"{label}/{file}" for label in files for file in files[label])
        counts = torch.tensor([len(files[label]) for label in files], dtype=torch.long)
        labels = torch.repeat_interleave(torch.arange(len(files)), counts)
        return Split(name, FilePixels(root / folder, names, image_size, convert), labels)

    return Dataset(
        name="image_folder",
        class_names=tuple(test_files),
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
                entry.path, expected="only class folders here", got="a file", fix="move it away"
            )
        classes[entry.name] = _list_images(folder / entry.name)
    if not classes:
        raise DataError(folder, expected="class folders", got="an empty folder", fix=_LAYOUT)
    return classes


def _list_images(folder: Path) -> list[str]:
    names = []
    for entry in _visible(folder):
        # A dangling link is an image that cannot be read, reported when it is read.
        is_file = entry.is_file() or not os.path.exists(entry.path)
        if not is_file or not entry.name.lower().endswith(SUFFIXES):
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
            folder, expected="a readable folder", got=error.strerror, fix="change its permissions"
        ) from error
    return sorted(visible, key=lambda entry: entry.name)
