"""Crops and flips against a slow reference, one image at a time."""

import pytest
import torch
from torch.nn import functional

from sween.training.augment import apply_crop_flips, draw_crop_flips


def every_crop(image: torch.Tensor, padding: int) -> dict[tuple[int, int, bool], torch.Tensor]:
    """(shift down, shift right, flipped) to the crop, by slicing."""
    _, height, width = image.shape
    padded = functional.pad(image, (padding,) * 4)
    return {
        (down, right, flipped): crop.flip(2) if flipped else crop
        for down in range(2 * padding + 1)
        for right in range(2 * padding + 1)
        for crop in (padded[:, down : down + height, right : right + width],)
        for flipped in (False, True)
    }


def changed(images: torch.Tensor, padding: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    drawn = draw_crop_flips(len(images), padding=padding, generator=generator, device=images.device)
    return apply_crop_flips(images, drawn, padding=padding)


def which(images: torch.Tensor, padding: int) -> list[tuple[int, int, bool]]:
    """The one crop that each changed image is."""
    found = []
    for image, result in zip(images, changed(images, padding), strict=True):
        crops = every_crop(image, padding)
        matches = [choice for choice, crop in crops.items() if torch.equal(crop, result)]
        assert len(matches) == 1
        found += matches
    return found


@pytest.mark.parametrize("shape", [(3, 8, 8), (1, 5, 7)])
@pytest.mark.parametrize("padding", [0, 1, 2])
def test_every_result_is_one_of_the_padded_crops(shape: tuple[int, int, int], padding: int) -> None:
    images = torch.rand(300, *shape, generator=torch.Generator().manual_seed(1)) + 0.01
    choices = which(images, padding)
    share = sum(flipped for _, _, flipped in choices) / len(choices)
    assert abs(share - 0.5) < 5 * (0.25 / len(choices)) ** 0.5
    for axis in (0, 1):
        assert {choice[axis] for choice in choices} == set(range(2 * padding + 1))
    assert len({choice[:2] for choice in choices}) == (2 * padding + 1) ** 2


def test_shifts_and_flips_are_drawn_independently() -> None:
    images = torch.rand(600, 1, 4, 4, generator=torch.Generator().manual_seed(2)) + 0.01
    draws = torch.tensor([[float(part) for part in choice] for choice in which(images, 1)]).T
    assert torch.corrcoef(draws).fill_diagonal_(0).abs().max() < 5 / 600**0.5


def test_the_generator_alone_decides_and_the_images_stay() -> None:
    images = torch.rand(50, 3, 6, 6)
    before, state = images.clone(), torch.get_rng_state()
    assert torch.equal(changed(images, 2, seed=4), changed(images, 2, seed=4))
    assert not torch.equal(changed(images, 2, seed=4), changed(images, 2, seed=5))
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(images, before)


def test_padding_is_black_and_shape_and_range_stay() -> None:
    results = changed(torch.ones(100, 3, 6, 6), 3)
    assert results.shape == (100, 3, 6, 6)
    assert set(results.flatten().tolist()) == {0.0, 1.0}
    assert results.dtype == torch.float32
