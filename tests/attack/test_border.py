"""Images so near the border between two classes that votes can hardly tell."""

import dataclasses
from pathlib import Path

import pytest
import torch

from sween.attack import AttackSettings, empirical_accuracy, verify_attacks
from sween.data import Dataset
from sween.data.dataset import StoredPixels
from sween.evaluation import certified_accuracy
from sween.sampling import CertifySettings
from tests.attack.linear import Linear, dataset, loaded, smoothed
from tests.attack.quick import attack_lines


def _near_the_border(distance: float, count: int) -> tuple[Linear, Dataset]:
    """Images so near the border that votes can hardly tell."""
    model = Linear(3)
    data = dataset(model, count, seed=3)
    with torch.no_grad():
        images = data.test.images(range(count))
        gap = distance - model.signed_distance(images)
        moved = images + gap.view(-1, 1, 1, 1) * model.normal
    split = dataclasses.replace(
        data.test,
        pixels=StoredPixels((moved * 255).round().to(torch.uint8)),
        labels=torch.ones(count, dtype=torch.long),
    )
    return model, dataclasses.replace(data, test=split)


@pytest.mark.parametrize("version", ["rand", "standard"])
def test_images_that_autoattack_passes_over_are_attacked_too(tmp_path: Path, version: str) -> None:
    """Its first noisy look takes images near the border to be wrong, and gives them back."""
    model, data = _near_the_border(0.02, 12)
    settings = AttackSettings(attack=version, eps=(0.3,), samples=16, steps=10, n=10_000)
    outcomes = attack_lines(tmp_path, model, data, settings, 12)
    right = [row for row in outcomes if row.clean_prediction == row.label]
    assert len(right) >= 6
    assert all(row.distance > 0 for row in right)
    assert all(row.outcome == "broken" for row in right)


def test_ddn_goes_on_to_the_balls_border_where_the_nearest_image_abstains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Judged once, at the border between the classes, most answers abstain."""
    monkeypatch.setattr("sween.runs.attack_settings.TRIES", 1)
    monkeypatch.setattr("sween.attack.batch.TRIES", 1)
    monkeypatch.setattr("sween.attack.scoring.TRIES", 1)
    model = Linear(3)
    data = dataset(model, 20, seed=3)
    furthest = float(model.signed_distance(data.test.images(range(20))).detach().abs().max())
    eps = (0.01, 1.3 * furthest)
    settings = AttackSettings(attack="ddn", eps=eps, samples=64, steps=40, n=1_000)
    outcomes = attack_lines(tmp_path, model, data, settings, 20)
    far = [row for row in outcomes if row.eps > 0.01]
    assert all(row.outcome == "broken" for row in far)
    pushed = [row for row in far if row.distance > 1.25 * furthest]
    assert len(pushed) >= 5
    assert all(row.distance <= row.eps and row.tries == 3 for row in far)
    assert all(row.judge_alpha == row.alpha / 3 for row in far)
    assert verify_attacks(tmp_path).rows == 40


def test_what_a_certificate_answers_stands_where_few_votes_decline(tmp_path: Path) -> None:
    """Certified with many votes, judged with few: no image drops out of attacked accuracy."""
    model, data = _near_the_border(0.02, 8)
    rows = smoothed(loaded(model)).certify(
        data.test.images(range(8)), settings=CertifySettings(n=100_000), labels=data.test.labels
    )
    certified = {row.index: row for row in rows}
    assert sum(row.correct for row in rows) >= 4
    settings = AttackSettings(attack="pgd", eps=(1e-4,), samples=16, steps=3, n=200)
    outcomes = attack_lines(tmp_path, model, data, settings, 8, certificates=certified)
    for row in outcomes:
        if certified[row.index].correct:
            assert row.outcome in ("robust", "abstained")
    assert empirical_accuracy(outcomes) >= certified_accuracy(rows, [1e-4])[0]
