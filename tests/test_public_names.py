"""The public names: few, importable, documented, and called by keyword."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import sween

NAMES = [name for name in sween.__all__ if not name.startswith("__")]
CONSTANTS = {"ABSTAIN"}


def test_there_are_at_most_twenty() -> None:
    assert len(NAMES) <= 20
    assert len(set(sween.__all__)) == len(sween.__all__)


def test_a_star_import_gives_exactly_these() -> None:
    namespace: dict[str, Any] = {}
    exec("from sween import *", namespace)
    assert set(namespace) - {"__builtins__"} == set(sween.__all__)


def test_the_version_is_public() -> None:
    assert "__version__" in sween.__all__
    assert all(part.isdigit() for part in sween.__version__.split(".")[:2])


@pytest.mark.parametrize("name", sorted({*NAMES} - CONSTANTS))
def test_every_name_is_documented(name: str) -> None:
    documentation = getattr(sween, name).__doc__  # inspect.getdoc would fall back to a base class
    assert documentation
    assert not documentation.startswith(f"{name}("), "a dataclass's generated docstring"


@pytest.mark.parametrize("name", [name for name in NAMES if inspect.isclass(getattr(sween, name))])
def test_public_methods_are_documented(name: str) -> None:
    thing = getattr(sween, name)
    methods = [
        (method, function)
        for method, function in inspect.getmembers(thing, inspect.isfunction)
        if not method.startswith("_") and function.__module__.startswith("sween")
    ]
    trivial = {"as_dict", "forward"}
    missing = [method for method, function in methods if not inspect.getdoc(function)]
    assert set(missing) <= trivial


@pytest.mark.parametrize(
    ("function", "positional"),
    [
        (sween.solve_weights, ["ensemble", "images", "labels"]),
        (sween.SmoothedClassifier.__init__, ["self", "model"]),
        (sween.SmoothedClassifier.certify, ["self", "images"]),
        (sween.SmoothedClassifier.predict, ["self", "images"]),
        (sween.create_model, ["name"]),
        (sween.load_dataset, ["name", "root"]),
        (sween.train, ["config", "dataset", "out"]),
        (sween.TrainConfig.__init__, ["self"]),
        (sween.Certificate.__init__, ["self"]),
    ],
)
def test_only_the_data_are_positional(function: Callable[..., Any], positional: list[str]) -> None:
    parameters = inspect.signature(function).parameters.values()
    by_position = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
    assert by_position == positional
    assert all(p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) for p in parameters), (
        "*args or **kwargs hide misspelt names"
    )


def test_certify_and_predict_have_the_documented_defaults() -> None:
    certify = inspect.signature(sween.SmoothedClassifier.certify).parameters
    assert {name: certify[name].default for name in ("n0", "n", "alpha", "seed")} == {
        "n0": None,  # the sampling strategy's own
        "n": 100_000,
        "alpha": 0.001,
        "seed": None,
    }
    predict = inspect.signature(sween.SmoothedClassifier.predict).parameters
    assert {name: predict[name].default for name in ("n", "alpha", "seed")} == {
        "n": 100,
        "alpha": 0.001,
        "seed": None,
    }
