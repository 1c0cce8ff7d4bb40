"""What a GPU asks of a training step, as far as a CPU can show it: fixed shapes, no waiting."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from sween.data.dataset import StoredPixels
from sween.errors import BadInput
from sween.training import OBJECTIVES, TrainConfig, train
from sween.training.step import StreamedInputs
from sween.training.trainer import Trainer

from .datasets import config, few_digits, photos


def test_candidates_with_other_options_compile_fixed_shapes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All candidates share one function, and by default a second shape makes it take any."""
    free: list[str] = []
    compiled: list[str] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        compiled.append("")
        for node in graph.graph.find_nodes(op="placeholder"):
            value = node.meta["example_value"]
            shape = value.shape if isinstance(value, torch.Tensor) else (value,)
            if any(isinstance(size, torch.SymInt | torch.SymFloat) for size in shape):
                free.append(f"{node.name}: {tuple(shape)}")
        return graph.forward

    compile_by_torch = torch.compile
    torch._dynamo.reset()

    def compile_by_backend(function: Any, *, mode: str, **options: Any) -> Any:
        return compile_by_torch(function, backend=backend, **options)

    monkeypatch.setattr(torch, "compile", compile_by_backend)
    device, data = torch.device("cpu"), few_digits(40)
    losses: dict[str, list[float]] = {"compiled": [], "plain": []}
    for fields in (
        {"method": "consistency"},
        {"method": "temporal"},
        {"method": "consistency", "regulariser": 5.0, "radius_gain": 0.9, "radius_gain_from": 0},
        {"method": "gaussian", "batch_size": 8},
    ):
        wanted = config(**fields)
        step = Trainer(wanted, data, tmp_path / "never", device=device).step
        remembers = fields["method"] == "temporal" or wanted.radius_gain
        step.memory = torch.rand(40, 10) if remembers else None
        step.options = wanted.options_at(0)
        draws = (*step._draw(), None, None)
        losses["plain"].append(step._forward(*draws)[0].item())
        step._compile()
        losses["compiled"].append(step._forward(*draws)[0].item())
    torch._dynamo.reset()
    assert len(compiled) == 4
    assert free == []
    assert losses["compiled"] == pytest.approx(losses["plain"], rel=1e-5)


class NothingWaits(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses what a GPU would have to finish its work for, which a captured step may not do."""

    WAITS = (
        torch.ops.aten._local_scalar_dense.default,
        torch.ops.aten.is_nonzero.default,
        torch.ops.aten.nonzero.default,
        torch.ops.aten.masked_select.default,
        torch.ops.aten.equal.default,
    )

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func not in self.WAITS, f"{func} waits for the device"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("data", [few_digits, photos])
@pytest.mark.parametrize("optimizer", ["sgd", "muon"])
@pytest.mark.parametrize("method", OBJECTIVES)
def test_nothing_in_a_step_waits_for_the_device(
    tmp_path: Path, method: str, optimizer: str, data: Callable[[int], Any]
) -> None:
    dataset, arch = data(60), "resnet20" if data is photos else "digits-conv"
    fields: dict[str, Any] = {"regulariser": 2.0} if OBJECTIVES[method].regularisers else {}
    if OBJECTIVES[method].attack is not None:
        fields |= {"attack_from": 0, "attack_steps": 2, "attack_size": 0.25}
    if not OBJECTIVES[method].weighs_images:
        fields |= {"radius_gain": 0.9, "radius_gain_from": 0}
    if OBJECTIVES[method].taught:
        before = config(dataset=dataset.name, arch=arch, epochs=1, batch_size=8)
        train(before, dataset, tmp_path / "teacher", quiet=True)
        fields |= {"teacher": str(tmp_path / "teacher"), "votes": 2}
    wanted = TrainConfig(
        dataset=dataset.name,
        arch=arch,
        sigma=0.5,
        method=method,
        optimizer=optimizer,
        epochs=1,
        batch_size=8,
        average=0.9,
        **fields,
    )
    trainer = Trainer(wanted, dataset, tmp_path / "run", device=torch.device("cpu"))
    trainer._recall()
    trainer._ask_teacher()
    trainer.step.options = wanted.options_at(0)
    trainer.step.inputs.picks.copy_(torch.arange(8))
    for _ in range(2):  # the first step makes the momentum
        with NothingWaits():  # type: ignore[no-untyped-call]
            trainer.step()
    assert trainer.step.loss.isfinite()


def test_pixels_above_white_are_refused_before_the_first_step(tmp_path: Path) -> None:
    data = few_digits(40)
    pixels = data.train.pixels.load_all().clone()
    pixels[7, 0, 3, 3] = 17
    bright = dataclasses.replace(data.train, pixels=StoredPixels(pixels))
    dataset = dataclasses.replace(data, train=bright)
    refused = pytest.raises(BadInput, match="pixels from 0 to 16, the value of white, got 17")
    with refused:
        train(config(), dataset, tmp_path, quiet=True)
    streamed = StreamedInputs(
        bright, torch.device("cpu"), crop_padding=None, resized_crops=False, batch_size=4
    )
    steps = streamed.feed(torch.arange(8).view(2, 4), seed=0)
    next(steps)
    with refused:
        next(steps)
