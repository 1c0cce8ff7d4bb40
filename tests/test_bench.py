"""The benchmark measures what it reports, in the same run as the reference."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from sween.bench import (
    REFERENCE_BATCH,
    BenchResult,
    OtherArithmetic,
    calibrate_batch_norm,
    faster_arithmetics,
    measure,
    reference_votes,
    to_table,
)
from sween.bench.matrix_rate import matrix_rate
from sween.bench.published_loop import reference_batch
from sween.ensemble import WeightedEnsemble
from sween.models import count_matrix_flops, create_model
from sween.models.activation_ranges import measure_ranges
from sween.models.cifar_resnet import CifarResNet
from sween.models.normalize import Normalize
from tests.cli.command import assert_refused, succeed
from tests.engine.kernels.networks import with_statistics

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


def test_the_reference_loop_takes_fewer_large_images() -> None:
    assert reference_batch(torch.zeros(3, 64, 64)) == REFERENCE_BATCH
    assert reference_batch(torch.zeros(3, 224, 224)) < REFERENCE_BATCH


def _measured(model: nn.Module, **options: Any) -> BenchResult:
    common: dict[str, Any] = {"name": "some", "sigma": 0.5, "num_classes": 10}
    return measure(model, IMAGE, seconds=0.02, rounds=1, **common, **options)


def _digits(name: str, seed: int = 0) -> nn.Module:
    return create_model(name, num_classes=10, image_shape=(1, 8, 8), seed=seed)


def test_the_share_of_the_matrix_rate() -> None:
    networks = [_digits("digits-mlp"), _digits("digits-conv")]
    result = _measured(WeightedEnsemble(networks))
    flops = sum(count_matrix_flops(network, (1, 8, 8)) for network in networks)
    assert result.flops_per_second == pytest.approx(flops * result.samples_per_second)
    assert result.matmul_flops_per_second == matrix_rate(torch.device("cpu"), "float32")
    assert result.share_of_matmul is not None
    assert 0 < result.share_of_matmul < 1.5
    assert result.first_vote_seconds > result.prepare_seconds > 0
    assert f"{100 * result.share_of_matmul:.0f}%" in to_table([result])


def test_with_an_exit_the_share_is_known_if_members_cost_the_same() -> None:
    alike = [_digits("digits-mlp"), _digits("digits-mlp", seed=1)]
    different = [_digits("digits-mlp"), _digits("digits-conv")]
    for networks, known in ((alike, True), (different, False)):
        with torch.no_grad():
            for parameter in networks[0].parameters():
                parameter.mul_(4.0)
        result = _measured(WeightedEnsemble(networks, [0.99, 0.01]), exit="exact")
        assert (result.share_of_matmul is not None) is known
        if known:
            flops = count_matrix_flops(networks[0], (1, 8, 8)) * result.evaluations_per_second
            assert result.flops_per_second == pytest.approx(flops)


class NearlyTied(nn.Module):
    """Two classes a little apart: bfloat16 ties them, and a tie goes to the first."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 2, bias=False)
        nn.init.ones_(self.linear.weight)
        with torch.no_grad():
            self.linear.weight[1] += 1e-4

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x.flatten(1).abs())  # type: ignore[no-any-return]


def test_another_arithmetic_is_tried_where_its_products_are_faster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rates = {"float32": 1e9, "bfloat16": 2e9}
    monkeypatch.setattr("sween.bench.throughput.matrix_rate", lambda _, name: rates[name])
    result = measure(
        NearlyTied(), IMAGE, name="tied", sigma=0.5, num_classes=2, seconds=0.02, rounds=1
    )
    assert result.precision == "float32"
    (other,) = result.others
    assert other.precision == "bfloat16"
    assert other.votes_changed == other.votes_compared == 1000
    assert other.speedup == pytest.approx(other.samples_per_second / result.samples_per_second)
    rates["bfloat16"] = 0.5e9
    assert _measured(_digits("digits-mlp")).others == []
    rates["bfloat16"] = 2e9
    assert _measured(_digits("digits-mlp"), precision="float32").others == [], "it was chosen"


