"""Training with an attack on the noise, recorded as a CUDA graph. Skipped where there is no GPU."""

import functools
from pathlib import Path
from typing import Any

import pytest
import torch

from sween.training import TrainConfig, narrow_convolution, train
from sween.training.trainer import Trainer
from tests.training.datasets import few_digits, measured, photos

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
    pytest.mark.filterwarnings(
        "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"
    ),
]
METHODS: dict[str, dict[str, Any]] = {
    "acr": {"drop_below": 0.0, "reweigh_every": 0, "optimizer": "muon"},
    "catrs": {"votes": 20},
    "temporal": {"attack_size": 0.25, "radius_gain": 0.9, "radius_gain_from": 1},
}


def _config(**fields: Any) -> TrainConfig:
    shared: dict[str, Any] = {"dataset": "image_folder", "arch": "resnet20", "batch_size": 32}
    return TrainConfig(**shared | {"sigma": 0.25, "epochs": 4, "learning_rate": 0.02} | fields)


@pytest.mark.parametrize("channels", [16, 32])
def test_convolutions_of_few_channels_count_exactly(channels: int) -> None:
    narrow_convolution.check_kernels(channels, torch.device("cuda"))


@pytest.mark.parametrize("channels", [16, 32])
@pytest.mark.parametrize("count", [1, 500])
def test_convolutions_of_few_channels_are_those_of_torch(channels: int, count: int) -> None:
    size = narrow_convolution.SIZES[channels]
    weight = torch.randn(channels, channels, 3, 3, device="cuda")
    images, vector = (
        torch.randn(count, channels, size, size, device="cuda")
        .bfloat16()
        .contiguous(memory_format=torch.channels_last)
        for _ in range(2)
    )
    found = []
    for convolve, dtype in (
        (narrow_convolution.narrow_convolution, torch.bfloat16),
        (functools.partial(torch.nn.functional.conv2d, padding=1), torch.float64),
    ):
        own = images.to(dtype).requires_grad_()
        rounded = weight.bfloat16().to(torch.promote_types(dtype, torch.float32)).requires_grad_()
        outputs = convolve(own, rounded)
        gradients = torch.autograd.grad(outputs, (own, rounded), vector.to(dtype))
        found.append([each.detach().double() for each in (outputs, *gradients)])
    for ours, exact in zip(*found, strict=True):
        assert float((ours - exact).norm()) < 0.005 * float(exact.norm())


def test_training_uses_the_kernels(tmp_path: Path) -> None:
    trainer = Trainer(_config(), photos(96), tmp_path, device=torch.device("cuda"))
    kinds = [type(part).__name__ for part in trainer.model.modules()]
    assert kinds.count("_Narrow") == 11


@pytest.mark.parametrize("method", METHODS)
def test_recorded_steps_with_an_attack_are_the_plain_ones_to_bfloat16(
    tmp_path: Path, method: str
) -> None:
    """Before the attack starts and after: the step is recorded twice."""
    device, dataset = torch.device("cuda"), photos(96)
    fields = {"method": method, "attack_from": 2, "attack_steps": 2, **METHODS[method]}
    if method == "catrs":
        train(_config(epochs=1), dataset, tmp_path / "teacher", device=device, quiet=True)
        fields["teacher"] = str(tmp_path / "teacher")
    for fast in (True, False):
        out = tmp_path / str(fast)
        trainer = Trainer(_config(**fields), dataset, out, device=device, fast=fast)
        assert list(trainer.run())
    curves = [torch.tensor(measured(tmp_path / name))[:, 1] for name in ("True", "False")]
    torch.testing.assert_close(*curves, rtol=0.1, atol=0.02)


def test_digits_train_in_recorded_steps(tmp_path: Path) -> None:
    """Their white is 16, of which the pixels are checked before, not in the step."""
    trainer = Trainer(
        TrainConfig(dataset="digits", arch="digits-conv", sigma=0.5, epochs=2),
        few_digits(60),
        tmp_path,
        device=torch.device("cuda"),
    )
    assert list(trainer.run())
    assert trainer.step._graph is not None


def test_images_are_weighed_between_recorded_steps(tmp_path: Path) -> None:
    weighing = {"reweigh_from": 1, "reweigh_every": 2, "drop_below": 0.01, "votes": 20}
    asked = _config(method="acr", attack_from=1, attack_steps=1, **weighing)
    trainer = Trainer(asked, photos(96), tmp_path, device=torch.device("cuda"))
    assert len(list(trainer.run())) == 12
    weights = trainer.per_image["weights"]
    assert weights.is_cuda
    assert weights.max() > 0
