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
    assert list_models("resnet*") == [f"resnet{depth}" for depth in (20, 26, 32, 50, 80, 110)]
    assert list_models("*digits*") == ["digits-mlp", "digits-conv", "digits-resnet"]
    assert list_models("vgg*") == []


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("ResNet110", "resnet110"),
        ("resnet-20", "resnet20"),
        ("digits_conv", "digits-conv"),
        ("imagenet-resnet-34", "imagenet-resnet34"),
    ],
)
def test_an_unknown_name_gets_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(UnknownName, match=f"unknown architecture '{name}'") as caught:
        create_model(name, num_classes=10, image_shape=DIGITS)
    assert f"did you mean {nearest!r}?" in str(caught.value)
    assert all(known in str(caught.value) for known in ARCHITECTURES)


def test_a_name_like_no_other_gets_the_list_alone() -> None:
    with pytest.raises(UnknownName) as caught:
        create_model("qqqq", num_classes=10, image_shape=DIGITS)
    assert "did you mean" not in str(caught.value)
    assert "available: digits-conv" in str(caught.value)


@pytest.mark.parametrize("num_classes", [1, 0, -3])
def test_one_class_is_no_classification(num_classes: int) -> None:
    with pytest.raises(BadInput, match=f"num_classes: expected at least 2, got {num_classes}"):
        create_model("digits-mlp", num_classes=num_classes, image_shape=DIGITS)


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


class Raises(nn.Module):
    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise self.error


class Returns(nn.Module):
    def __init__(self, output: object) -> None:
        super().__init__()
        self.output = output

    def forward(self, x: torch.Tensor) -> object:
        return self.output


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("two\nlines"),
        ValueError(),
        TypeError("t"),
        AssertionError("Input height (8) doesn't match model (224)."),
        KeyError("k"),
        AttributeError("a"),
        NotImplementedError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_member_that_raises_is_refused_with_its_error(error: Exception) -> None:
    model = Raises(error)
    with pytest.raises(ContractError, match=r"\(N, 1, 8, 8\)") as caught:
        check_member(model, num_classes=10, image_shape=DIGITS)
    assert type(error).__name__ in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert model.training


@pytest.mark.parametrize(
    ("output", "got"),
    [
        ((torch.zeros(2, 10),), "tuple"),
        ({"logits": torch.zeros(2, 10)}, "dict"),
        (None, "NoneType"),
        (torch.zeros(2, 9), r"\(2, 9\)"),
        (torch.zeros(10), r"\(10,\)"),
        (torch.zeros(2, 10, 1, 1), r"\(2, 10, 1, 1\)"),
        (torch.zeros(1, 10), r"\(1, 10\)"),
    ],
)
def test_a_member_that_returns_something_else_is_refused(output: object, got: str) -> None:
    with pytest.raises(ContractError, match=rf"expected logits of shape \(2, 10\).*got {got};"):
        check_member(Returns(output), num_classes=10, image_shape=DIGITS)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_member_with_broken_weights_is_refused(value: float) -> None:
    with pytest.raises(ContractError, match="finite logits"):
        check_member(Returns(torch.full((2, 10), value)), num_classes=10, image_shape=DIGITS)


@pytest.mark.parametrize("training", [True, False])
def test_a_good_member_is_left_as_it_was(training: bool) -> None:
    model = create_model("digits-conv", num_classes=10, image_shape=DIGITS).train(training)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    check_member(model, num_classes=10, image_shape=DIGITS)
    assert model.training is training
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_a_factory_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_networks.py").write_text("def fails():\n    raise KeyError('weights')\n")
    (tmp_path / "unreadable_networks.py").write_text("def fails(:\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name, why in (("broken_networks", "KeyError"), ("unreadable_networks", "SyntaxError")):
        with pytest.raises(BadInput, match=rf"{name}:fails.*{why}.*; "):
            create_model(f"{name}:fails", num_classes=3, image_shape=(1, 8, 8))


ROOM_WORDS: list[Exception] = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nGPU 0 has"),
    RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    MemoryError(),
]


class NoRoom(nn.Module):
    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise self.error


@pytest.mark.parametrize("error", ROOM_WORDS, ids=lambda error: type(error).__name__)
def test_running_out_of_memory_is_not_a_wrong_architecture(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OutOfMemory, match=r"memory ran out while .*\(3, 224, 224\).*--device") as e:
        check_member(NoRoom(error), num_classes=10, image_shape=(3, 224, 224))
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
