"""Images as people have them: converted where the meaning is certain, else refused in one line."""

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from sween.data import check_images
from sween.data.conversion import as_batch, is_single
from sween.errors import BadInput
from sween.smoothing import SmoothedClassifier
from tests.smoothing import small

from .conftest import Refuses

PIXELS = np.random.default_rng(0).integers(0, 256, (8, 6, 3), dtype=np.uint8)
WANTED = torch.from_numpy(PIXELS).permute(2, 0, 1).float() / 255


@pytest.mark.parametrize(
    "image",
    [
        WANTED,
        torch.from_numpy(PIXELS).permute(2, 0, 1),
        PIXELS,
        np.moveaxis(PIXELS, 2, 0),
        PIXELS.astype(np.float64) / 255,
        Image.fromarray(PIXELS),
        WANTED.double(),
    ],
    ids=["float32", "uint8", "HWC", "CHW", "float64 HWC", "Pillow", "float64"],
)
def test_one_image_in_any_plain_form(image: Any) -> None:
    batch = as_batch(image)
    assert batch.dtype == torch.float32
    assert torch.allclose(batch, WANTED[None], rtol=0, atol=1e-7)
    assert is_single(image)


def test_eight_bits_are_divided_by_255_exactly() -> None:
    every = np.arange(256, dtype=np.uint8).reshape(1, 16, 16)
    assert torch.equal(as_batch(every)[0], torch.arange(256).reshape(1, 16, 16) / 255)


def test_half_precision_keeps_its_values() -> None:
    image = torch.rand(2, 3, 4, 4).half()
    assert torch.equal(as_batch(image), image.float())


def test_batches_and_sequences() -> None:
    for images in (np.stack([PIXELS, PIXELS]), [PIXELS, WANTED], (Image.fromarray(PIXELS),) * 2):
        assert torch.equal(as_batch(images), torch.stack([WANTED, WANTED]))
        assert not is_single(images)
    grey = Image.fromarray(PIXELS[:, :, 0])
    assert as_batch(grey).shape == (1, 1, 8, 6)
    # Three channels first: whatever stands last is a width.
    assert as_batch(np.zeros((3, 5, 3), np.float32)).shape == (1, 3, 5, 3)


def test_a_tensor_whose_channels_seem_last_is_warned_about() -> None:
    """By its shape alone it may be meant, so it is not changed."""
    for pixels in (torch.from_numpy(PIXELS), torch.zeros(2, 28, 28, 1)):
        with pytest.warns(UserWarning, match="movedim"):
            assert as_batch(pixels).shape[-3:] == pixels.shape[-3:]
    for plain in (torch.zeros(64, 1, 1), torch.zeros(2, 4, 8, 3), torch.zeros(3, 9, 3)):
        assert as_batch(plain).shape[-3:] == plain.shape[-3:]  # without a warning


def test_an_array_that_must_not_be_written_to_is_copied() -> None:
    frozen = PIXELS.copy()
    frozen.setflags(write=False)
    assert torch.equal(as_batch(frozen)[0], WANTED)


@pytest.mark.parametrize(
    ("images", "parts"),
    [
        (torch.zeros(3, 8, 8, dtype=torch.int64), ("int64", "uint8")),
        (np.zeros((8, 8), np.uint8), ("(8, 8)", "C, H, W")),
        (np.zeros((8, 8, 3), np.complex64), ("complex64",)),
        (np.full((8, 8, 3), "a"), ("array of",)),
        (PIXELS.astype(np.float32), ("[0, 1]", "divide by 255")),
        (torch.full((3, 4, 4), 1.0000002), ("to 1.0000002;", "clamp")),
        (Image.fromarray(PIXELS).convert("RGBA"), ("RGBA", 'convert("RGB")')),
        ([WANTED, WANTED[:, :4]], ("(3, 4, 6)", "(3, 8, 6)", "one size")),
        ([WANTED, torch.zeros(3, 8, 8, dtype=torch.int32)], ("images[1]", "int32")),
        ([], ("empty",)),
        ("cat.png", ("got a str;", "PIL.Image.open")),
        (None, ("got None",)),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else type(value).__name__,
)
def test_ambiguous_images_are_refused(
    images: Any, parts: tuple[str, ...], refuses: Refuses
) -> None:
    with refuses(BadInput, "images", *parts):
        as_batch(images)


def test_good_images_pass_the_check() -> None:
    check_images(torch.tensor([0.0, 1.0], requires_grad=True).reshape(1, 1, 2))


@pytest.mark.parametrize(
    ("images", "parts"),
    [
        (np.zeros((1, 3, 4, 4), dtype=np.float32), ("an array of float32", "torch.as_tensor")),
        (torch.zeros(1, 3, 4, 4, dtype=torch.uint8), ("uint8", ".float() / 255")),
        (torch.zeros(1, 1, 3, 4, 4), ("(1, 1, 3, 4, 4)", "(N, C, H, W)", "reshape")),
        (torch.zeros(0, 3, 4, 4), ("not empty", "(0, 3, 4, 4)")),
        *(
            (torch.tensor([[[0.5, value]]]), ("1 NaN or infinite values of 2",))
            for value in (torch.nan, torch.inf, -torch.inf)
        ),
        (torch.tensor([[[0.0, 255.0]]]), ("to 255.0", "divide by 255")),
        (torch.tensor([[[-2.1, 2.6]]]), ("from -2.1 to 2.6", "remove normalisation")),
        (torch.tensor([[[-1e-6, 1.0]]]), ("from -1e-06 to 1", "clamp")),
    ],
)
def test_each_violation_is_named_with_its_fix(
    images: Any, parts: tuple[str, ...], refuses: Refuses
) -> None:
    with refuses(BadInput, "batch: expected", *parts):
        check_images(images, what="batch")


def test_a_classifier_answers_for_the_same_image_in_every_form() -> None:
    classifier = SmoothedClassifier(small.ensemble(), sigma=0.5, num_classes=10)
    pixels = np.random.default_rng(1).integers(0, 256, (8, 8), dtype=np.uint8)
    forms = (Image.fromarray(pixels), pixels[None], pixels[:, :, None], torch.tensor(pixels)[None])
    answers = [classifier.certify_one(image, n=200, seed=0, indices=0) for image in forms]
    assert len({(row.index, row.estimation_counts) for row in answers}) == 1
