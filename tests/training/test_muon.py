"""Muon compared with a slow transcription, and with SGD for what it leaves to it."""

import copy
import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sween.training import many, muon
from sween.training.config import TrainConfig
from sween.training.muon import Muon, matrices_of, orthogonalise
from sween.training.optimizers import make_optimizer
from sween.training.trainer import Trainer
from tests.training.datasets import few_digits

RATE, MATRIX_RATE, MOMENTUM, DECAY = 0.1, 0.02, 0.9, 5e-4


class Network(nn.Module):
    """Filter banks that are tall, wide and of equal shape; a shared one, and one that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tall = nn.Conv2d(1, 16, 3, bias=False)
        self.norm = nn.BatchNorm2d(16)
        self.wide, self.equal = (nn.Conv2d(16, 16, 3, padding=1) for _ in range(2))
        self.frozen = nn.Conv2d(16, 16, 1).requires_grad_(False)
        self.hidden = nn.Linear(16, 8)
        self.last = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.tall(x)))
        x = self.equal(torch.relu(self.wide(self.frozen(x))))
        logits: torch.Tensor = self.last(torch.relu(self.hidden(x.mean(dim=(2, 3)))))
        return logits


def config(**fields: Any) -> TrainConfig:
    wanted: dict[str, Any] = {
        "optimizer": "muon",
        "learning_rate": RATE,
        "momentum": MOMENTUM,
    } | fields
    return TrainConfig(dataset="digits", arch="digits-mlp", sigma=0.5, **wanted)


def backward(model: nn.Module, step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    images = torch.randn(6, 1, 8, 8, generator=generator)
    loss = nn.functional.cross_entropy(model(images), torch.arange(6) % 3)
    model.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]


def slowly_orthogonal(matrix: torch.Tensor) -> torch.Tensor:
    """Each singular value through the published quintic, five times."""
    left, values, right = torch.linalg.svd(matrix.double(), full_matrices=False)
    values = values / values.square().sum().sqrt()
    for _ in range(5):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    product: torch.Tensor = left @ torch.diag(values) @ right
    return product


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("nesterov", [True, False])
def test_steps_are_those_of_a_transcription(nesterov: bool, layout: torch.memory_format) -> None:
    model = Network()
    slow = copy.deepcopy(model)
    model.to(memory_format=layout)  # type: ignore[call-overload]
    optimizer = make_optimizer(config(nesterov=nesterov), model, rate=None)
    names = ["tall.weight", "wide.weight", "equal.weight", "hidden.weight"]
    momenta: dict[str, torch.Tensor] = {}
    for step in range(4):
        rate = RATE * (1 - step / 5)
        for group in optimizer.param_groups:
            group["lr"] = rate
        backward(model, step)
        optimizer.step()
        backward(slow, step)
        with torch.no_grad():
            for name, weight in slow.named_parameters():
                if weight.grad is None:
                    continue
                gradient = weight.grad
                if name not in names:
                    gradient = gradient + DECAY * weight
                momenta[name] = MOMENTUM * momenta.get(name, torch.zeros(())) + gradient
                direction = gradient + MOMENTUM * momenta[name] if nesterov else momenta[name]
                if name not in names:
                    weight.sub_(rate * direction)
                    continue
                rows, columns = len(weight), weight[0].numel()
                weight.mul_(rows**0.5 / weight.norm())
                tall = (rows / columns) ** 0.5 if rows > columns else 1
                orthogonal = slowly_orthogonal(direction.flatten(1)) * tall
                orthogonal = orthogonal.view(weight.shape).float()
                weight.sub_(rate * MATRIX_RATE / RATE * orthogonal)
    for (name, weight), expected in zip(model.named_parameters(), slow.parameters(), strict=True):
        torch.testing.assert_close(weight, expected, rtol=1e-3, atol=2e-5, msg=name)
    torch.testing.assert_close(model.frozen.weight, Network().frozen.weight)


def test_all_else_moves_as_sgd_moves_it() -> None:
    """To rounding, with and without decay of norms and biases."""
    for decay_norms in (True, False):
        model, other = Network(), Network()
        by_muon = make_optimizer(config(decay_norms=decay_norms), model, rate=None)
        sgd = make_optimizer(config(optimizer="sgd", decay_norms=decay_norms), other, rate=None)
        assert isinstance(sgd, torch.optim.SGD)
        for step in range(3):
            for name, own in model.named_parameters():  # the same gradients, though weights part
                own.grad = (
                    torch.randn(own.shape, generator=torch.Generator().manual_seed(step))
                    if name.split(".")[0] != "frozen"
                    else None
                )
            for own, one in zip(other.parameters(), model.parameters(), strict=True):
                own.grad = None if one.grad is None else one.grad.clone()
            by_muon.step()
            sgd.step()
        moved = {id(one) for one in matrices_of(model)}
        for own, one in zip(model.parameters(), other.parameters(), strict=True):
            if id(own) not in moved:
                torch.testing.assert_close(own, one, rtol=1e-6, atol=1e-7)
            elif own.requires_grad:
                assert not torch.equal(own, one)


@pytest.mark.parametrize("shape", [(16, 9), (9, 16), (64, 576), (1, 9), (16, 16)], ids=str)
@pytest.mark.parametrize("low_precision", [False, True])
def test_singular_values_come_near_one(shape: tuple[int, int], low_precision: bool) -> None:
    rows, columns = shape
    matrices = torch.randn(3, rows, columns, generator=torch.Generator().manual_seed(1))
    found = orthogonalise(1e-3 * matrices, low_precision=low_precision)
    assert found.dtype == torch.float32
    scale = max(1, rows / columns) ** 0.5
    for one, matrix in zip(found, matrices, strict=True):
        values = torch.linalg.svdvals(one) / scale
        # The smallest singular values of a square matrix may be too small for five iterations.
        assert values.max() < 1.3
        assert values[: max(1, len(values) // 2)].min() > 0.6
        expected = slowly_orthogonal(matrix).float() * scale
        apart = (one - expected).norm() / expected.norm()
        assert apart < (0.05 if low_precision else 1e-4)


@pytest.mark.parametrize("low_precision", [False, True])
def test_matrices_of_several_widths_share_a_batch(
    monkeypatch: pytest.MonkeyPatch, low_precision: bool
) -> None:
    shapes = [(16, 9), (16, 27), (16, 144), (9, 40), (16, 144), (144, 16), (1, 5)]
    generator = torch.Generator().manual_seed(3)
    matrices = [torch.randn(shape, generator=generator) for shape in shapes]
    batches: list[tuple[int, ...]] = []
    alone = muon.orthogonalise

    def counted(several: torch.Tensor, *, low_precision: bool) -> torch.Tensor:
        batches.append(tuple(several.shape))
        return alone(several, low_precision=low_precision)

    monkeypatch.setattr(muon, "orthogonalise", counted)
    found = muon.orthogonalise_all(matrices, low_precision=low_precision)
    assert sorted(batches) == [(1, 1, 5), (2, 9, 40), (4, 16, 144)]
    for matrix, one in zip(matrices, found, strict=True):
        expected = alone(matrix[None], low_precision=low_precision)[0]
        tolerance = 0.02 if low_precision else 1e-5
        torch.testing.assert_close(one, expected, rtol=tolerance, atol=tolerance)


def test_a_gradient_may_lie_in_memory_in_another_order() -> None:
    model, other = Network(), Network()
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizers = [make_optimizer(config(), one, rate=None) for one in (model, other)]
    for network, optimizer in zip((model, other), optimizers, strict=True):
        backward(other, 0)
        for own, one in zip(network.parameters(), other.parameters(), strict=True):
            own.grad = None if one.grad is None else one.grad.contiguous()
        optimizer.step()
    for one, expected in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, expected, rtol=1e-5, atol=1e-6)


def test_a_direction_depends_on_no_scale() -> None:
    matrices = torch.randn(2, 8, 24, generator=torch.Generator().manual_seed(2))
    one, other = orthogonalise(matrices), orthogonalise(1e4 * matrices)
    torch.testing.assert_close(one, other)
    assert orthogonalise(torch.zeros(1, 4, 4)).abs().max() == 0


def test_weights_keep_unit_rows_on_average() -> None:
    model = Network()
    optimizer = make_optimizer(config(matrix_rate=1e-6), model, rate=None)
    backward(model, 0)
    optimizer.step()
    for weight in matrices_of(model):
        assert float(weight.detach().norm()) == pytest.approx(len(weight) ** 0.5, rel=1e-4)


def test_the_last_layer_and_frozen_weights_are_left_out() -> None:
    model = Network()
    names = {id(own): name for name, own in model.named_parameters()}
    assert [names[id(own)] for own in matrices_of(model)] == [
        "tall.weight",
        "wide.weight",
        "equal.weight",
        "hidden.weight",
    ]
    assert matrices_of(nn.Linear(3, 2)) == []
    computed = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
    assert matrices_of(nn.Sequential(computed, nn.Linear(4, 2))) == []
    twice = nn.Linear(4, 4)
    assert len(matrices_of(nn.Sequential(twice, twice, nn.Linear(4, 2)))) == 1


class HeadFirst(nn.Module):
    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(4, num_classes)
        self.inside, self.norm = nn.Linear(64, 4), nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.inside(x.flatten(1))))  # type: ignore[no-any-return]


def head_first(num_classes: int) -> nn.Module:
    return HeadFirst(num_classes)


def test_the_last_layer_is_the_one_that_runs_last(tmp_path: Path) -> None:
    model = HeadFirst(3).train()
    (found,) = matrices_of(model, torch.zeros(2, 1, 8, 8))
    assert found is model.inside.weight
    assert model.training
    assert int(model.norm.get_buffer("num_batches_tracked")) == 0
    assert not any(part._forward_hooks for part in model.modules())
    own = dataclasses.replace(config(), arch=f"{__name__}:head_first")
    trainer = Trainer(own, few_digits(50), tmp_path, device=torch.device("cpu"))
    moved = [group for group in trainer.optimizer.param_groups if group["matrices"]]
    assert [own.shape for own in moved[0]["params"]] == [(4, 64)]


def test_a_network_of_one_layer_trains_by_sgd() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    optimizer = make_optimizer(config(), model, rate=None)
    assert isinstance(optimizer, Muon)
    assert [group["matrices"] for group in optimizer.param_groups] == [False]
    backward(model, 0)
    optimizer.step()


def test_a_rate_on_the_device_is_read_at_each_step() -> None:
    """As a captured step does; the same steps as with numbers."""
    model, other = Network(), Network()
    rate = torch.tensor(RATE)
    captured = make_optimizer(config(), model, rate=rate)
    assert isinstance(captured, Muon)
    captured.low_precision = False
    plain = make_optimizer(config(), other, rate=None)
    for step, own in enumerate((0.1, 0.05)):
        rate.fill_(own)
        for group in plain.param_groups:
            group["lr"] = own
        for network, optimizer in ((model, captured), (other, plain)):
            backward(network, step)
            optimizer.step()
    for one, expected in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, expected)


def test_processes_with_muon_need_devices_of_one_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their products could round differently, and the weights drift apart."""
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    kinds = {"processor": "one", "gpu": "NVIDIA H200"}
    monkeypatch.setattr(many, "describe_environment", lambda: kinds)
    # Of the process's own GPU: a machine may have several kinds.
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: kinds["gpu"])
    assert many.same_everywhere([config(optimizer=None)], cpu) == {"device": "cpu", "candidates": 1}
    on_cpu, on_gpu = (many.same_everywhere([config()], device) for device in (cpu, cuda))
    kinds |= {"processor": "other", "gpu": "NVIDIA H100"}
    assert many.same_everywhere([config()], cpu) != on_cpu
    assert many.same_everywhere([config()], cuda) != on_gpu
