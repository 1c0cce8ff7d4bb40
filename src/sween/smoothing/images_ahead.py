"""Images for the engines, read in the background while votes on earlier ones are counted."""

import concurrent.futures
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self

import torch

from sween.data.dataset import ImageSet


class ImageSource(Protocol):
    """Images by position, with the index and true class for their records."""

    def images(self, positions: Sequence[int]) -> torch.Tensor:
        """(N, C, H, W) float32 in [0, 1]."""
        ...

    def index(self, position: int) -> int:
        """The index for records, which is also the key of the image's noise."""
        ...

    def label(self, position: int) -> int | None:
        """The true class, if known."""
        ...


class ImagesAhead:
    """A source that reads the next groups of images before they are asked for.

    Groups are asked for in order, by several engines at once: with one group ahead for each engine,
    none finds that its group was forgotten, and none waits in memory that is not needed soon. Other
    images, such as the rest of a group that starts again, are read when asked for.

    Only images of a data set are read ahead: a batch is in memory already, perhaps in that of a
    GPU, which no second thread may use while a CUDA graph is being captured.
    """

    def __init__(
        self, source: ImageSource, groups: Sequence[Sequence[int]], *, engines: int = 1
    ) -> None:
        self._source = source
        ahead = isinstance(source, ImageSet) and len(groups) > 1
        self._left = iter(groups if ahead else ())
        self._coming: dict[tuple[int, ...], concurrent.futures.Future[torch.Tensor]] = {}
        self._lock = threading.Lock()
        self._pool = concurrent.futures.ThreadPoolExecutor(1)
        self.index, self.label = source.index, source.label
        for _ in range(engines):
            self._read_next()

    def _read_next(self) -> None:
        group = next(self._left, None)
        if group is not None:
            self._coming[tuple(group)] = self._pool.submit(self._source.images, group)

    def images(self, positions: Sequence[int]) -> torch.Tensor:
        with self._lock:
            read = self._coming.pop(tuple(positions), None)
            if read is not None:
                self._read_next()
        return self._source.images(positions) if read is None else read.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pool.shutdown(cancel_futures=True)
