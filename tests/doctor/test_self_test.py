"""Each check passes here, and fails if what it checks is wrong."""

import pkgutil
from typing import Any

import pytest
import torch

from sween.doctor.self_test import CHECKS
from sween.errors import CheckFailed

UNSAFE = 1 - 1e-6


@pytest.mark.parametrize("name", CHECKS)
def test_passes(name: str) -> None:
    outcome = CHECKS[name]()
    assert outcome == "ok" or outcome.startswith("skipped: ")


@pytest.mark.parametrize(
    ("check", "broken", "how"),
    [
        ("bounds and radii", "sween.bounds.upper_bound", lambda real: UNSAFE * real),
        ("bounds and radii", "sween.bounds.upper_bound", lambda real: real / UNSAFE),
        ("bounds and radii", "sween.bounds.radius_cohen", lambda real: real / UNSAFE),
        ("random words", "sween.philox.random_words", lambda real: [word ^ 1 for word in real]),
        ("random words", "sween.seeding.derive_key", lambda real: real + 1),
        ("votes", "sween.engine.noise.noisy_copies", lambda real: 0.9 * real),
        ("votes", "sween.engine.noise.noisy_copies", lambda real: real + torch.rand_like(real)),
        ("zoo model", "sween.ensemble.WeightedEnsemble.forward", lambda real: 2 * real),
    ],
)
def test_finds_what_is_broken(
    check: str, broken: str, how: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, _, name = broken.rpartition(".")
    owner = pkgutil.resolve_name(place)
    real = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *args, **options: how(real(*args, **options)))
    with pytest.raises(CheckFailed):
        CHECKS[check]()
