"""Bad arguments from Python: a BadInput of the right kind, in one line that names value and fix.

What one function alone checks is tested next to that function.
"""

from collections.abc import Callable
from typing import Any, Self

import pytest
import torch
from torch import nn

import sween
from sween.ensemble import load_members
from sween.errors import BadInput, ContractError, UnknownName
from sween.sampling import CertifySettings
from sween.smoothing import SmoothedClassifier
from tests.smoothing.small import constant

GOOD = torch.full((2, 1, 8, 8), 0.5)


def net(classes: int = 10) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))


def smoothed(model: nn.Module | None = None, **options: Any) -> SmoothedClassifier:
    values = {"sigma": 0.5, "num_classes": 10} | options
    return SmoothedClassifier(net() if model is None else model, **values)


def certify(model: nn.Module | None = None, images: torch.Tensor = GOOD, **options: Any) -> object:
    return smoothed(model).certify(images, **{"n": 200} | options)


class AlwaysTraining(nn.Sequential):
    """A module that ignores `eval()`."""

    def train(self, mode: bool = True) -> Self:
        return self


def training(layer: nn.Module) -> nn.Module:
    return AlwaysTraining(nn.Flatten(), layer, nn.Linear(64, 10))


Refusal = tuple[Callable[[], object], type[BadInput], tuple[str, ...]]


def refused_arguments(
    call: Callable[..., object], *cases: tuple[str, Any, tuple[str, ...]]
) -> list[Refusal]:
    """One argument each, by its name, which the message has too."""
    return [
        (lambda name=name, value=value: call(**{name: value}), BadInput, (name, *parts))  # type: ignore[misc]
        for name, value, parts in cases
    ]


BAD: list[Refusal] = [
    *refused_arguments(
        smoothed,
        *(("sigma", sigma, (repr(sigma), "try")) for sigma in (-0.5, 0.0, float("nan"), "a")),
        *(("num_classes", classes, (f"got {classes}",)) for classes in (10.0, 1)),
        ("forward_rows", 2.5, ("2.5",)),
    ),
    *refused_arguments(
        certify,
        ("images", GOOD * float("nan"), ("NaN",)),
        ("alpha", "a", ("'a'",)),
        ("alpha", None, ("None",)),
        ("alpha", 2.0, ("2.0", "try 0.001")),
        ("labels", [0, 10], ("0 to 9", "[0, 10]")),
        ("labels", [0], ("2 classes", "[0]")),
        ("indices", [3, 3], ("[3, 3]",)),
        ("indices", [-1, 3], ("[-1, 3]",)),
        ("seed", 10**19, (str(10**19),)),
        ("n", 9, ("9 of 9", "n >= 10")),
    ),
    (lambda: certify(sampling="decide", radii=["a"]), BadInput, ("radii", "a list of numbers")),
    (lambda: certify(sampling="tolerance", tolerance="a"), BadInput, ("tolerance", "'a'")),
    (lambda: certify(bound="cohn"), UnknownName, ("'cohn'", "'cohen'")),
    (lambda: smoothed().predict(GOOD, n=2 * 10**9), BadInput, ("n", "at most 1000000000")),
    (lambda: smoothed().predict(GOOD, n=5), BadInput, ("5 of 5", "n >= 11")),
    (lambda: smoothed(noise="exact", levels=2.5), BadInput, ("levels", "a whole number")),
    (lambda: smoothed(exit="exact"), BadInput, ("WeightedEnsemble",)),
    (lambda: smoothed(batch_size=0).certify(GOOD, n=200), BadInput, ("batch_size", "got 0")),
    (lambda: certify(constant(*[float("nan")] * 10)), ContractError, ("NaN", "weights")),
    (lambda: certify(training(nn.Dropout())), ContractError, ("evaluation mode", "dropout")),
    (
        lambda: certify(sween.WeightedEnsemble([net(), training(nn.BatchNorm1d(64))])),
        ContractError,
        ("evaluation mode", "batch"),
    ),
    (
        lambda: certify(sween.WeightedEnsemble([net(), net(9)])),
        ContractError,
        ("(500, 9)", "num_classes"),
    ),
    (lambda: load_members([]), BadInput, ("runs", "got none")),
]


@pytest.mark.parametrize("case", BAD, ids=lambda case: " ".join(case[2]))
def test_bad_arguments_are_one_line(case: Refusal) -> None:
    call, kind, parts = case
    with pytest.raises(BadInput) as caught:
        call()
    message = str(caught.value)
    assert type(caught.value) is kind
    assert len(message.splitlines()) == 1
    assert "; " in message, "no fix"
    for part in parts:
        assert part in message, message


SETTINGS: list[tuple[dict[str, Any], str]] = [
    *(({"alpha": alpha}, f"alpha: .*{alpha}") for alpha in (-1.0, 5e-100)),
    ({"n": 10, "bound": "two-class"}, "10 of 10 votes.*n >= 11"),
    ({"n0": 10**12}, "n0: .*at most 1000000000"),
    ({"sampling": "decide"}, "radii: .*pass a radius"),
    ({"sampling": "decide", "radii": (-0.5,)}, "radii: .*-0.5"),
    ({"sampling": "decide", "radii": (0.5, float("nan"))}, "radii: .*nan"),
    ({"sampling": "decide", "radii": (0.5,), "bound": "two-class"}, "cohen with decide"),
    ({"radii": (0.5,)}, "radii: .*sampling decide"),
    ({"sampling": "tolerance"}, "pass .*tolerance"),
    ({"sampling": "tolerance", "tolerance": 5.0}, "got 5.*0.05 is 5%"),
    ({"tolerance": 0.1}, "expected sampling tolerance, got fixed"),
    ({"sampling": "budget"}, "pass .*budget"),
]


@pytest.mark.parametrize(("options", "said"), SETTINGS, ids=lambda case: str(case)[:60])
def test_settings_that_certify_nothing(options: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        CertifySettings(**{"n": 200} | options)


def test_a_well_made_model_is_not_refused() -> None:
    layers = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Dropout(), net())
    for model in (net(), layers):
        assert certify(model)
