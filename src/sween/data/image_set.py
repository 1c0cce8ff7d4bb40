"""Images and labels in the forms that torch users have, converted to an `ImageSet`.

A torch `Dataset` is read image by image on demand, so one that decodes files may be larger than
memory; the worker processes of a `DataLoader` over it read its items here too. A certificate is
about exact pixel values: images that differ when they are read again, as with random augmentation,
are refused, and so is a shuffled order.
"""

import dataclasses
import hashlib
import threading
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch.utils import data as torch_data

from sween.data.conversion import as_pixels
from sween.data.dataset import Crop, Dataset, ImageSet, StoredPixels, stream_cropped
from sween.data.validation import type_and_shape, whole_numbers
from sween.errors import BadInput, DataError, describe_error, describe_type
from sween.progress import Advance, track

READ_TWICE = 8
"""Images that are read twice when a data set is first seen; every later read is checked too.
A random left-right flip escapes this many with probability 1/256."""

NO_LABEL = -1
"""Stands for a label that was not read."""

_CHUNK = 256

_FEW = 16
"""Items that are read sooner than worker processes would start."""

_SHUFFLING = (
    torch_data.RandomSampler,
    torch_data.SubsetRandomSampler,
    torch_data.WeightedRandomSampler,
    torch_data.DistributedSampler,
)


def as_image_set(
    source: object,
    *,
    name: str = "dataset",
    white: int = 255,
    indices: Iterable[int] | None = None,
    quiet: bool = False,
) -> ImageSet:
    """Images, with labels if there are any, from any form that is common in torch.

    Args:
        source: one of

            - a pair `(images, labels)`: a tensor or array (N, C, H, W), uint8 or floats in [0, 1],
              and N whole numbers, or None;
            - a tensor or array of images alone;
            - a map-style torch `Dataset`, or any sequence, whose items are `(image, label)` or an
              image: a tensor, array or Pillow image, all of one shape and type;
            - a `DataLoader` over one, which does not shuffle; items are read by as many worker
              processes as its `num_workers`;
            - a sween `Dataset`, whose test split is taken, or an `ImageSet`, which is returned.
        name: for errors: `dataset[17]` is image 17.
        white: the uint8 value that becomes 1.0.
        indices: the images that will be used, all by default: where labels must be read item by
            item, no others are read.
        quiet: no progress display.

    Returns:
        The images in their order. uint8 pixels stay uint8. Tensors, arrays and a `TensorDataset`
        are used in place; anything else is read on demand. Labels come from its `targets` if it has
        them, otherwise each item is read once.

    Raises:
        BadInput: it is none of these, shuffles, gives different pixels when read again, or an image
            or label is wrong; the message names its index.

    Example:
        >>> import torch
        >>> from sween.data import as_image_set
        >>> pixels = torch.randint(256, (5, 3, 8, 8), dtype=torch.uint8)
        >>> found = as_image_set((pixels, [0, 1, 0, 1, 1]))
        >>> len(found), found.label(1), found.images([0]).dtype
        (5, 1, torch.float32)
    """
    if isinstance(source, ImageSet):
        return source
    if isinstance(source, Dataset):
        return source.test
    loader = source if isinstance(source, torch_data.DataLoader) else None
    if loader is not None:
        source = _without_loader(loader, name)
    if type(source) is torch_data.TensorDataset and len(source.tensors) <= 2:
        source = (*source.tensors, None)[:2]
    if isinstance(source, torch.Tensor | np.ndarray):
        source = (source, None)
    if isinstance(source, tuple) and len(source) == 2:
        return _from_pair(*source, name, white)
    pixels = DatasetPixels(source, name, quiet=quiet, loader=loader)
    return ImageSet(name, pixels, pixels.labels(indices), white)


def _from_pair(images: Any, labels: Any, name: str, white: int) -> ImageSet:
    pixels = as_pixels(images, what=f"{name}: images").detach().cpu()
    if pixels.ndim != 4:
        raise BadInput(
            f"{name}: images",
            expected="a batch (N, C, H, W)",
            got=f"shape {tuple(pixels.shape)}",
            fix="add the missing dimension: [None] for one image, [:, None] for one channel",
        )
    known = None if labels is None else _as_labels(labels, len(pixels), name)
    return ImageSet(name, StoredPixels(pixels), known, white)


