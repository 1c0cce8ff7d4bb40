"""check_images lets [0, 1] batches through and names the fix for everything else."""

import numpy as np
import pytest
import torch

from sween.data import check_images
from sween.errors import BadInput

from .conftest import Refuses


@pytest.mark.parametrize("shape", [(2, 3, 4, 4), (1, 8, 8)])
def test_a_good_batch_or_image_passes(shape: tuple[int, ...]) -> None:
    check_images(torch.rand(shape, generator=torch.Generator().manual_seed(0)))


def test_both_ends_of_the_range_pass() -> None:
    check_images(torch.tensor([0.0, 1.0]).reshape(1, 1, 2))


def test_an_image_that_needs_a_gradient_passes() -> None:
    check_images(torch.zeros(1, 3, 4, 4, requires_grad=True))


@pytest.mark.parametrize(
    ("images", "parts"),
    [
        (torch.zeros(1, 3, 4, 4, dtype=torch.uint8), ("uint8", ".float() / 255")),
        (torch.zeros(1, 3, 4, 4, dtype=torch.float64), ("float64", "convert with .float()")),
        (torch.zeros(4, 4), ("(4, 4)", "(N, C, H, W)", "reshape")),
        (torch.zeros(1, 1, 3, 4, 4), ("(1, 1, 3, 4, 4)",)),
        (torch.zeros(0, 3, 4, 4), ("not empty", "(0, 3, 4, 4)")),
        (torch.full((1, 3, 4, 4), torch.nan), ("48 NaN or infinite values of 48",)),
        (torch.tensor([[[0.5, torch.nan]]]), ("1 NaN or infinite values of 2",)),
        (torch.tensor([[[0.5, torch.inf]]]), ("1 NaN or infinite values of 2",)),
        (torch.tensor([[[-torch.inf, 0.5]]]), ("1 NaN or infinite values of 2",)),
        (torch.tensor([[[0.0, 255.0]]]), ("from 0 to 255", "divide by 255")),
        (torch.tensor([[[-2.1, 2.6]]]), ("from -2.1 to 2.6", "remove normalisation")),
        (torch.tensor([[[-1e-6, 1.0]]]), ("from -1e-06 to 1", "clamp")),
    ],
)
def test_each_violation_is_named_with_its_fix(
    images: torch.Tensor, parts: tuple[str, ...], refuses: Refuses
) -> None:
    with refuses(BadInput, "batch: expected", *parts):
        check_images(images, what="batch")


def test_a_numpy_array_is_refused(refuses: Refuses) -> None:
    with refuses(BadInput, "images", "ndarray", "torch.as_tensor"):
        check_images(np.zeros((1, 3, 4, 4), dtype=np.float32))  # type: ignore[arg-type]
