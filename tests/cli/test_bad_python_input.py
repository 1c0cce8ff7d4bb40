"""Bad arguments from Python: a BadInput of the right kind, in one line."""

from collections.abc import Callable
from typing import Any, Self

import pytest
import torch
from torch import nn

import sween
from sween.data import load_dataset
from sween.ensemble import load_members
from sween.errors import BadInput, ContractError, UnknownName
from sween.sampling import CertifySettings
from sween.smoothing import SmoothedClassifier
from tests.cli.conftest import Made

GOOD = torch.full((2, 1, 8, 8), 0.5)


def net(classes: int = 10) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))


def smoothed(model: nn.Module | None = None, **options: Any) -> SmoothedClassifier:
    values = {"sigma": 0.5, "num_classes": 10} | options
    return SmoothedClassifier(net() if model is None else model, **values)


def certify(images: torch.Tensor = GOOD, model: nn.Module | None = None, **options: Any) -> object:
    return smoothed(model).certify(images, n=200, **options)


class AlwaysTraining(nn.Module):
    """A wrapper that forgets to hand `eval()` on."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body.train()

    def train(self, mode: bool = True) -> Self:
        return self

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.body(images)
        return output


class NotANumber(nn.Module):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.full((len(images), 10), float("nan"))


class Text(nn.Module):
    def forward(self, images: torch.Tensor) -> str:
        return "seven"


def batch_norm() -> nn.Module:
    return AlwaysTraining(nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 10)))


def dropout() -> nn.Module:
    return AlwaysTraining(nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(64, 10)))


def solve(**options: Any) -> object:
    labels = options.pop("labels", torch.tensor([0, 1]))
    images = options.pop("images", GOOD)
    ensemble = sween.WeightedEnsemble([net(), net()])
    return sween.solve_weights(ensemble, images, labels, **({"sigma": 0.5, "samples": 2} | options))


def with_pixel(value: float) -> torch.Tensor:
    images = GOOD.clone()
    images[1, 0, 3, 4] = value
    return images


Refusal = tuple[Callable[[], object], type[BadInput], tuple[str, ...]]

BAD: dict[str, Refusal] = {
    "NaN pixel": (lambda: certify(with_pixel(float("nan"))), BadInput, ("images", "1 NaN")),
    "infinite pixel": (lambda: certify(with_pixel(float("inf"))), BadInput, ("images", "inf")),
    "pixel above 1": (lambda: certify(GOOD * 255), BadInput, ("127.5", "divide by 255")),
    "pixel below 0": (lambda: certify(GOOD - 1), BadInput, ("-0.5", "inside the model")),
    "a little over": (lambda: certify(with_pixel(1.001)), BadInput, ("1.001", ".clamp(0, 1)")),
    "whole numbers": (
        lambda: certify(torch.zeros(2, 1, 8, 8, dtype=torch.int64)),
        BadInput,
        ("int64", "uint8"),
    ),
    "two dimensions": (lambda: certify(torch.zeros(8, 8)), BadInput, ("(8, 8)", "reshape")),
    "no images": (lambda: certify(GOOD[:0]), BadInput, ("(0, 1, 8, 8)", "not empty")),
    "negative sigma": (lambda: smoothed(sigma=-0.5), BadInput, ("sigma", "-0.5", "try")),
    "zero sigma": (lambda: smoothed(sigma=0.0), BadInput, ("sigma", "got 0.0", "try")),
    "NaN sigma": (lambda: smoothed(sigma=float("nan")), BadInput, ("sigma", "nan", "try")),
    "sigma in words": (lambda: smoothed(sigma="a"), BadInput, ("sigma", "got 'a'", "try")),
    "classes as a float": (lambda: smoothed(num_classes=10.0), BadInput, ("num_classes", "10.0")),
    "half a row": (lambda: smoothed(forward_rows=2.5), BadInput, ("forward_rows", "2.5")),
    "half a level": (
        lambda: smoothed(noise="exact", levels=2.5),
        BadInput,
        ("levels", "a whole number"),
    ),
    "alpha in words": (lambda: certify(alpha="a"), BadInput, ("alpha", "'a'")),
    "no alpha": (lambda: certify(alpha=None), BadInput, ("alpha", "None")),
    "radii in words": (
        lambda: certify(sampling="decide", radii=["a"]),
        BadInput,
        ("radii", "a list of numbers"),
    ),
    "tolerance in words": (
        lambda: certify(sampling="tolerance", tolerance="a"),
        BadInput,
        ("tolerance", "'a'"),
    ),
    "predict without end": (
        lambda: smoothed().predict(GOOD, n=2 * 10**9),
        BadInput,
        ("n", "at most 1000000000"),
    ),
    "one class": (lambda: smoothed(num_classes=1), BadInput, ("num_classes", "got 1")),
    "other classes": (
        lambda: smoothed(num_classes=9).certify(GOOD, n=200),
        ContractError,
        ("(500, 10)", "num_classes"),
    ),
    "label out of range": (
        lambda: certify(labels=[0, 10]),
        BadInput,
        ("labels", "0 to 9", "[0, 10]"),
    ),
    "one label": (lambda: certify(labels=[0]), BadInput, ("labels", "2 classes", "[0]")),
    "index twice": (lambda: certify(indices=[3, 3]), BadInput, ("indices", "[3, 3]")),
    "negative index": (lambda: certify(indices=[-1, 3]), BadInput, ("indices", "[-1, 3]")),
    "n too small": (lambda: smoothed().certify(GOOD, n=9), BadInput, ("9 of 9", "n >= 10")),
    "predict n too small": (
        lambda: smoothed().predict(GOOD, n=5),
        BadInput,
        ("5 of 5", "n >= 11"),
    ),
    "alpha": (lambda: certify(alpha=2.0), BadInput, ("alpha", "2.0", "try 0.001")),
    "bound": (lambda: certify(bound="cohn"), UnknownName, ("'cohn'", "'cohen'")),
    "exit": (lambda: smoothed(exit="exac"), UnknownName, ("'exac'", "'exact'")),
    "exit of one model": (lambda: smoothed(exit="exact"), BadInput, ("WeightedEnsemble",)),
    "batch size": (
        lambda: smoothed(batch_size=0).certify(GOOD, n=200),
        BadInput,
        ("batch_size", "got 0"),
    ),
    "NaN model": (lambda: certify(model=NotANumber()), ContractError, ("NaN", "weights")),
    "no tensor": (lambda: certify(model=Text()), ContractError, ("a str", "logits")),
    "batch norm": (
        lambda: certify(model=batch_norm()),
        ContractError,
        ("evaluation mode", "batch"),
    ),
    "dropout": (lambda: certify(model=dropout()), ContractError, ("evaluation mode", "dropout")),
    "batch norm inside": (
        lambda: certify(model=sween.WeightedEnsemble([net(), batch_norm()])),
        ContractError,
        ("evaluation mode", "batch"),
    ),
    "no members": (lambda: sween.WeightedEnsemble([]), BadInput, ("members", "got none")),
    "weights off the simplex": (
        lambda: sween.WeightedEnsemble([net(), net()], [0.5, 0.6]),
        BadInput,
        ("weights", "1.1", "divide"),
    ),
    "negative weight": (
        lambda: sween.WeightedEnsemble([net(), net()], [1.5, -0.5]),
        BadInput,
        ("weights", "-0.5", "non-negative"),
    ),
    "three weights for two": (
        lambda: sween.WeightedEnsemble([net(), net()], [0.5, 0.3, 0.2]),
        BadInput,
        ("weights", "(3,)", "as many"),
    ),
    "members of different classes": (
        lambda: certify(model=sween.WeightedEnsemble([net(), net(9)])),
        ContractError,
        ("(500, 9)", "num_classes"),
    ),
    "their probabilities": (
        lambda: sween.WeightedEnsemble([net(), net(9)])(GOOD),
        ContractError,
        ("10 classes", "got 9", "same data set"),
    ),
    "weigh: method": (lambda: solve(method="convx"), UnknownName, ("'convx'", "'convex'")),
    "weigh: labels": (lambda: solve(labels=torch.tensor([0, 10])), BadInput, ("0 to 10",)),
    "weigh: one label": (lambda: solve(labels=torch.tensor([0])), BadInput, ("labels", "(1,)")),
    "weigh: samples": (lambda: solve(samples=0), BadInput, ("samples", "got 0")),
    "weigh: NaN": (lambda: solve(images=with_pixel(float("nan"))), BadInput, ("images", "NaN")),
    "weigh: sigma": (lambda: solve(sigma=-1.0), BadInput, ("sigma", "-1.0")),
    "train: sigma": (
        lambda: sween.TrainConfig(dataset="digits", arch="digits-mlp", sigma=-1.0),
        BadInput,
        ("sigma", "-1.0", "try"),
    ),
    "data set": (lambda: load_dataset("digit"), UnknownName, ("'digit'", "'digits'")),
    "settings: n0": (lambda: CertifySettings(n0=0, n=200), BadInput, ("n0", "got 0")),
    "no runs": (lambda: load_members([]), BadInput, ("runs", "got none")),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments_from_python(name: str) -> None:
    call, kind, parts = BAD[name]
    with pytest.raises(BadInput) as caught:
        call()
    message = str(caught.value)
    assert type(caught.value) is kind
    assert len(message.splitlines()) == 1
    assert "; " in message, "no fix"
    for part in parts:
        assert part in message, message


SETTINGS: list[tuple[dict[str, Any], str]] = [
    *(({"alpha": alpha}, f"alpha: .*{alpha}") for alpha in (0, 1, -1.0, 5e-100)),
    ({"n": 0}, "n: .*got 0"),
    ({"n": 9}, "9 of 9 votes only show p > 0.4642.*n >= 10"),
    ({"n": 10, "bound": "two-class"}, "10 of 10 votes.*n >= 11"),
    ({"n0": 10**12}, "n0: .*at most 1000000000"),
    ({"seed": 10**19}, "seed"),
    ({"sampling": "fixd"}, "'fixd'.*'fixed'"),
    ({"sampling": "decide"}, "radii: .*pass a radius"),
    ({"sampling": "decide", "radii": (-0.5,)}, "radii: .*-0.5"),
    ({"sampling": "decide", "radii": (0.5, float("nan"))}, "radii: .*nan"),
    ({"sampling": "decide", "radii": (0.5,), "bound": "two-class"}, "cohen with decide"),
    ({"radii": (0.5,)}, "radii: .*sampling decide"),
    ({"sampling": "tolerance"}, "pass `tolerance`"),
    ({"sampling": "tolerance", "tolerance": 5.0}, "got 5.*0.05 is 5%"),
    ({"tolerance": 0.1}, "expected sampling tolerance, got fixed"),
    ({"sampling": "budget"}, "pass `budget`"),
]


@pytest.mark.parametrize(("options", "said"), SETTINGS, ids=lambda case: str(case)[:60])
def test_settings_that_certify_nothing(options: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        certify(**options) if "seed" in options else CertifySettings(**{"n": 200} | options)


@pytest.mark.parametrize("values", [("papr",), ("paper", 0.0), ("paper", 1.0), ("paper", 0.9, 1.0)])
def test_exits_that_cannot_be(values: tuple[Any, ...]) -> None:
    with pytest.raises(BadInput, match=str(values[-1])):
        sween.ExitPolicy(*values)


def test_a_well_made_model_is_not_refused(made: Made) -> None:
    loaded = sween.load(made.ensemble)
    modules = [net(), nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Dropout(), net())]
    for model in (*modules, loaded):
        assert smoothed(model).certify(GOOD[0], n=200)
