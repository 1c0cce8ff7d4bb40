"""Models that break the contract of a member: one line that is true and says what to do."""

from typing import Any

import pytest
import torch
from torch import nn

from sween.errors import ContractError
from sween.smoothing import SmoothedClassifier
from tests.smoothing import small


def linear() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


class Wrapped(nn.Module):
    """Returns something else than logits."""

    def __init__(self, pack: Any) -> None:
        super().__init__()
        self.body, self.pack = linear(), pack

    def forward(self, images: torch.Tensor) -> Any:
        return self.pack(self.body(images))


class Broken(nn.Module):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        raise KeyError("no such layer")


def normal(images: torch.Tensor) -> torch.Tensor:
    return images.flatten(1)[:, :10]


@pytest.mark.parametrize(
    ("model", "parts"),
    [
        (Wrapped(lambda y: (y, y)), ("a tuple", "returns its logits")),
        (Wrapped(lambda y: {"logits": y}), ("a dict", "returns its logits")),
        (Wrapped(lambda y: y[:, :7]), ("(", "7)", "num_classes=7")),
        (Wrapped(lambda y: y.sum()), ("()", "one row of logits")),
        (linear().double(), ("float64", "model.float()")),
        (linear().half(), ("float16", "model.float()")),
        (nn.Linear(3, 10), ("RuntimeError", "(N, 1, 8, 8)")),
        (Broken(), ("KeyError", "no such layer")),
        (normal, ("a function", "module")),
        (lambda images: normal(images), ("a function", "module")),
        (linear().forward, ("a method", "torch.nn.Module")),
        (None, ("a NoneType",)),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("verb", ["predict", "certify"])
def test_one_line_that_is_true(model: Any, parts: tuple[str, ...], verb: str) -> None:
    with pytest.raises(ContractError) as caught:
        getattr(SmoothedClassifier(model, sigma=0.5, num_classes=10), verb)(small.images(1), n=200)
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message, message


def test_a_model_that_casts_for_itself_may_have_any_parameters() -> None:
    class Casting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = linear().double()

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            output: torch.Tensor = self.body(images.double()).float()
            return output

    smoothed = SmoothedClassifier(Casting(), sigma=0.5, num_classes=10)
    assert smoothed.certify(small.images(1), n=200)


def test_an_image_of_another_size_is_one_line_too() -> None:
    """Also where the model is known by then."""
    smoothed = SmoothedClassifier(linear(), sigma=0.5, num_classes=10)
    assert smoothed.predict(small.images(1), n=100)
    for verb in (smoothed.predict, smoothed.certify):
        with pytest.raises(ContractError, match=r"\(N, 3, 8, 8\), got RuntimeError"):
            verb(torch.rand(1, 3, 8, 8), n=100)
