"""The attacker's fast gradients: the same as plain ones, else not used."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from sween.attack.gradients import (
    FastProbabilities,
    check_agreement,
    deterministic_convolutions,
    probabilities_of,
)
from sween.ensemble import WeightedEnsemble
from sween.errors import PreparationWarning
from sween.models import create_model
from sween.smoothing.smoothed_logits import PlainProbabilities, Probabilities

SHAPE = (1, 8, 8)


def _ensemble(weights: tuple[float, ...] = (0.7, 0.3)) -> WeightedEnsemble:
    members = [
        create_model("digits-resnet", num_classes=10, image_shape=SHAPE, seed=seed)
        for seed in range(len(weights))
    ]
    with torch.no_grad():
        for member in members:
            for parameter in member.parameters():
                parameter.mul_(1.5)  # untrained networks are nearly flat
    return WeightedEnsemble(members, weights).eval().requires_grad_(False)


def _as_it_is(member: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    return member


def _gradient(probabilities: Probabilities, noisy: torch.Tensor) -> torch.Tensor:
    own = noisy.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(probabilities(own)[:, 3].log().sum(), own)
    return gradient.flatten(1)


@pytest.mark.parametrize("rows", [3, 10, 64])
def test_passes_of_any_size_give_the_plain_probabilities_and_gradients(rows: int) -> None:
    ensemble, noisy = _ensemble(), torch.rand(10, *SHAPE, generator=torch.manual_seed(0))
    fast = FastProbabilities(ensemble, compile=_as_it_is, rows=rows)
    plain = PlainProbabilities(ensemble)
    assert torch.allclose(fast(noisy), plain(noisy), atol=0.01)
    assert torch.allclose(fast(noisy).sum(dim=1), torch.ones(10), atol=1e-3)
    ours, theirs = _gradient(fast, noisy), _gradient(plain, noisy)
    assert float(torch.cosine_similarity(ours, theirs).min()) > 0.99


def test_only_members_with_weight_see_images_and_passes_have_one_shape() -> None:
    seen: list[tuple[int, ...]] = []

    def watched(member: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
        def run(images: torch.Tensor) -> torch.Tensor:
            seen.append(tuple(images.shape))
            outputs: torch.Tensor = member(images)
            return outputs

        assert not any(parameter.requires_grad for parameter in member.parameters())
        return run

    ensemble = _ensemble((0.0, 1.0)).requires_grad_(True)
    fast = FastProbabilities(ensemble, compile=watched, rows=4)
    assert fast(torch.rand(6, *SHAPE)).shape == (6, 10)
    assert seen == [(4, *SHAPE)] * 2
    assert all(parameter.requires_grad for parameter in ensemble.parameters())


def test_values_may_come_from_another_gradients_stay_the_members_own() -> None:
    def another(noisy: torch.Tensor) -> torch.Tensor:
        return torch.full((len(noisy), 10), 0.1)

    ensemble, noisy = _ensemble(), torch.rand(5, *SHAPE)
    fast = FastProbabilities(ensemble, compile=_as_it_is, rows=4, values=another)
    assert torch.equal(fast(noisy), another(noisy))
    own = noisy.clone().requires_grad_()
    outputs = fast(own)
    assert torch.equal(outputs.detach(), another(noisy))
    (ours,) = torch.autograd.grad(outputs[:, 3].sum(), own)
    (theirs,) = torch.autograd.grad(PlainProbabilities(ensemble)(own)[:, 3].sum(), own)
    cosines = torch.cosine_similarity(ours.flatten(1), theirs.flatten(1))
    assert float(cosines.min()) > 0.99


def test_false_gradients_and_probabilities_are_refused() -> None:
    ensemble, image = _ensemble(), torch.rand(SHAPE)
    plain = PlainProbabilities(ensemble)
    check_agreement(FastProbabilities(ensemble, compile=_as_it_is, rows=8), plain, image)

    def backwards(noisy: torch.Tensor) -> torch.Tensor:
        outputs = plain(noisy)
        return 2 * outputs.detach() - outputs  # the same values, the opposite gradient

    def mixed(noisy: torch.Tensor) -> torch.Tensor:
        return plain(noisy).flip(1)

    def partly(noisy: torch.Tensor) -> torch.Tensor:
        outputs = plain(noisy)
        rows = torch.arange(len(noisy))[:, None] % 4 == 0
        return torch.where(rows, 2 * outputs.detach() - outputs, outputs)

    def flat(noisy: torch.Tensor) -> torch.Tensor:
        return plain(noisy) * 0 + 0.1

    for wrong in (backwards, partly):
        with pytest.raises(RuntimeError, match="gradients differ"):
            check_agreement(wrong, plain, image)
    with pytest.raises(RuntimeError, match="gradients are zero"):
        check_agreement(flat, flat, image)
    with pytest.raises(RuntimeError, match="probabilities differ"):
        check_agreement(mixed, plain, image)


def test_where_nothing_compiles_the_plain_way_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    ensemble, image = _ensemble(), torch.rand(SHAPE)

    def engine(compiled: bool) -> Any:
        return SimpleNamespace(compiled=compiled, probabilities=None)

    assert isinstance(probabilities_of(ensemble, engine(False), image), PlainProbabilities)
    monkeypatch.setattr(torch, "compile", lambda member, **_: member)
    assert isinstance(probabilities_of(ensemble, engine(True), image), FastProbabilities)

    def fails(member: nn.Module, **_: object) -> None:
        raise RuntimeError("no compiler here\nand more")

    monkeypatch.setattr(torch, "compile", fails)
    with pytest.warns(PreparationWarning, match=r"gradients cannot be .* no compiler here$"):
        assert isinstance(probabilities_of(ensemble, engine(True), image), PlainProbabilities)

    def out_of_memory(member: nn.Module, **_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "compile", out_of_memory)
    with pytest.warns(PreparationWarning, match="out of memory"):
        assert isinstance(probabilities_of(ensemble, engine(True), image), PlainProbabilities)

    def broken(member: nn.Module, **_: object) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch, "compile", broken)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        probabilities_of(ensemble, engine(True), image)


def test_convolutions_come_again_and_nothing_else_is_switched() -> None:
    cudnn = torch.backends.cudnn
    known = (cudnn.enabled, cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark)
    with deterministic_convolutions():
        assert (cudnn.enabled, cudnn.allow_tf32) == known[:2]
        assert (cudnn.deterministic, cudnn.benchmark) == (True, False)
    assert (cudnn.enabled, cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark) == known