@pytest.mark.parametrize("bfloat16", [False, True])
@pytest.mark.parametrize(("bytes_too", "ranges"), [(True, True), (True, False), (False, True)])
def test_integers_are_tried_where_bytes_are_fast(
    *, bytes_too: bool, ranges: bool, bfloat16: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = {"float32": 1e9, "bfloat16": 2e9 if bfloat16 else 1e9}
    monkeypatch.setattr("sween.bench.throughput.matrix_rate", lambda _, name: rates[name])
    monkeypatch.setattr("sween.bench.throughput.has_bytes", lambda _: bytes_too)
    # Compiling takes long, and the outputs are those of the simulation.
    own = "sween.engine.quantized_on_cpu"
    monkeypatch.setattr("sween.engine.in_integers.has_bytes", lambda _: True)
    monkeypatch.setattr(f"{own}.compile_locked", lambda function, options: function)
    monkeypatch.setattr(f"{own}._Packed", lambda conv: conv)
    monkeypatch.setattr(f"{own}.CompiledQuantizedResNet._convolve", lambda _, conv, x: conv(x))
    monkeypatch.setattr("sween.bench.throughput.VOTES_COMPARED", 40)
    for module in ("throughput", "published_loop"):
        monkeypatch.setattr(f"sween.bench.{module}.reference_batch", lambda _: 10)
    normalize, image = Normalize([0.5] * 3, [0.25] * 3), torch.rand(3, 32, 32)
    network = with_statistics(nn.Sequential(normalize, CifarResNet(8, 10)))
    if ranges:
        measure_ranges(network, [image[None]])
    result = measure(
        *(network, image),
        name="small",
        sigma=0.1,
        num_classes=10,
        seconds=0.01,
        rounds=1,
        forward_rows=20,
    )
    wanted = ["int8"] * (bytes_too and ranges) + ["bfloat16"] * bfloat16
    assert [other.precision for other in result.others] == wanted
    assert {other.votes_compared for other in result.others} <= {40}


def test_a_faster_arithmetic_is_named_with_what_it_changes() -> None:
    other = OtherArithmetic(
        precision="bfloat16",
        samples_per_second=3.0,
        speedup=1.5,
        votes_compared=1000,
        votes_changed=7,
    )
    result = dataclasses.replace(_measured(_digits("digits-mlp")), others=[other])
    (line,) = faster_arithmetics([result])
    assert "1.50 times" in line
    assert "precision bfloat16" in line
    assert "7 of 1,000 votes" in line
    compiled = dataclasses.replace(other, precision="bfloat16+compiled")
    (line,) = faster_arithmetics([dataclasses.replace(result, others=[compiled])])
    assert "(precision bfloat16 and compile)" in line
    slower = dataclasses.replace(other, speedup=0.9)
    assert not list(faster_arithmetics([dataclasses.replace(result, others=[slower])]))
    both = dataclasses.replace(result, others=[slower, other, other])
    assert len(list(faster_arithmetics([both]))) == 2


def test_the_matrix_rate_is_that_of_the_arithmetic() -> None:
    device = torch.device("cpu")
    assert matrix_rate(device, "float32+compiled") > 1e8
    with pytest.raises(AttributeError):
        matrix_rate(device, "float31")


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


def test_the_verb_takes_any_network_at_any_size(tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    names = "resnet20 tests.models.factories:pooled tests.models.factories:seven_classes"
    succeed(
        f"bench {names} --image-size 12 --seconds 0.01 --rounds 1 --forward-rows 10 --device cpu "
        f"--out {out}"
    )
    rows = json.loads(out.read_text())["results"]
    assert [row["image_shape"] for row in rows] == [[3, 12, 12]] * 3
    assert all(row["samples_per_second"] > 0 and row["share_of_matmul"] > 0 for row in rows)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("tests.models.factories:with_classes", "forward pass over float32 images (N, 3, 32, 32)"),
        ("tests.models.factories:not_a_module", "torch.nn.Module"),
        ("digits-mlp --image-size 0", "--image-size"),
        ("digits-sween3-gaussian-sigma0.50 --image-size 9", "--image-size: expected 8"),
        ("tests.models.factories:pooled --exit exact", "an ensemble among the models"),
        ("tests.models.factories:twice", "model output"),
    ],
)
def test_what_cannot_be_measured_is_named(line: str, said: str, tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    assert_refused(f"bench {line} --seconds 0.01 --rounds 1 --out {out}", said, watched=(tmp_path,))
