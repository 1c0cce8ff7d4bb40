"""The demo's claim: the weighted ensemble beats the best of its candidates."""

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from sween.data import load_dataset
from sween.demo import run_demo
from sween.evaluation import average_certified_radius, by_model
from sween.runs import verify_folder

SEEDS = range(5)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_ensemble_exceeds_the_upper_envelope_over_five_seeds(tmp_path: Path) -> None:
    """The mean gain in ACR over the best candidate has a 95% t-interval above zero."""
    gains = []
    for seed in SEEDS:
        result = run_demo(tmp_path / str(seed), seed=seed, quiet=True)
        models = by_model(result.certificates)
        *candidates, ensemble = (average_certified_radius(rows) for rows in models.values())
        assert result.ensemble.name == list(models)[-1]
        gains.append(ensemble - max(candidates))
        assert ensemble > max(candidates), f"seed {seed}"
    interval = stats.t.interval(0.95, len(gains) - 1, loc=np.mean(gains), scale=stats.sem(gains))
    assert interval[0] > 0, gains


def test_a_small_demo_runs_to_the_end_and_verifies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sween.demo.CANDIDATES", (("digits-mlp", 3, 0.05), ("digits-conv", 3, 0.1)))
    first = run_demo(tmp_path / "a", samples=200, positions=list(range(8)), quiet=True)
    assert [row.model for row in first.certificates[:3]] == ["digits-mlp", "digits-conv", "SWEEN-2"]
    assert verify_folder(first.folder).images == 8
    labels = load_dataset("digits").test.labels[:8].tolist()
    assert [row.label for row in first.certificates if row.model == "SWEEN-2"] == labels
    again = run_demo(tmp_path / "b", samples=200, positions=list(range(8)), quiet=True)
    assert [row.estimation_counts for row in again.certificates] == [
        row.estimation_counts for row in first.certificates
    ]
