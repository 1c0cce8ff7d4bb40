"""What a training run may be asked to do, and the learning rate it then uses."""

import dataclasses
import itertools
import math
from typing import Any

import pytest

from sween.errors import BadInput, UnknownName
from sween.training import OBJECTIVES, TrainConfig
from sween.training.schedules import SCHEDULES, learning_rate


def config(**fields: Any) -> TrainConfig:
    defaults: dict[str, Any] = {"dataset": "digits", "arch": "digits-mlp", "sigma": 0.25}
    return TrainConfig(**defaults | fields)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("sigma", (-0.1, math.nan, math.inf, -math.inf)),
        ("noise_factor", (0.0, -1.0, math.nan, math.inf)),
        ("epochs", (0, -1)),
        ("batch_size", (0, -5)),
        ("learning_rate", (0.0, -0.1, math.nan, math.inf)),
        ("momentum", (-0.1, 1.0, 1.5, math.nan)),
        ("weight_decay", (-1e-9, math.nan, math.inf)),
        ("copies", (0, -1)),
        ("warmup", (-0.1, 1.0)),
        ("label_smoothing", (-0.1, 1.0)),
        ("average", (-0.1, 1.0, math.nan)),
        ("regulariser", (-1.0, math.nan, math.inf)),
        ("regulariser_from", (-1,)),
    ],
)
def test_an_unusable_number_is_named(field: str, values: tuple[float, ...]) -> None:
    for value in values:
        with pytest.raises(BadInput, match=f"^{field}: expected .*, got {value}; ") as caught:
            config(**{field: value})
        assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("field", "value", "nearest"),
    [
        ("method", "gausian", "gaussian"),
        ("schedule", "onecycle", "one-cycle"),
        ("store", "float1", "float16"),
        ("epoch", 3, "epochs"),
    ],
)
def test_an_unknown_name_gets_the_nearest(field: str, value: object, nearest: str) -> None:
    with pytest.raises(UnknownName, match=f"did you mean '{nearest}'"):
        TrainConfig.from_dict(config().as_dict() | {field: value})


@pytest.mark.parametrize(
    "fields",
    [
        {"sigma": 0, "epochs": 1, "batch_size": 1, "learning_rate": 1e-12, "seed": -1},
        {"momentum": 0, "weight_decay": 0},
        *({"method": method} for method in OBJECTIVES),
        *({"schedule": schedule} for schedule in SCHEDULES if schedule != "step"),
        {"schedule": "step", "milestones": [50, 75]},
        {"average": 0.999, "warmup": 0.0, "copies": 3},
    ],
    ids=str,
)
def test_the_limits_themselves_are_usable(fields: dict[str, Any]) -> None:
    made = TrainConfig.from_dict(config().as_dict() | fields)
    assert made.as_dict() == config().as_dict() | fields


def test_a_config_cannot_be_changed_and_has_every_field_in_its_dict() -> None:
    made = config(augmentation="crop-flip")
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.sigma = 1.0  # type: ignore[misc]
    assert set(made.as_dict()) == {field.name for field in dataclasses.fields(TrainConfig)}
    assert TrainConfig.from_dict(made.as_dict()) == made
    plain = config()
    assert made.as_dict().keys() - plain.as_dict().keys() == {"augmentation"}, "only if chosen"
    assert TrainConfig.from_dict(plain.as_dict()) == plain


@pytest.mark.parametrize(("schedule", "last"), [("one-cycle", 0.00125), ("cosine", 3.8553e-6)])
def test_rates_rise_then_fall_without_jumps(schedule: str, last: float) -> None:
    made = config(learning_rate=1.0, schedule=schedule, epochs=100)
    rates = [learning_rate(made, step, 10) for step in range(1000)]
    assert [rates[step] for step in (0, 100, 200, 600)] == pytest.approx([0.1, 0.55, 1.0, 0.5])
    assert rates[-1] == pytest.approx(last, rel=1e-3)
    assert rates[:201] == sorted(rates[:201])
    assert rates[200:] == sorted(rates[200:], reverse=True)
    assert max(rates) == pytest.approx(1.0)
    assert min(rates) > 0
    assert max(abs(b - a) for a, b in itertools.pairwise(rates)) < 0.005


