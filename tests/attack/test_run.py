"""Attacks on a data set: outcomes, alarms, resuming."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from sween.attack import (
    AttackOutcome,
    AttackSettings,
    SmoothedLogits,
    attack_dataset,
    decode_image,
    empirical_accuracy,
    pgd,
    verify_attacks,
)
from sween.attack.batch import attack_batch
from sween.data import load_dataset
from sween.errors import CheckpointError
from sween.evaluation import certified_accuracy
from sween.records import read_rows
from sween.runs import AttackRun
from sween.sampling import CertifySettings
from tests.attack.linear import Linear, dataset, loaded, smoothed
from tests.attack.quick import QUICK, attack_lines
from tests.attack.quick import attack as _attack
from tests.attack.quick import certificates as _certificates
from tests.attack.quick import digits as _digits


def _without_time(rows: list[AttackOutcome]) -> list[AttackOutcome]:
    return [dataclasses.replace(row, seconds=0) for row in rows]


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))]
)
@pytest.mark.parametrize("attack", ["pgd", "ddn"])
def test_attacked_accuracy_is_never_below_certified_accuracy(
    tmp_path: Path, attack: str, seed: int
) -> None:
    radii = (0.1, 0.25, 0.5, 0.75)
    settings = AttackSettings(
        attack=attack, eps=radii, samples=32, steps=20, n=2000, seed=seed, batch_size=8
    )
    positions = range(10 * seed, 10 * seed + 16)
    ensemble, classifier = _digits()
    data = load_dataset("digits")
    certificates = classifier.certify(
        data.test.images(positions),
        settings=CertifySettings(n=2000, seed=seed),
        labels=data.test.labels[list(positions)],
        indices=list(positions),
    )
    known = {row.index: row for row in certificates}
    options: dict[str, Any] = {"classifier": classifier, "certificates": known, "quiet": True}
    outcomes = attack_dataset(ensemble, data, positions, settings, tmp_path / "out", **options)
    assert not any(row.alarm for row in outcomes)
    assert any(row.outcome == "broken" for row in outcomes)
    before = 1.0
    for radius, certified in zip(radii, certified_accuracy(certificates, radii), strict=True):
        rows = [row for row in outcomes if row.eps == radius]
        assert all(row.distance <= radius for row in rows)
        assert certified <= empirical_accuracy(rows) <= before
        before = empirical_accuracy(rows)


@pytest.mark.parametrize(("scale", "least", "most"), [(1.0, 0, 0), (1.5, 19, 20)])
def test_the_alarm_is_raised_for_false_certificates_alone(
    tmp_path: Path, scale: float, least: int, most: int
) -> None:
    model, certificates = _certificates(scale)
    data = dataset(model, 20, seed=1)
    settings = AttackSettings(attack="ddn", eps=(2.0,), samples=64, n=10_000, batch_size=20)
    outcomes = attack_lines(tmp_path, model, data, settings, 20, certificates=certificates)
    alarms = [row for row in outcomes if row.alarm]
    assert least <= len(alarms) <= most
    assert sum(row.outcome == "broken" for row in outcomes) >= 19
    for row in alarms:  # what is kept is enough to replay it
        assert row.attacked_image is not None
        image = decode_image(row.attacked_image, (1, 4, 4))
        change = image - data.test.images([row.index])[0]
        assert float(change.norm()) == pytest.approx(row.distance, rel=1e-5)
        assert row.certified_radius is not None
        assert float(change.norm()) < row.certified_radius
        answer = smoothed(loaded(model)).predict_batch(
            image[None], n=row.n, alpha=row.judge_alpha, seed=row.judge_seed, indices=[row.index]
        )[0]
        assert (answer.counts, answer.prediction) == (row.counts, row.prediction)
    assert all(row.attacked_image is None for row in outcomes if not row.alarm)


def test_a_lucky_draw_is_not_a_break(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """AutoAttack judges by one noisy evaluation; what it returns is scored again with n votes."""

    def claim_success(
        surrogate: object, images: torch.Tensor, labels: torch.Tensor, **_: object
    ) -> torch.Tensor:
        return (images + 1e-4).clamp(0, 1)

    monkeypatch.setattr("sween.attack.batch.autoattack", claim_success)
    outcomes = _attack(tmp_path / "out", dataclasses.replace(QUICK, attack="rand"))
    assert {row.outcome for row in outcomes} <= {"robust", "wrong", "declined"}
    # Two attacks of AutoAttack and steps of our own, at two radii.
    assert all(row.distance > 0 and row.tries == 6 for row in outcomes if row.outcome == "robust")


def test_what_the_judge_does_not_confirm_goes_on_to_the_next_attack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Linear(1)
    asked: list[tuple[str, int]] = []

    def lucky_first(
        surrogate: object, images: torch.Tensor, labels: torch.Tensor, *, part: str, **_: object
    ) -> torch.Tensor:
        asked.append((part, len(images)))
        if part == "apgd-ce":
            return images + 1e-4
        side = (1 - 2 * labels).view(-1, 1, 1, 1)  # away from the class
        return (images + 2 * side * model.normal.detach()).clamp(0, 1)

    monkeypatch.setattr("sween.attack.batch.autoattack", lucky_first)
    settings = AttackSettings(attack="standard", eps=(1.5,), samples=4, n=10_000)
    outcomes = attack_lines(tmp_path, model, dataset(model, 12, seed=1), settings, 12)
    assert asked == [("apgd-ce", 12), ("fab-t", 12)]
    assert {row.outcome for row in outcomes} == {"broken"}
    assert {row.tries for row in outcomes} == {3}
    assert verify_attacks(tmp_path).broken == 12


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("attack", ["pgd", "ddn", "rand"])
def test_on_a_linear_model_attacked_accuracy_is_never_below_certified(
    tmp_path: Path, attack: str, seed: int
) -> None:
    model, radii = Linear(seed), (0.1, 0.2, 0.4, 0.6)
    data = dataset(model, 16, seed=seed)
    certificates = smoothed(loaded(model)).certify(
        data.test.images(range(16)), settings=CertifySettings(n=10_000), labels=data.test.labels
    )
    settings = AttackSettings(attack=attack, eps=radii, samples=16, steps=20, n=10_000, seed=seed)
    known = {row.index: row for row in certificates}
    outcomes = attack_lines(tmp_path, model, data, settings, 16, certificates=known)
    assert not any(row.alarm for row in outcomes)
    proven = certified_accuracy(certificates, radii)
    kept = [empirical_accuracy([row for row in outcomes if row.eps == eps]) for eps in radii]
    assert all(floor <= ceiling for floor, ceiling in zip(proven, kept, strict=True))
    # The border is straight, so that the attack comes near to what is proven.
    assert max(ceiling - floor for floor, ceiling in zip(proven, kept, strict=True)) <= 0.25


@pytest.mark.parametrize("version", ["rand", "standard"])
def test_autoattack_in_both_versions(tmp_path: Path, version: str) -> None:
    settings = AttackSettings(attack=version, eps=(2.0,), samples=2, n=500, batch_size=2)
    (outcome,) = _attack(tmp_path / "out", settings, range(1))
    assert outcome.attack == version
    assert outcome.outcome in ("broken", "abstained")
    assert 0 < outcome.distance <= 2


@pytest.mark.parametrize("version", ["rand", "standard"])
def test_autoattack_with_two_classes(tmp_path: Path, version: str) -> None:
    model = Linear(2)
    data = dataset(model, 3, seed=2)
    true = float(model.signed_distance(data.test.images(range(3))).detach().abs().max())
    settings = AttackSettings(attack=version, eps=(1.2 * true,), samples=16, n=2000)
    outcomes = attack_lines(tmp_path, model, data, settings, 3)
    assert [row.outcome for row in outcomes] == ["broken"] * 3


def test_a_stopped_attack_goes_on_to_the_same_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = _attack(tmp_path / "whole", QUICK)
    units = iter([True, False])
    own = attack_batch

    def stop_at_the_second(*arguments: object) -> list[AttackOutcome]:
        if not next(units):
            raise KeyboardInterrupt
        return own(*arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr("sween.attack.run.attack_batch", stop_at_the_second)
        with pytest.raises(KeyboardInterrupt):
            _attack(tmp_path / "stopped", QUICK)
    file = tmp_path / "stopped" / "attacks.jsonl"
    assert len(read_rows(file)) == 8
    file.write_bytes(file.read_bytes()[:-7])  # killed in the middle of a row
    assert _without_time(_attack(tmp_path / "stopped", QUICK)) == _without_time(whole)
    assert _attack(tmp_path / "stopped", QUICK) == AttackRun.read(tmp_path / "stopped").rows
    with pytest.raises(CheckpointError, match="another config"):
        _attack(tmp_path / "stopped", dataclasses.replace(QUICK, steps=6))


def test_memory_that_runs_out_halves_the_attackers_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = list[int]()

    def scarce(surrogate: SmoothedLogits, *arguments: object, **options: object) -> object:
        seen.append(surrogate.rows)
        if surrogate.rows > 1024:
            raise torch.OutOfMemoryError
        return pgd(surrogate, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("sween.attack.batch.pgd", scarce)
    outcomes = _attack(tmp_path / "out", QUICK, range(2))
    assert len(outcomes) == 4
    assert seen[:3] == [4096, 2048, 1024]
    assert {(row.gradients, row.surrogate_rows) for row in outcomes} == {("plain", 1024)}


def test_answers_at_all_radii_share_alpha(tmp_path: Path) -> None:
    """A false break at one radius would stay one at all larger ones."""
    outcomes = _attack(tmp_path / "out", dataclasses.replace(QUICK, alpha=0.01))
    attacked = [row for row in outcomes if row.tries]
    assert {row.judge_alpha for row in attacked} == {0.005}
    assert len({row.judge_seed for row in attacked}) == 2


def test_weights_keep_their_gradients_out_of_it(tmp_path: Path) -> None:
    ensemble, classifier = _digits()
    options: dict[str, Any] = {"classifier": classifier, "quiet": True}
    attack_dataset(ensemble, load_dataset("digits"), range(2), QUICK, tmp_path / "out", **options)
    assert all(part.requires_grad and part.grad is None for part in ensemble.parameters())
