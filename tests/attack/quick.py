"""Small attacks on the digits' ensemble and on a linear model, and certificates of the latter."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import sween
from sween.attack import AttackOutcome, AttackSettings, attack_dataset
from sween.data import Dataset, load_dataset
from sween.ensemble import LoadedEnsemble
from sween.records import Certificate
from sween.runs import Shard
from sween.sampling import CertifySettings
from sween.smoothing import SmoothedClassifier
from tests.attack.linear import Linear, dataset, loaded, smoothed

QUICK = AttackSettings(attack="pgd", eps=(0.25, 0.5), samples=16, steps=5, n=500, batch_size=4)


def digits() -> tuple[LoadedEnsemble, SmoothedClassifier]:
    ensemble = sween.load("digits-sween3-gaussian-sigma0.50")
    return ensemble, SmoothedClassifier(ensemble, sigma=0.5, num_classes=10, name=ensemble.name)


def attack(
    out: Path, settings: AttackSettings, positions: range = range(10), shard: Shard | None = None
) -> list[AttackOutcome]:
    ensemble, classifier = digits()
    data = load_dataset("digits")
    return attack_dataset(
        ensemble, data, positions, settings, out, classifier=classifier, shard=shard, quiet=True
    )


def attack_lines(
    out: Path, model: Linear, data: Dataset, settings: AttackSettings, count: int, **options: Any
) -> list[AttackOutcome]:
    """An attack on a linear model, on its first images."""
    ensemble = loaded(model)
    options |= {"classifier": smoothed(ensemble), "quiet": True}
    return attack_dataset(ensemble, data, range(count), settings, out, **options)


def certificates(scale: float) -> tuple[Linear, Mapping[int, Certificate]]:
    model = Linear(1)
    data = dataset(model, 20, seed=1)
    rows = smoothed(loaded(model)).certify(
        data.test.images(range(20)), settings=CertifySettings(n=10_000), labels=data.test.labels
    )
    assert all(row.correct for row in rows)
    return model, {row.index: dataclasses.replace(row, radius=scale * row.radius) for row in rows}