def test_step_and_constant_rates() -> None:
    made = config(schedule="step", milestones=(150, 300), epochs=400, learning_rate=0.01)
    rates = {epoch: learning_rate(made, epoch * 750, 750) for epoch in (0, 149, 150, 299, 300, 399)}
    expected = {0: 0.01, 149: 0.01, 150: 0.001, 299: 0.001, 300: 0.0001, 399: 0.0001}
    assert rates == pytest.approx(expected)
    made = config(schedule="step", milestones=(5,), epochs=10, learning_rate=0.4, warmup=0.2)
    warmed = [learning_rate(made, step, 10) for step in (0, 10, 20, 49, 50)]
    assert warmed == pytest.approx([0.04, 0.22, 0.4, 0.4, 0.04])
    constant = config(schedule="constant", learning_rate=0.03)
    assert {learning_rate(constant, step, 7) for step in range(11)} == {0.03}


@pytest.mark.parametrize(
    "fields",
    [
        {"schedule": "step"},
        {"milestones": (3,)},
        {"schedule": "step", "milestones": (5, 3)},
        {"schedule": "step", "milestones": (200,)},
    ],
)
def test_milestones_belong_to_step_and_rise(fields: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="milestones"):
        config(**fields)


def test_lambda_is_the_published_one_unless_given() -> None:
    published = {"macer": (12, 4, 12), "consistency": (20, 10, 10), "gaussian": (0, 0, 0)}
    for method, weights in published.items():
        for sigma, weight in zip((0.25, 0.5, 1.0), weights, strict=True):
            made = config(method=method, sigma=sigma, regulariser_from=0)
            assert made.regulariser_weight == weight
    assert config(method="macer", sigma=0.3, regulariser=2.0).regulariser_weight == 2.0
    with pytest.raises(BadInput, match="regulariser"):
        config(method="macer", sigma=0.3)
    assert config(method="macer").noisy_copies == 16
    assert config(method="consistency").noisy_copies == 2


def test_lambda_waits_for_the_first_drop_where_it_is_published_so() -> None:
    drops: dict[str, Any] = {"schedule": "step", "milestones": (2, 4), "epochs": 6}
    made = config(method="macer", sigma=1.0, **drops)
    assert [made.options_at(epoch).regulariser for epoch in range(6)] == [0, 0, 12, 12, 12, 12]
    assert config(method="macer", sigma=0.5, **drops).options_at(0).regulariser == 4
    assert config(method="consistency", sigma=1.0).options_at(0).regulariser == 10
    with pytest.raises(BadInput, match=r"regulariser_from: .* no drop .*`regulariser_from`"):
        config(method="macer", sigma=1.0)
    own = config(method="macer", sigma=1.0, regulariser=3.0)
    assert own.options_at(0).regulariser == 3
    late = config(method="macer", sigma=1.0, regulariser_from=3, epochs=5)
    assert [late.options_at(epoch).regulariser for epoch in range(5)] == [0, 0, 0, 12, 12]


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("epochs", "3", "a whole number, got '3'"),
        ("epochs", True, "a whole number, got True"),
        ("copies", 1.5, "a whole number or nothing"),
        ("sigma", True, "a number, got True"),
        ("nesterov", 1, "true or false, got 1"),
        ("store", 16, "text, got 16"),
        ("milestones", 2, "a list of whole numbers, got 2"),
        ("milestones", [2.5], "a list of whole numbers"),
    ],
)
def test_a_value_of_another_kind_is_named(field: str, value: object, said: str) -> None:
    with pytest.raises(BadInput, match=f"^{field}: expected {said}") as caught:
        TrainConfig.from_dict(config().as_dict() | {field: value})
    assert len(str(caught.value).splitlines()) == 1
