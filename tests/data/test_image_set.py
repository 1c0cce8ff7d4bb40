"""What a torch user has, as images and labels: the same pixels in every form, or one clear line."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    Subset,
    TensorDataset,
)

from sween.data import as_image_set, load_dataset
from sween.data.dataset import StoredPixels
from sween.data.image_set import NO_LABEL, DatasetPixels
from sween.errors import BadInput, DataError

PIXELS = torch.randint(0, 256, (12, 3, 5, 4), generator=torch.Generator().manual_seed(0)).byte()
LABELS = torch.arange(12) % 4
WANTED = PIXELS.float() / 255


class Listed(Dataset[Any]):
    """Items made on demand, as a folder of files makes them."""

    def __init__(self, make: Callable[[int], Any], count: int = 12, **attributes: Any) -> None:
        self.make, self.count, self.asked = make, count, list[int]()
        self.__dict__ |= attributes

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        self.asked.append(index)
        return self.make(index)


def pair(index: int) -> Any:
    return PIXELS[index], int(LABELS[index])


def picture(index: int) -> Image.Image:
    return Image.fromarray(PIXELS[index].permute(1, 2, 0).numpy())


def collate(batch: Any) -> Any:
    return torch.stack([image.float() / 255 for image, _ in batch]), [label for _, label in batch]


SOURCES: dict[str, Any] = {
    "uint8 tensors": lambda: (PIXELS, LABELS),
    "float tensors": lambda: (WANTED, LABELS.int()),
    "arrays": lambda: (PIXELS.permute(0, 2, 3, 1).numpy(), LABELS.tolist()),
    "TensorDataset": lambda: TensorDataset(WANTED, LABELS),
    "Dataset of uint8": lambda: Listed(pair),
    "Dataset of floats": lambda: Listed(lambda i: (WANTED[i].double(), LABELS[i])),
    "Dataset of pictures": lambda: Listed(lambda i: (picture(i), np.int32(LABELS[i]))),
    "list of arrays": lambda: [(picture(i), np.array([LABELS[i]])) for i in range(12)],
    "ConcatDataset": lambda: ConcatDataset(
        [Subset(Listed(pair), range(5)), Subset(Listed(pair), range(5, 12))]
    ),
    "DataLoader": lambda: DataLoader(Listed(pair), batch_size=5),
    "DataLoader of a TensorDataset": lambda: DataLoader(TensorDataset(PIXELS, LABELS)),
    "DataLoader with its collate_fn": lambda: DataLoader(Listed(pair), 5, collate_fn=collate),
    "DataLoader without batches": lambda: DataLoader(Listed(pair), batch_size=None),
}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES.keys())
def test_every_form_gives_the_same_images_and_labels(source: Callable[[], Any]) -> None:
    found = as_image_set(source())
    assert (len(found), found.image_shape, found.white) == (12, (3, 5, 4), 255)
    assert torch.equal(found.images([3, 0, 11]), WANTED[[3, 0, 11]])
    assert torch.equal(found.all_images(), WANTED)
    assert found.images([0]).dtype == torch.float32
    assert found.labels is not None
    assert torch.equal(found.labels, LABELS)
    assert found.labels.dtype == torch.int64
    assert found.label_fingerprint() == as_image_set((PIXELS, LABELS)).label_fingerprint()


@pytest.mark.parametrize(
    "source",
    [PIXELS, (PIXELS, None), TensorDataset(PIXELS), [picture(i) for i in range(12)]],
    ids=["tensor", "pair", "TensorDataset", "list"],
)
def test_images_alone_have_no_labels(source: Any) -> None:
    found = as_image_set(source)
    assert found.labels is None
    assert found.label_fingerprint() is None
    assert torch.equal(found.images([1]), WANTED[[1]])


def test_a_sween_data_set_is_its_test_split() -> None:
    digits = load_dataset("digits")
    assert as_image_set(digits) is digits.test
    assert as_image_set(digits.train) is digits.train


def test_eight_bit_pixels_stay_eight_bit() -> None:
    for source in ((PIXELS, LABELS), Listed(pair)):
        assert as_image_set(source).pixels.load_all().dtype == torch.uint8
    with pytest.raises(BadInput, match="from 0 to 16"):
        as_image_set((PIXELS, LABELS), white=16).images([0])
    scaled = as_image_set((PIXELS // 16, LABELS), white=16)
    assert scaled.images([0]).max() <= 1


def test_labels_that_are_listed_cost_no_reading_of_all_images() -> None:
    source = Listed(pair, targets=LABELS.tolist())
    chosen = Subset(source, [7, 3, 11, 0] * 20)
    found = as_image_set(chosen)
    assert found.labels is not None
    assert found.labels.tolist() == LABELS[[7, 3, 11, 0] * 20].tolist()
    assert len(source.asked) == 16
    found.pixels.fingerprint()
    found.pixels.contents([5, 6])
    found.images([5, 6])
    assert len(source.asked) == 20, "only what is needed is read"
    with pytest.raises(BadInput, match=r"dataset\[0\]: label: expected 3, as its `targets` say"):
        as_image_set(Listed(pair, targets=[3] * 12))
    changed = Listed(pair, targets=[3] * 12, target_transform=lambda label: label)
    assert torch.equal(torch.as_tensor(as_image_set(changed).labels), LABELS)


def test_a_loader_that_drops_or_picks_gives_what_it_gives() -> None:
    dropping = as_image_set(DataLoader(Listed(pair), batch_size=5, drop_last=True))
    assert len(dropping) == 10
    picking = as_image_set(DataLoader(Listed(pair), sampler=[4, 2]))
    assert torch.equal(picking.images([0, 1]), WANTED[[4, 2]])


def test_fingerprints_tell_pixels_and_labels_apart() -> None:
    other = PIXELS.clone()
    other[7, 0, 0, 0] ^= 1

    def lazily(pixels: torch.Tensor) -> Any:
        return as_image_set(Listed(lambda i: (pixels[i], 0))).pixels

    assert isinstance(lazily(PIXELS), DatasetPixels)
    for form in (lambda pixels: as_image_set((pixels, LABELS)).pixels, lazily):
        ours, theirs = form(PIXELS), form(other)
        assert _both(ours) == _both(form(PIXELS.clone()))
        assert _both(ours) != _both(theirs)
    assert lazily(PIXELS).contents([2, 5]) == lazily(other).contents([5, 2])
    assert lazily(PIXELS).contents([7]) != lazily(other).contents([7])
    alike = lazily(PIXELS[:1].expand_as(PIXELS))
    assert alike.contents([1, 2]) != alike.contents([1, 3])
    assert lazily(PIXELS).fingerprint() != lazily(PIXELS.float() / 255).fingerprint()
    assert StoredPixels(PIXELS).fingerprint() != StoredPixels(WANTED).fingerprint()
    relabelled = as_image_set((PIXELS, LABELS.flip(0)))
    assert relabelled.label_fingerprint() != as_image_set((PIXELS, LABELS)).label_fingerprint()


def _both(pixels: Any) -> tuple[str, str | None]:
    return pixels.fingerprint(), pixels.contents()


def test_only_labels_in_use_are_read(capsys: pytest.CaptureFixture[str]) -> None:
    def make(label: int) -> Any:
        return Listed(lambda i: (PIXELS[i % 12], label if i == 999 else i % 4), count=1000)

    source = make(3)
    found = as_image_set(source, indices=[5, 999, 10**6], quiet=True)
    assert len(source.asked) == 19
    assert found.labels is not None
    assert found.labels[[5, 999, 6]].tolist() == [1, 3, NO_LABEL]
    again, other = (as_image_set(make(label), indices=[999, 5], quiet=True) for label in (3, 2))
    assert found.label_fingerprint() == again.label_fingerprint() != other.label_fingerprint()
    everything = as_image_set(make(3), quiet=True)
    assert everything.label_fingerprint() != found.label_fingerprint()
    everything.all_images()
    assert capsys.readouterr().err == ""
    as_image_set(make(3))
    assert "read images 1000/1000" in capsys.readouterr().err


class Streamed(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([pair(0)])


class Turned(Sampler[int]):
    """A custom order, which starts one image later each time."""

    starts = itertools.count()

    def __iter__(self) -> Iterator[int]:
        start = next(self.starts)
        return iter([(start + place) % 12 for place in range(12)])


def altered(index: int, **changes: Any) -> Any:
    return lambda i: changes["item"] if i == index else pair(i)


@pytest.mark.parametrize(
    ("source", "words"),
    {
        "a generator": (iter([pair(0)]), "map-style torch Dataset"),
        "a stream": (Streamed(), "got a Streamed"),
        "a loader of a stream": (DataLoader(Streamed()), "Streamed"),
        "a path": ("photos", "got a str"),
        "nothing": ([], "at least one image"),
        "one image": ((PIXELS[0], [1]), r"a batch \(N, C, H, W\)"),
        "labels missing": ((PIXELS, LABELS[:5]), r"12 whole numbers.*\(5,\)"),
        "labels as floats": ((PIXELS, LABELS.float()), "float32"),
        "labels as words": ((PIXELS, ["cat"] * 12), "whole numbers"),
        "a negative label": ((PIXELS, LABELS - 1), r"dataset\[0\]: label.*-1"),
        "another scale": ((PIXELS.float(), LABELS), "divide by 255"),
        "a shuffled loader": (DataLoader(Listed(pair), shuffle=True), "shuffle=False"),
        "shuffled batches": (
            DataLoader(
                Listed(pair), batch_sampler=BatchSampler(RandomSampler(range(12)), 4, False)
            ),
            "RandomSampler",
        ),
        "a new order each time": (DataLoader(Listed(pair), sampler=Turned()), "one with a Turned"),
        "an item that is a dictionary": ([{"image": 1}] * 3, r"dataset\[0\].*a dict of 1"),
        "a batch as an item": ([(PIXELS, 1)], r"dataset\[0\].*one image"),
        "a word as a label": (Listed(altered(5, item=(PIXELS[5], "cat"))), r"\[5\]: label.*'cat'"),
        "a label left out": (Listed(altered(5, item=PIXELS[5])), r"\[5\]: label"),
        "another shape": (
            Listed(altered(5, item=(PIXELS[5, :, 1:], 1))),
            r"\[5\]: expected uint8 of shape \(3, 5, 4\), as dataset\[0\] has, got .*\(3, 4, 4\)",
        ),
        "another type": (Listed(altered(5, item=(WANTED[5], 1))), r"\[5\].*float32"),
        "values off [0, 1]": (
            Listed(lambda i: (WANTED[i] * (2 if i == 5 else 1), 1)),
            r"\[5\]: expected pixels in \[0, 1\]",
        ),
    }.values(),
)
def test_what_cannot_be_used_is_refused_by_its_index(source: Any, words: str) -> None:
    with pytest.raises(BadInput, match=words) as caught:
        as_image_set(source)
    assert "\n" not in str(caught.value)


def test_an_item_that_cannot_be_read_is_named_and_can_be_left_out() -> None:
    def broken(index: int) -> Any:
        if index in (0, 5):
            raise OSError("truncated")
        return pair(index)

    found = as_image_set(Listed(broken, targets=LABELS))
    assert list(found.pixels.unreadable(range(12))) == [0, 5]
    assert torch.equal(found.images([1]), WANTED[[1]])
    with pytest.raises(DataError, match=r"dataset\[5\].*OSError: truncated"):
        found.images([4, 5])
    with pytest.raises(DataError, match=r"dataset\[0\]"):
        as_image_set(Listed(broken, count=1))


def test_random_augmentation_is_refused() -> None:
    numbers = np.random.default_rng(0)
    with pytest.raises(BadInput, match="remove random augmentation"):
        as_image_set(Listed(lambda i: (PIXELS[i].roll(int(numbers.integers(4)), 2), 1)))


def test_an_image_that_changes_later_is_refused() -> None:
    pixels = PIXELS.clone()
    found = as_image_set(Listed(lambda i: (pixels[i], 1)))
    found.pixels.contents([2])
    pixels[2] ^= 1
    with pytest.raises(BadInput, match=r"dataset\[2\]: expected the same image"):
        found.images([1, 2])


def test_a_label_that_changes_is_refused() -> None:
    labels = itertools.count()
    with pytest.raises(BadInput, match=r"dataset\[0\]: expected the same image and label"):
        as_image_set(Listed(lambda i: (PIXELS[i], next(labels))))
