"""What a training run may be asked to do, and the learning rate it then uses."""

import dataclasses
import itertools
import math
from typing import Any

import pytest

from sween.errors import BadInput, UnknownName
from sween.training import OBJECTIVES, TrainConfig
from sween.training.image_weights import ImageWeighing
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
        ("temperature", (0.0, -1.0, math.nan, math.inf)),
        ("matrix_rate", (0.0, -1.0, math.nan, math.inf)),
        ("momentum", (-0.1, 1.0, 1.5, math.nan)),
        ("weight_decay", (-1e-9, math.nan, math.inf)),
        ("copies", (0, -1)),
        ("warmup", (-0.1, 1.0)),
        ("label_smoothing", (-0.1, 1.0)),
        ("average", (-0.1, 1.0, math.nan)),
        ("regulariser", (-1.0, math.nan, math.inf)),
        ("regulariser_from", (-1,)),
        ("attack_from", (-1, 6)),
        ("attack_steps", (-1,)),
        ("attack_size", (0.0, -1.0, math.nan, math.inf)),
        ("drop_below", (-0.1, 1.1, math.nan)),
        ("reweigh_from", (-1, 6)),
        ("reweigh_every", (-1,)),
        ("votes", (0, -1)),
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
        ("optimizer", "moun", "muon"),
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


def test_attacks_are_the_published_ones_unless_given() -> None:
    """Of `acr` from the published share of the epochs on, of `catrs` from the start."""
    published = {0.25: (3, 0.25, 60, 0.5), 0.5: (6, 0.25, 70, 0.4), 1.0: (4, 0.5, 60, 0.4)}
    for sigma, (steps, size, start, drop) in published.items():
        made = config(method="acr", sigma=sigma, epochs=150)
        before, after = made.options_at(start - 1), made.options_at(start)
        assert (before.attack_steps, after.attack_steps, after.attack_size) == (0, steps, size)
        weighing = made.weighing
        assert weighing is not None
        assert dataclasses.astuple(weighing) == (start, drop, 100, 10)
        taught = config(method="catrs", sigma=sigma)
        assert (taught.options_at(0).attack_steps, taught.options_at(0).attack_size) == (4, 1.0)
        assert taught.weighing is None
        assert (made.noisy_copies, taught.noisy_copies) == (4, 4)
    assert [config(method="catrs", sigma=s).regulariser_weight for s in (0.25, 0.5, 1.0)] == [
        0.5,
        1.0,
        2.0,
    ]
    assert config(method="acr", epochs=30).attack_start == 12
    late = config(method="catrs", attack_from=4, attack_steps=2, attack_size=0.5, epochs=6)
    assert [late.options_at(epoch).attack_steps for epoch in (3, 4, 5)] == [0, 2, 2]
    assert late.options_at(4).attack_size == 0.5
    assert config(method="acr", attack_steps=0).options_at(99).attack_steps == 0
    assert config(method="acr", drop_below=0.0, reweigh_every=0).weighing is None
    assert config().options_at(0).attack_steps == 0


@pytest.mark.parametrize("optimizer", [None, "sgd"])
def test_a_rate_of_muon_needs_muon(optimizer: str | None) -> None:
    with pytest.raises(BadInput, match=r"^matrix_rate: expected no value, .* got 0\.01 with sgd"):
        config(optimizer=optimizer, matrix_rate=0.01)
    assert config(optimizer="muon").peak_matrix_rate == 0.02
    assert config(optimizer="muon", matrix_rate=0.01).peak_matrix_rate == 0.01


@pytest.mark.parametrize("name", ["attack_from", "attack_steps", "attack_size", "drop_below"])
def test_a_sigma_without_published_attack_needs_every_value(name: str) -> None:
    given: dict[str, Any] = {"attack_from": 3, "attack_steps": 2, "attack_size": 0.2}
    given |= {"drop_below": 0.3, "reweigh_from": 3}
    config(method="acr", sigma=0.3, **given)
    del given[name]
    with pytest.raises(BadInput, match=rf"^{name}: .* sigma 0\.3, got none; pass `{name}`"):
        config(method="acr", sigma=0.3, **given)


@pytest.mark.parametrize(
    ("method", "name", "value"),
    [
        ("gaussian", "attack_steps", 3),
        ("macer", "votes", 10),
        ("catrs", "drop_below", 0.4),
        ("acr", "teacher", "runs/teacher"),
        ("macer", "reweigh_every", 0),
        ("consistency", "temperature", 0.8),
        ("gaussian", "regulariser", 5.0),
        ("acr", "regulariser_from", 3),
    ],
)
def test_an_option_of_another_method_is_refused(method: str, name: str, value: object) -> None:
    with pytest.raises(BadInput, match=rf"^{name}: expected no value, as {method} .*`{name}`"):
        config(method=method, **{name: value})


def test_consistency_attacks_the_noise_only_if_asked_to() -> None:
    assert config(method="consistency").options_at(99).attack_steps == 0
    given: dict[str, Any] = {"attack_from": 3, "attack_steps": 2, "attack_size": 0.25}
    own = config(method="consistency", **given)
    found = [own.options_at(epoch) for epoch in (2, 3)]
    assert [(one.attack_steps, one.attack_size) for one in found] == [(0, 0.0), (2, 0.25)]
    assert own.passes_at(3) == 2 * (1 + 2 * 2 / 3)
    for name in given:
        rest = {key: value for key, value in given.items() if key != name}
        with pytest.raises(BadInput, match=rf"^{name}: expected a value"):
            config(method="consistency", **rest)
    assert config(method="consistency", attack_steps=0).options_at(99).attack_steps == 0


def test_consistency_weighs_images_only_if_asked_to() -> None:
    assert config(method="consistency").weighing is None
    assert config(method="consistency", drop_below=0.0, reweigh_every=0).weighing is None
    own = config(method="consistency", drop_below=0.4, reweigh_from=3)
    assert own.weighing == ImageWeighing(3, 0.4, 100, 0)
    often = config(method="consistency", reweigh_every=2, reweigh_from=3, votes=7)
    assert often.weighing == ImageWeighing(3, 0.0, 7, 2)
    with pytest.raises(BadInput, match=r"^reweigh_from: expected a value, as consistency"):
        config(method="consistency", drop_below=0.4)
    for name in ("reweigh_from", "votes"):
        with pytest.raises(BadInput, match=rf"^drop_below: .*with `{name}`.*leave out `{name}`"):
            config(method="consistency", **{name: 3})


def test_what_an_attack_costs() -> None:
    acr = config(method="acr", epochs=10, attack_from=5, attack_steps=6)
    assert (acr.passes_at(0), acr.passes_at(5)) == (4, 4 * (1 + 6 * 2 / 3))
    catrs = config(method="catrs", attack_from=5, attack_steps=3)
    assert (catrs.passes_at(0), catrs.passes_at(5)) == (4, 4 * (2 + 3 * 2 / 3))
    assert config(method="consistency").passes_at(0) == 2
