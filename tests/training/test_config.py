"""What a training run may be asked to do, and the learning rate it then uses."""

import dataclasses
import itertools
import math
from typing import Any

import pytest

from sween.errors import BadInput, UnknownName
from sween.training import OBJECTIVES, TrainConfig
from sween.training.config import SCHEDULES
from sween.training.loop import learning_rate


def config(**fields: Any) -> TrainConfig:
    defaults: dict[str, Any] = {"dataset": "digits", "arch": "digits-mlp", "sigma": 0.25}
    return TrainConfig(**defaults | fields)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("sigma", (-0.1, math.nan, math.inf, -math.inf)),
        ("epochs", (0, -1)),
        ("batch_size", (0, -5)),
        ("learning_rate", (0.0, -0.1, math.nan, math.inf)),
        ("momentum", (-0.1, 1.0, 1.5, math.nan)),
        ("weight_decay", (-1e-9, math.nan, math.inf)),
    ],
)
def test_an_unusable_number_is_named(field: str, values: tuple[float, ...]) -> None:
    for value in values:
        with pytest.raises(BadInput, match=f"^{field}: expected .*, got {value}; ") as caught:
            config(**{field: value})
        assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("field", "value", "nearest"),
    [("method", "gausian", "gaussian"), ("schedule", "onecycle", "one-cycle")],
)
def test_an_unknown_choice_gets_the_nearest(field: str, value: str, nearest: str) -> None:
    with pytest.raises(UnknownName, match=f"did you mean '{nearest}'"):
        config(**{field: value})


@pytest.mark.parametrize(
    "fields",
    [
        {"sigma": 0},
        {"epochs": 1},
        {"batch_size": 1},
        {"learning_rate": 1e-12},
        {"momentum": 0},
        {"weight_decay": 0},
        {"seed": -1},
        *({"method": method} for method in OBJECTIVES),
        *({"schedule": schedule} for schedule in SCHEDULES),
    ],
    ids=str,
)
def test_the_limits_themselves_are_usable(fields: dict[str, Any]) -> None:
    assert config(**fields).as_dict() == config().as_dict() | fields


def test_a_config_cannot_be_changed_and_has_every_field_in_its_dict() -> None:
    made = config()
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.sigma = 1.0  # type: ignore[misc]
    assert set(made.as_dict()) == {field.name for field in dataclasses.fields(TrainConfig)}
    assert TrainConfig(**made.as_dict()) == made


@pytest.mark.parametrize(
    ("progress", "share"),
    [
        (0.0, 0.1),
        (0.1, 0.55),
        (0.2, 1.0),
        (0.6, 0.5),
        (0.4, 0.5 + 0.5 * math.sqrt(0.5)),
        (1.0, 0.0),
    ],
)
def test_one_cycle_values(progress: float, share: float) -> None:
    rate = learning_rate(config(learning_rate=0.4), progress)
    assert rate == pytest.approx(0.4 * share, abs=1e-15)


def test_one_cycle_rises_then_falls_without_jumps() -> None:
    made = config(learning_rate=1.0)
    rates = [learning_rate(made, step / 1000) for step in range(1001)]
    assert rates[:201] == sorted(rates[:201])
    assert rates[200:] == sorted(rates[200:], reverse=True)
    assert max(rates) == 1.0
    assert min(rates[:-1]) > 0
    assert max(abs(b - a) for a, b in itertools.pairwise(rates)) < 0.005


def test_constant_is_constant() -> None:
    made = config(schedule="constant", learning_rate=0.03)
    assert {learning_rate(made, step / 10) for step in range(11)} == {0.03}
