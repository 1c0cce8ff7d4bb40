"""Bad arguments from Python: a BadInput of the right kind, in one line that names value and fix.

What one function alone checks is tested next to that function.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
import torch
from torch import nn

import sween
from sween.ensemble import load_members
from sween.errors import BadInput, ContractError, UnknownName
from sween.sampling import CertifySettings
from sween.smoothing import SmoothedClassifier
from tests.smoothing.small import ZOO, constant

GOOD = torch.full((2, 1, 8, 8), 0.5)


def net(classes: int = 10) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))


def smoothed(model: nn.Module | None = None, **options: Any) -> SmoothedClassifier:
    values = {"sigma": 0.5, "num_classes": 10} | options
    return SmoothedClassifier(net() if model is None else model, **values)


def certify(model: nn.Module | None = None, images: torch.Tensor = GOOD, **options: Any) -> object:
    return smoothed(model).certify(images, **{"n": 200} | options)


def on_device(device: Any) -> object:
    return SmoothedClassifier.load(ZOO, device=device)


def train(**options: Any) -> object:
    config = sween.TrainConfig(dataset="digits", arch="digits-mlp", sigma=0.5, epochs=1)
    return sween.train(**{"config": config, "dataset": None, "out": "unused"} | options)


def certify_dataset(**options: Any) -> object:
    values: dict[str, Any] = {"out": "unused", "n": 200, "quiet": True} | options
    return sween.certify_dataset(smoothed(), (GOOD, [0, 1]), **values)


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
        ("batch_size", 2.5, ("2.5",)),
        ("sigma", 10**400, ("try",)),
        *(("name", name, (repr(name),)) for name in (5, "", "\ud800")),
        ("member_names", 5, ("a list of names",)),
        ("member_names", ["a", 5], ("got 5",)),
        ("weightings", [1.0], ("weights by name", "a list")),
        ("weightings", {5: [1.0]}, ("got 5",)),
        ("other_exits", 5, ("a list", "an int")),
    ),
    (lambda: smoothed(exit=None), UnknownName, ("exit None", "available")),
    (lambda: smoothed(other_exits=[5]), UnknownName, ("exit 5", "available")),
    (lambda: smoothed(precision=None), UnknownName, ("None", "available")),
    (lambda: certify(bound=None), UnknownName, ("None", "available")),
    (lambda: certify(sampling=5), UnknownName, ("5", "available")),
    (lambda: sween.ExitPolicy("paper", threshold="a"), BadInput, ("exit threshold", "'a'")),  # type: ignore[arg-type]
    (lambda: sween.WeightedEnsemble(net()), ContractError, ("members", "put it in a list")),  # type: ignore[arg-type]
    (lambda: sween.load(None), BadInput, ("source", "None")),  # type: ignore[arg-type]
    (lambda: sween.load("a" * 5000), BadInput, ("source", "5,000 characters")),
    (lambda: sween.load_dataset(5), UnknownName, ("5", "available")),  # type: ignore[arg-type]
    *(
        (lambda device=device: on_device(device), BadInput, ("device", f"got {device}"))
        for device in ("tpu", "", 5.5, "mps", "cuda:99")
    ),
    (lambda: train(dataset=(GOOD, [0, 1])), BadInput, ("dataset", "a tuple")),
    (lambda: train(config={}), BadInput, ("config", "a TrainConfig", "a dict")),
    (lambda: certify_dataset(devices=["cuda:99"]), BadInput, ("devices", "cuda:99")),
    (lambda: certify_dataset(shard="1/2"), BadInput, ("shard", "a str")),
    (lambda: certify_dataset(pool=5), BadInput, ("pool", "an int")),
    *(
        (lambda own=own: certify_dataset(indices=own), BadInput, ("indices", "whole numbers"))
        for own in ([1.9], "01", [False, True], np.array([0.4, 1.6]))
    ),
    *refused_arguments(
        certify,
        ("images", GOOD * float("nan"), ("NaN",)),
        ("images", GOOD.to_sparse(), ("a dense tensor",)),
        ("images", GOOD.to("meta"), ("a dense tensor",)),
        ("alpha", 10**400, ("a number",)),
        ("settings", {}, ("a CertifySettings", "a dict")),
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
    (lambda: certify(sampling="decide", radii=[10**400]), BadInput, ("radii", "beyond float64")),
    (lambda: certify(sampling="budget", budget=10**400), BadInput, ("budget", "at most")),
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


@pytest.mark.parametrize("case", BAD, ids=lambda case: ascii(" ".join(case[2])))
def test_bad_arguments_are_one_line(
    case: Refusal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    call, kind, parts = case
    with pytest.raises(BadInput) as caught:
        call()
    message = str(caught.value)
    assert type(caught.value) is kind
    assert len(message.splitlines()) == 1
    assert "; " in message, "no fix"
    for part in parts:
        assert part in message, message
    assert not list(tmp_path.iterdir())


def test_arrays_of_the_other_byte_order_are_the_same_images() -> None:
    image = GOOD[0].numpy()
    first, second = (
        smoothed().predict_one(own, n=100, seed=1, indices=[0]).counts
        for own in (image, image.astype(">f4"))
    )
    assert first == second


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
