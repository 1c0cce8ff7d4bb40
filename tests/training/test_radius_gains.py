"""Weights of training images by their gain in radius, against the derivative of the radius."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import special

from sween.errors import BadInput
from sween.seeding import torch_seed
from sween.training.objectives import REMEMBERED, consistency
from sween.training.radius_gains import MOST, radius_gains
from sween.training.trainer import Trainer

from .datasets import config, few_digits


def remembered(shares: list[float], looks: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """A memory after some looks, with these probabilities of the true classes, and the labels."""
    labels = torch.arange(len(shares)) % 3
    own = torch.tensor(shares, dtype=torch.float64)[:, None]
    one_hot = torch.eye(3, dtype=torch.float64)[labels]
    memory = own * one_hot + (1 - own) / 2 * (1 - one_hot)
    return (1 - REMEMBERED**looks) * memory, labels


def test_weights_are_the_slope_of_the_radius() -> None:
    shares, step = [0.5, 0.6, 0.8, 0.9, 0.96], 1e-6
    slopes = np.array(
        [(special.ndtri(p + step) - special.ndtri(p - step)) / (2 * step) for p in shares]
    )
    found = radius_gains(*remembered(shares), 0.97)
    np.testing.assert_allclose(found.numpy(), slopes / slopes.mean(), rtol=1e-6)
    assert found.mean().item() == pytest.approx(1)


def test_larger_probabilities_count_as_the_largest() -> None:
    found = radius_gains(*remembered([0.9, 0.95, 1.0]), 0.9)
    torch.testing.assert_close(found, torch.ones(3, dtype=torch.float64))
    found = radius_gains(*remembered([0.5, 1.0]), MOST)
    ratio = math.exp(special.ndtri(MOST) ** 2 / 2)
    assert (found[1] / found[0]).item() == pytest.approx(ratio)
    assert 100 < ratio < 200


def test_images_without_a_majority_fade() -> None:
    found = radius_gains(*remembered([0.5, 0.25, 0.1, 0.0]), 0.97)
    torch.testing.assert_close(
        found / found[0], torch.tensor([1.0, 0.5, 0.2, 0.0], dtype=torch.float64).sqrt()
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_images_that_were_never_seen_weigh_as_much_as_the_average(dtype: torch.dtype) -> None:
    memory, labels = remembered([0.9, 0.0, 0.2, 0.0])
    memory[1] = 0.0
    found = radius_gains(memory.to(dtype), labels, 0.97)
    assert found[1] == 1
    assert found[3] == 0
    assert found[[0, 2, 3]].mean().item() == pytest.approx(1)
    for nothing in (torch.zeros(2, 3, dtype=dtype), remembered([0.0, 0.0])[0].to(dtype)):
        torch.testing.assert_close(
            radius_gains(nothing, labels[:2], 0.97), torch.ones(2, dtype=dtype)
        )


def _memory() -> torch.Tensor:
    """Of 40 images in ten classes, after three looks."""
    generator = torch.Generator().manual_seed(2)
    memory = torch.softmax(4 * torch.randn(40, 10, generator=generator), dim=1)
    return (1 - REMEMBERED**3) * memory


def _step(out: Path, **fields: Any) -> tuple[Trainer, torch.Tensor]:
    """A step of consistency on 8 images that were seen before, and its gradients."""
    wanted = config(method="consistency", batch_size=8, radius_gain=0.9, **fields)
    trainer = Trainer(wanted, few_digits(40), out, device=torch.device("cpu"))
    trainer._recall()
    assert trainer.step.memory is not None
    trainer.step.memory.copy_(_memory())
    step = trainer.step
    step.prepare(wanted.options_at(wanted.epochs // 2))
    step.inputs.picks.copy_(torch.arange(0, 40, 5))
    step.generator.manual_seed(torch_seed(0, "test"))
    trainer.model.train()
    step()
    gradients = [one.grad for one in trainer.model.parameters()]
    return trainer, torch.cat([one.flatten() for one in gradients if one is not None])


def test_a_step_minimises_the_weighted_losses(tmp_path: Path) -> None:
    trainer, found = _step(tmp_path, radius_gain_from=0)
    again, plain = _step(tmp_path, radius_gain_from=59, epochs=60)
    picks = torch.arange(0, 40, 5)
    weights = radius_gains(_memory()[picks], few_digits(40).train.labels[picks], 0.9)
    assert weights.min() < 0.5 < 1.5 < weights.max()
    assert float((found - plain).norm()) > 0.01 * float(plain.norm())

    # By hand, from the same start.
    fresh = Trainer(trainer.config, few_digits(40), tmp_path, device=torch.device("cpu"))
    step = fresh.step
    step.options = trainer.step.options
    assert step.options is not None
    step.inputs.picks.copy_(torch.arange(0, 40, 5))
    step.generator.manual_seed(torch_seed(0, "test"))
    fresh.model.train()
    drawn, noise = step._draw()
    logits = step._logits(drawn, step.options.sigma * noise)
    loss = (weights * consistency(logits, step._labels(), step.options)).mean()
    by_hand = torch.autograd.grad(loss, list(fresh.model.parameters()))
    expected = torch.cat([one.flatten() for one in by_hand])
    torch.testing.assert_close(found, expected)
    for each in (trainer, again):  # both remember what was said
        totals = each.per_image["memory"].sum(dim=1)
        assert totals[5].item() == pytest.approx(1 - REMEMBERED**4)
        assert totals[6].item() == pytest.approx(1 - REMEMBERED**3)


def test_weights_begin_after_a_quarter_of_the_epochs() -> None:
    own = config(epochs=8, radius_gain=0.97)
    assert [own.options_at(epoch).largest_probability for epoch in (0, 1, 2, 7)] == [
        0,
        0,
        0.97,
        0.97,
    ]
    assert config(epochs=3, radius_gain=0.97).radius_gain_start == 1  # from 0 it would collapse
    late = dataclasses.replace(own, radius_gain_from=7)
    assert [late.options_at(epoch).largest_probability for epoch in (6, 7)] == [0, 0.97]
    never = config(epochs=8)
    assert never.radius_gain_start == 8
    assert never.options_at(7).largest_probability == 0


@pytest.mark.parametrize("share", [0.5, 0.0, 0.9991, 1.0, math.nan])
def test_probabilities_without_a_weight_are_refused(share: float) -> None:
    with pytest.raises(BadInput, match=r"^radius_gain: .* probability above 0\.5 and up to"):
        config(radius_gain=share)


def test_options_that_contradict_the_weights_are_refused() -> None:
    with pytest.raises(BadInput, match=r"^radius_gain: .*got none; pass `radius_gain`"):
        config(radius_gain_from=2)
    with pytest.raises(BadInput, match=r"^radius_gain_from: expected one of the epochs.* try 15"):
        config(radius_gain=0.9, radius_gain_from=60, epochs=60)
    with pytest.raises(BadInput, match=r"^radius_gain: .*got 0\.9 with acr; set `drop_below`"):
        config(method="acr", sigma=0.5, radius_gain=0.9)
    config(method="acr", sigma=0.5, radius_gain=0.9, drop_below=0.0, reweigh_every=0)