def _as_labels(labels: Any, count: int, name: str) -> torch.Tensor:
    tensor = whole_numbers(f"{name}: labels", labels)
    if len(tensor) != count:
        raise BadInput(
            f"{name}: labels",
            expected=f"{count} whole numbers, one per image",
            got=type_and_shape(tensor),
            fix="pass the class index of each image",
        )
    if count and int(tensor.min()) < 0:
        raise _wrong_label(name, int(tensor.argmin()), int(tensor.min()))
    return tensor


def _wrong_label(name: str, index: int, label: object) -> BadInput:
    return BadInput(
        f"{name}[{index}]: label",
        expected="a class index, 0 or more",
        got=repr(label),
        fix="give (image, class index) for each image, or images alone",
    )


class DatasetPixels:
    """Pixels of a map-style data set, read on demand; an image must be the same at every read.

    Items are read by the worker processes of `loader`, if it has any.
    """

    def __init__(
        self,
        items: Any,
        name: str,
        *,
        quiet: bool = False,
        loader: torch_data.DataLoader[Any] | None = None,
    ) -> None:
        sized = hasattr(items, "__len__") and hasattr(items, "__getitem__")
        if not sized or isinstance(items, torch_data.IterableDataset | str | bytes | dict):
            raise BadInput(
                name,
                expected="a map-style torch Dataset, a DataLoader or (images, labels)",
                got=describe_type(items),
                fix="give images that can be read by their index",
            )
        if not len(items):
            raise BadInput(name, expected="at least one image", got="none", fix="check its files")
        self.items, self.name, self.quiet = items, name, quiet
        self.loader = loader if loader is not None and loader.num_workers else None
        self._listed = _listed_labels(items)
        self._digests: dict[int, bytes] = {}
        self._lock = threading.Lock()  # one thread per GPU reads, and items may not be thread-safe
        self._first: tuple[int, torch.Tensor] | None = None
        self._read_some_twice()

    def __len__(self) -> int:
        return len(self.items)

    @property
    def _like(self) -> torch.Tensor:
        """The image whose shape and type all others must have."""
        assert self._first is not None  # __init__ reads some images
        return self._first[1]

    @property
    def image_shape(self) -> tuple[int, int, int]:
        channels, height, width = self._like.shape
        return channels, height, width

    def _read_some_twice(self) -> None:
        last, steps = len(self) - 1, READ_TWICE - 1
        some = sorted({step * last // steps for step in range(READ_TWICE)})
        unreadable = self.unreadable(some)  # reported when that image is read
        if self._first is None:
            raise unreadable[some[0]]
        for position in some:
            if position not in unreadable:
                self.read(position)

    @property
    def dtype(self) -> torch.dtype:
        return self._like.dtype

    def load(self, positions: Sequence[int]) -> torch.Tensor:
        pixels = torch.empty((len(positions), *self.image_shape), dtype=self.dtype)
        with self._track(len(positions)) as advance:
            for row, (image, _) in enumerate(self._read_all(positions)):
                pixels[row] = image
                advance(1, "")
        return pixels

    def load_all(self) -> torch.Tensor:
        return self.load(range(len(self)))

    def stream(
        self, groups: Iterable[Sequence[int]], crop: Crop | None = None
    ) -> Generator[torch.Tensor, None, None]:
        if self.loader is not None:
            groups = list(groups)  # the worker processes are started once, for all of them, and now
            positions = [position for group in groups for position in group]
            items = zip(positions, self._items(positions), strict=True)

            def load(group: Sequence[int]) -> torch.Tensor:
                return torch.stack([self._check(*next(items))[0] for _ in group])

        else:

            def load(group: Sequence[int]) -> torch.Tensor:
                return torch.stack([image for image, _ in self._read_all(group)])

        return stream_cropped(load, groups, crop, threads=1)

    def _track(self, count: int, quiet: bool = False) -> AbstractContextManager[Advance]:
        return track("read images", count, quiet=quiet or self.quiet or count <= _CHUNK)

    def unreadable(self, positions: Sequence[int], *, quiet: bool = True) -> dict[int, DataError]:
        found: dict[int, DataError] = {}
        with self._track(len(positions), quiet) as advance:
            for position, item in zip(positions, self._items(positions), strict=True):
                try:
                    self._check(position, item)
                except DataError as error:
                    found[position] = error
                advance(1, "")
        return found

    def fingerprint(self) -> str:
        """SHA-256 of number, shape and type; `contents` covers the pixels."""
        about = (len(self), self.image_shape, str(self._like.dtype))
        return hashlib.sha256(repr(about).encode()).hexdigest()

    def contents(self, positions: Sequence[int] | None = None) -> str:
        hasher = hashlib.sha256()
        ordered = range(len(self)) if positions is None else sorted(positions)
        for position, (image, _) in zip(ordered, self._read_all(ordered), strict=True):
            hasher.update(f"{position}\n".encode())
            hasher.update(_raw_bytes(image))
        return hasher.hexdigest()

    def photo_contents(self) -> str:
        return self.contents()

    def labels(self, indices: Iterable[int] | None = None) -> torch.Tensor | None:
        """The labels, or None where items are images alone.

        Unless the data set lists its labels, only those of the images at `indices` are read. The
        others are `NO_LABEL`: like `contents`, the fingerprint then covers the images in use.
        """
        if self._listed is not None:
            return self._listed
        if self._first is not None and self.read(self._first[0])[1] is None:
            return None
        labels = torch.full((len(self),), NO_LABEL, dtype=torch.int64)
        wanted = [int(index) for index in (range(len(self)) if indices is None else indices)]
        wanted = [index for index in wanted if 0 <= index < len(self)]  # the caller refuses others
        with self._track(len(wanted)) as advance:
            for position, (_, label) in zip(wanted, self._read_all(wanted), strict=True):
                if label is None:
                    raise _wrong_label(self.name, position, label)
                labels[position] = label
                advance(1, "")
        return labels

    def read(self, position: int) -> tuple[torch.Tensor, int | None]:
        """The image (C, H, W) and the label at a position, checked and the same as before."""
        return self._check(position, next(self._items([position])))

    def _read_all(self, positions: Sequence[int]) -> Iterator[tuple[torch.Tensor, int | None]]:
        for position, item in zip(positions, self._items(positions), strict=True):
            yield self._check(int(position), item)

    def _items(self, positions: Sequence[int]) -> Iterator["_Item"]:
        """The items at these positions, read by worker processes if there are any."""
        items, order = _Items(self.items), [int(position) for position in positions]
        # A process that is forked from the thread of a pool tries to join itself when it ends.
        in_main = threading.current_thread() is threading.main_thread()
        if self.loader is None or not in_main or len(order) < _FEW:
            return self._items_here(items, order)
        loader = torch_data.DataLoader(
            items,
            batch_size=None,
            sampler=order,
            num_workers=self.loader.num_workers,
            prefetch_factor=self.loader.prefetch_factor,
            multiprocessing_context=self.loader.multiprocessing_context,
            worker_init_fn=self.loader.worker_init_fn,
            collate_fn=_unchanged,
            generator=torch.Generator(),  # not the caller's random numbers
        )
        return iter(loader)

    def _items_here(self, items: "_Items", order: Sequence[int]) -> Iterator["_Item"]:
        for position in order:
            with self._lock:
                item = items[position]
            yield item

    def _check(self, position: int, item: "_Item") -> tuple[torch.Tensor, int | None]:
        """The image and label of an item, checked and the same as before."""
        if item.error is not None:
            raise DataError(
                f"{self.name}[{position}]",
                expected="an image that can be read",
                got=item.error,
                fix="read that item on its own to see why",
                unreadable=True,
            )
        image, label = self._convert(position, item.content)
        self._first = self._first or (position, image)
        where = f"{self.name}[{position}]"
        if image.shape != self._like.shape or image.dtype != self._like.dtype:
            raise BadInput(
                where,
                expected=f"{type_and_shape(self._like)}, as {self.name}[{self._first[0]}] has",
                got=type_and_shape(image),
                fix="bring all images to one shape and type",
            )
        listed = None if self._listed is None else int(self._listed[position])
        if label is not None and listed is not None and label != listed:
            raise BadInput(
                f"{where}: label",
                expected=f"{listed}, as its `targets` say",
                got=label,
                fix="correct one of them",
            )
        hasher = hashlib.blake2b(f"{label}\n".encode(), digest_size=16)
        hasher.update(_raw_bytes(image))
        digest = hasher.digest()
        known = self._digests.setdefault(position, digest)
        if known != digest:
            raise BadInput(
                where,
                expected="the same image and label each time it is read",
                got=f"digest {digest.hex()[:8]} after {known.hex()[:8]}",
                fix="remove random augmentation, or pass the images as tensors",
            )
        return image, label

    def _convert(self, position: int, item: Any) -> tuple[torch.Tensor, int | None]:
        where, label = f"{self.name}[{position}]", None
        if isinstance(item, tuple | list) and len(item) == 2:
            item, label = item
            if isinstance(label, torch.Tensor | np.ndarray | np.generic):
                label = label.item() if np.asarray(label).size == 1 else label
            if isinstance(label, bool) or not isinstance(label, int) or label < 0:
                raise _wrong_label(self.name, position, label)
        elif isinstance(item, tuple | list | dict):
            raise BadInput(
                where,
                expected="(image, label), or an image alone",
                got=f"{describe_type(item)} of {len(item)}",
                fix="wrap the data set in one that gives (image, label)",
            )
        image = as_pixels(item, what=where).detach().cpu()
        if image.ndim != 3:
            raise BadInput(
                where,
                expected="one image (C, H, W)",
                got=f"shape {tuple(image.shape)}",
                fix="give one image per item",
            )
        return image, label


@dataclasses.dataclass(frozen=True)
class _Item:
    """What a data set gives at a position, or why it does not."""

    content: Any = None
    error: str | None = None


class _Items(torch_data.Dataset[_Item]):
    """Items with their errors, which worker processes would otherwise turn into tracebacks."""

    def __init__(self, items: Any) -> None:
        self.items = items

    def __getitem__(self, position: int) -> _Item:
        try:
            return _Item(self.items[position])
        except Exception as error:  # a custom data set may raise anything
            return _Item(error=describe_error(error))


def _unchanged(item: Any) -> Any:
    return item


def _raw_bytes(image: torch.Tensor) -> memoryview:
    return image.contiguous().flatten().view(torch.uint8).numpy().data


def _listed_labels(items: Any) -> torch.Tensor | None:
    """The labels that a data set lists, as torchvision's do; None where they must be read."""
    if isinstance(items, torch_data.Subset):
        whole = _listed_labels(items.dataset)
        return None if whole is None else whole[torch.as_tensor(items.indices, dtype=torch.long)]
    listed = getattr(items, "targets", None)
    if listed is None or getattr(items, "target_transform", None) is not None:
        return None
    try:
        return _as_labels(listed, len(items), "targets")
    except BadInput:
        return None


class _Collated:
    """Each item as a loader's own collate function makes it from a batch of one."""

    def __init__(self, items: Any, collate: Any) -> None:
        self.items, self.collate = items, collate

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, position: int) -> Any:
        batch = self.collate([self.items[position]])
        return tuple(part[0] for part in batch) if isinstance(batch, tuple | list) else batch[0]


def _without_loader(loader: torch_data.DataLoader[Any], name: str) -> Any:
    """The data set behind a loader, in the loader's order."""
    items: Any = loader.dataset
    if isinstance(items, torch_data.IterableDataset):
        return items  # refused by DatasetPixels
    sampler = getattr(loader.batch_sampler, "sampler", loader.sampler)
    if isinstance(sampler, _SHUFFLING) or _order(loader) != (order := _order(loader)):
        raise BadInput(
            name,
            expected="a DataLoader that reads the images in a fixed order",
            got=f"one with {describe_type(sampler)}",
            fix="use shuffle=False, or pass the Dataset itself",
        )
    if loader.collate_fn not in (torch_data.default_collate, torch_data.default_convert):
        items = _Collated(items, loader.collate_fn)
    return items if order == list(range(len(items))) else torch_data.Subset(items, order)


def _order(loader: torch_data.DataLoader[Any]) -> list[int]:
    if loader.batch_sampler is None:
        return list(loader.sampler)
    return [position for batch in loader.batch_sampler for position in batch]
