"""Members evaluated in their prepared form, for solving the weights."""

from typing import Any

import pytest
import torch

import sween
from sween.engine import forward, prepared_ensemble
from sween.engine.preparation import Preparation
from sween.engine.prepare import prepare
from sween.engine.prepared import Prepared
from sween.engine.prepared_members import PreparedModule
from sween.ensemble import WeightedEnsemble, load_members, weigh
from sween.errors import ContractError, PreparationWarning
from sween.models import create_model
from sween.zoo import MODELS

MEMBERS = MODELS / "digits-sween3-gaussian-sigma0.50" / "members"
FILES = [MEMBERS / "digits-mlp.safetensors", MEMBERS / "digits-conv.safetensors"]


def _network() -> torch.nn.Module:
    torch.manual_seed(0)
    return create_model("resnet20", num_classes=10, image_shape=(3, 32, 32)).eval()


@pytest.mark.parametrize("count", [1, 100, 130])
def test_any_number_of_images_has_the_modules_logits(count: int) -> None:
    """Fewer than a forward pass has rows, as many, and more."""
    network, images = _network(), torch.rand(count, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(
            PreparedModule(network, 10)(images), network(images), rtol=1e-4, atol=1e-4
        )


def test_a_module_is_prepared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared: list[int] = []

    def watched(*given: Any) -> Prepared:
        prepared.append(1)
        return prepare(*given)

    monkeypatch.setattr("sween.engine.member.prepare", watched)
    module = PreparedModule(_network(), 10)
    with torch.no_grad():
        for count in (1, 5, 120):
            module(torch.rand(count, 3, 32, 32))
    assert prepared == [1]


def test_passes_have_one_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = set[tuple[int, ...]]()

    class Watched(torch.nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            shapes.add(tuple(images.shape))
            return images.flatten(1)[:, :10]

    monkeypatch.setattr(forward, "MAX_CPU_BLOCKS", 1)
    module = PreparedModule(Watched(), 10)
    module(torch.rand(1, 3, 4, 4))  # prepared, for which its code is also run on few images
    shapes.clear()
    for count in (1, 100, 250):
        assert module(torch.rand(count, 3, 4, 4)).shape == (count, 10)
    assert shapes == {(100, 3, 4, 4)}


def test_weights_are_those_of_the_members_themselves() -> None:
    digits, loaded = sween.load_dataset("digits"), load_members(FILES)
    plain = weigh(loaded, digits, method="sgd", samples=5, quiet=True)
    # As on a GPU, in its arithmetic but for rounding.
    modules = [PreparedModule(own, loaded.num_classes) for own in loaded.members]
    loaded.weights = [0.5, 0.5]
    evaluated = WeightedEnsemble(modules)
    found = weigh(loaded, digits, method="sgd", samples=5, quiet=True, evaluated=evaluated)
    assert found.weights == pytest.approx(plain.weights, abs=1e-4)
    assert found.loss == pytest.approx(plain.loss, abs=1e-4)
    assert loaded.weights.tolist() == list(found.weights)


def test_on_a_gpu_every_member_is_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load_members(FILES)
    assert prepared_ensemble(loaded, evaluations=10**6) is loaded
    monkeypatch.setattr("sween.engine.prepared_members.device_of", lambda _: torch.device("cuda"))
    assert prepared_ensemble(loaded, evaluations=1_000) is loaded
    found = prepared_ensemble(loaded, evaluations=10**6)
    assert [type(own) for own in found.members] == [PreparedModule] * 2
    assert torch.equal(found.weights, loaded.weights)


def test_a_network_that_float16_does_not_suit_is_evaluated_as_it_is() -> None:
    linear = torch.nn.Linear(48, 10)
    torch.nn.init.uniform_(linear.weight, 1e5, 2e5)  # beyond the largest number of float16
    large = torch.nn.Sequential(torch.nn.Flatten(), linear)
    images = torch.rand(7, 3, 4, 4)
    half = Preparation("float16", compile=False)
    with pytest.warns(PreparationWarning, match="cannot be prepared to solve for the weights"):
        logits = PreparedModule(large, 10, half)(images)
    assert torch.equal(logits, large(images))


def test_training_mode_changes_nothing() -> None:
    network = _network().train()
    before = {name: own.clone() for name, own in network.state_dict().items()}
    PreparedModule(network, 10)(torch.rand(3, 3, 32, 32))
    assert network.training
    assert all(torch.equal(before[name], own) for name, own in network.state_dict().items())


def test_outputs_that_are_not_finite_are_refused() -> None:
    class Broken(torch.nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return torch.where(images.flatten(1)[:, :10] > 50, torch.nan, 1.0)

    module = PreparedModule(Broken(), 10)
    module(torch.rand(3, 3, 4, 4))
    with pytest.raises(ContractError, match="NaN or infinity"):
        module(torch.full((3, 3, 4, 4), 100.0))
