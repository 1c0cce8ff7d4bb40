"""Names to networks: registered ones and a caller's own."""

from pathlib import Path

import pytest
import torch
from torch import nn

from sween.errors import BadInput, ContractError, OutOfMemory, UnknownName
from sween.models import ARCHITECTURES, check_member, create_model, list_models

DIGITS = (1, 8, 8)
FACTORIES = "tests.models.factories"


def test_listing_by_pattern() -> None:
    assert list_models() == list(ARCHITECTURES)
    assert list_models("resnet*0") == [f"resnet{depth}" for depth in (20, 50, 80, 110)]
    assert list_models("resnet26*") == ["resnet26", "resnet26x2", "resnet26x3", "resnet26x4"]
    assert list_models("*digits*") == ["digits-mlp", "digits-conv", "digits-resnet"]
    assert list_models("vgg*") == []


@pytest.mark.parametrize(("name", "nearest"), [("ResNet110", "resnet110"), ("qqqq", None)])
def test_an_unknown_name_gets_the_nearest(name: str, nearest: str | None) -> None:
    with pytest.raises(UnknownName, match=f"architecture '{name}'") as caught:
        create_model(name, num_classes=10, image_shape=DIGITS)
    assert (f"did you mean {nearest!r}?" in str(caught.value)) == (nearest is not None)
    assert all(known in str(caught.value) for known in ARCHITECTURES)


def test_one_class_is_not_a_classification() -> None:
    with pytest.raises(BadInput, match="num_classes: expected at least 2, got 1"):
        create_model("digits-mlp", num_classes=1, image_shape=DIGITS)


@pytest.mark.parametrize("factory", ["with_classes", "with_any_keyword", "AsClass"])
def test_a_factory_that_takes_num_classes_gets_it(factory: str) -> None:
    model = create_model(f"{FACTORIES}:{factory}", num_classes=7, image_shape=DIGITS)
    assert model(torch.zeros(2, *DIGITS)).shape == (2, 7)


def test_a_factory_without_num_classes_is_called_without() -> None:
    model = create_model(f"{FACTORIES}:without_classes", num_classes=7, image_shape=DIGITS)
    assert model(torch.zeros(2, *DIGITS)).shape == (2, 10)
    with pytest.raises(ContractError, match=r"expected logits of shape \(2, 7\).*got \(2, 10\)"):
        check_member(model, num_classes=7, image_shape=DIGITS)


def test_a_factory_is_seeded_too() -> None:
    first, again, other = (
        create_model(f"{FACTORIES}:with_classes", num_classes=7, image_shape=DIGITS, seed=seed)
        for seed in (1, 1, 2)
    )
    image = torch.ones(1, *DIGITS)
    assert torch.equal(first(image), again(image))
    assert not torch.equal(first(image), other(image))


@pytest.mark.parametrize(
    ("name", "got"),
    [
        ("no.such.module:factory", "No module named 'no'"),
        (f"{FACTORIES}:no_such_factory", "no_such_factory"),
        (f"{FACTORIES}:", "got"),
        (":factory", "got"),
        (f"{FACTORIES}:NOT_CALLABLE", "int"),
        (f"{FACTORIES}:not_a_module", "list"),
    ],
)
def test_an_unusable_factory_is_one_line(name: str, got: str) -> None:
    with pytest.raises(BadInput) as caught:
        create_model(name, num_classes=10, image_shape=DIGITS)
    assert repr(name) in str(caught.value)
    assert got in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


class Fake(nn.Module):
    """Raises or returns something."""

    def __init__(self, outcome: object) -> None:
        super().__init__()
        self.outcome = outcome

    def forward(self, x: torch.Tensor) -> object:
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


@pytest.mark.parametrize("error", [RuntimeError("two\nlines"), ValueError()], ids=repr)
def test_a_member_that_raises_is_refused_with_its_error(error: Exception) -> None:
    model = Fake(error)
    with pytest.raises(ContractError, match=r"\(N, 1, 8, 8\)") as caught:
        check_member(model, num_classes=10, image_shape=DIGITS)
    assert type(error).__name__ in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert model.training


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ((torch.zeros(2, 10),), r"logits of shape \(2, 10\).*got a tuple;"),
        (torch.zeros(2, 10, 1, 1), r"logits of shape \(2, 10\).*got \(2, 10, 1, 1\);"),
        (torch.full((2, 10), torch.nan), "finite logits"),
        (torch.full((2, 10), torch.inf), "finite logits"),
    ],
)
def test_a_member_that_returns_something_else_is_refused(output: object, message: str) -> None:
    with pytest.raises(ContractError, match=message):
        check_member(Fake(output), num_classes=10, image_shape=DIGITS)


@pytest.mark.parametrize("training", [True, False])
def test_a_good_member_is_left_as_it_was(training: bool) -> None:
    model = create_model("digits-conv", num_classes=10, image_shape=DIGITS).train(training)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    check_member(model, num_classes=10, image_shape=DIGITS)
    assert model.training is training
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory.\nGPU 0 has"), MemoryError()], ids=repr
)
def test_running_out_of_memory_is_not_a_wrong_architecture(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        OutOfMemory, match=r"memory ran out while .*\(3, 224, 224\).*another device"
    ) as e:
        check_member(Fake(error), num_classes=10, image_shape=(3, 224, 224))
    assert "architecture" not in str(e.value)
    assert len(str(e.value).splitlines()) == 1

    def build(num_classes: int) -> nn.Module:
        raise error

    monkeypatch.setattr(f"{FACTORIES}.with_classes", build)
    with pytest.raises(OutOfMemory, match=r"while tests\.models\.factories:with_classes was built"):
        create_model(f"{FACTORIES}:with_classes", num_classes=7, image_shape=DIGITS)


def test_a_real_lack_of_memory() -> None:
    """A layer that asks the CPU for more than any machine has."""

    class Huge(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.new_empty(len(x), 1 << 55)

    with pytest.raises(OutOfMemory, match="memory ran out while the network was checked on cpu"):
        check_member(Huge(), num_classes=10, image_shape=DIGITS)


def test_a_factory_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_networks.py").write_text("def fails():\n    raise KeyError('weights')\n")
    (tmp_path / "unreadable_networks.py").write_text("def fails(:\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name, why in (("broken_networks", "KeyError"), ("unreadable_networks", "SyntaxError")):
        with pytest.raises(BadInput, match=rf"{name}:fails.*{why}.*; "):
            create_model(f"{name}:fails", num_classes=3, image_shape=(1, 8, 8))
