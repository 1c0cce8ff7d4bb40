"""The benchmark measures what it reports, in the same run as the reference."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from sween.bench import REFERENCE_BATCH, calibrate_batch_norm, measure, reference_votes, to_table
from sween.ensemble import WeightedEnsemble
from sween.models import create_model
from tests.cli.command import succeed

IMAGE = torch.full((1, 8, 8), 128 / 255)


class Slow(nn.Module):
    """Counts its rows; the more of them in a batch, as in the reference loop, the slower."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.rows += len(x)
        return torch.stack([x.flatten(1).sum(1) - 32, 32 - x.flatten(1).sum(1)], dim=1)


def test_the_reference_loop_votes() -> None:
    model = Slow()
    counts = reference_votes(model, IMAGE, sigma=0.5, num_classes=2, batches=3)
    assert counts.sum() == 3 * REFERENCE_BATCH == model.rows
    assert counts.min() > 0


def test_an_untrained_deep_network_stays_within_float16() -> None:
    shape = (3, 32, 32)
    image = torch.rand(2, *shape)
    plain = create_model("resnet110", num_classes=10, image_shape=shape).eval()
    momenta = [part.momentum for part in plain.modules() if isinstance(part, nn.BatchNorm2d)]
    with torch.no_grad():
        assert float(plain(image).abs().max()) > torch.finfo(torch.float16).max
        model = calibrate_batch_norm(plain, shape)
        assert float(model(image).abs().max()) < 100
    assert not model.training
    assert momenta == [m.momentum for m in model.modules() if isinstance(m, nn.BatchNorm2d)]


def test_rates_and_their_ratio() -> None:
    members = [
        create_model("digits-mlp", num_classes=10, image_shape=(1, 8, 8), seed=s) for s in (0, 1)
    ]
    with torch.no_grad():  # sharp, so that the exit spares the light member often
        for parameter in members[0].parameters():
            parameter.mul_(4.0)
    result = measure(
        WeightedEnsemble(members, [0.99, 0.01]),
        IMAGE,
        name="two",
        sigma=0.5,
        num_classes=10,
        n=50_000,
        seconds=0.1,
        rounds=3,
        exit="exact",
    )
    assert result.members == 2
    assert len(result.rates) == 3
    own, reference = (np.median([pair[k] for pair in result.rates]) for k in (0, 1))
    assert result.samples_per_second == own
    assert result.ratio == pytest.approx(own / reference)
    assert result.seconds_per_certificate == pytest.approx(50_100 / own)
    assert own < result.evaluations_per_second < 2 * own
    assert (result.precision, result.exit, result.device) == ("float32", "exact", "cpu")
    assert result.memory_bytes > 0
    table = to_table([result])
    assert f"{own:,.0f}" in table
    assert f"{result.ratio:.2f}" in table


def test_the_verb(tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    said = succeed(
        "bench digits-mlp digits-sween3-gaussian-sigma0.50 --exit exact --seconds 0.05 --rounds 1 "
        f"--device cpu --out {out}"
    )
    content = json.loads(out.read_text())
    assert [row["model"] for row in content["results"]] == [
        "digits-mlp",
        "digits-sween3-gaussian-sigma0.50",
    ]
    assert [row["exit"] for row in content["results"]] == ["none", "exact"]
    assert content["environment"]["torch"] == torch.__version__
    for row in content["results"]:
        assert f"{row['samples_per_second']:,.0f}" in said
