"""Kernels on a selection of a batch, whose size the host does not read."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from sween.engine import Preparation
from sween.engine.forward import FixedShapeForward, refuse_non_finite
from sween.engine.kernels import FusedResNet, Selection
from sween.engine.member import Member
from sween.engine.voters import Voters
from sween.ensemble import ExitPolicy, WeightedEnsemble
from sween.errors import ContractError
from sween.models.cifar_resnet import CifarResNet
from sween.models.normalize import Normalize
from tests.engine.kernels.emulation import Emulator
from tests.engine.kernels.networks import of_whole_numbers
from tests.stepping import finish

SOME = torch.tensor([False, True, True, False, True, False, True])


def _members() -> list[nn.Module]:
    """Small networks that agree in part on `_blurred` images."""
    members: list[nn.Module] = []
    for seed in range(3):
        torch.manual_seed(100)
        network = CifarResNet(8, 10)
        torch.manual_seed(seed)
        with torch.no_grad():
            for weight, other in zip(
                network.parameters(), CifarResNet(8, 10).parameters(), strict=True
            ):
                weight.add_(0.1 * other if weight.ndim > 1 else 0)
            network.fc.weight.mul_(10)
        members.append(nn.Sequential(Normalize([0.5] * 3, [0.25] * 3), network).eval())
    return members


def _blurred(count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(count, 3, 4, 4, generator=generator)
    noise = torch.randn(count, 3, 32, 32, generator=generator)
    return torch.nn.functional.interpolate(images, size=32, mode="bilinear") * 2 + 0.2 * noise


def _images(count: int) -> torch.Tensor:
    return torch.rand(count, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("wanted", "at_once"),
    [(SOME, 1), (SOME, 3), (SOME, 7), (SOME, 100), (SOME & False, 3), (SOME | True, 3)],
)
@torch.no_grad()
def test_selected_images_match_the_full_batch(
    any_emulator: Emulator, wanted: torch.Tensor, at_once: int
) -> None:
    fused, images = FusedResNet(of_whole_numbers(8, seed=1), any_emulator), _images(7)
    before, everything = any_emulator.faults, fused(images)
    some = fused.selected(images, Selection.of(wanted), at_once=at_once)
    assert torch.equal(some[wanted], everything[wanted])
    assert not some[~wanted].any()
    assert any_emulator.faults == before


class _OnlySelected:
    """A `Launch` that checks that only the selected images are computed."""

    def __init__(self, emulator: Emulator) -> None:
        self.shape, self._emulator, self.blocks = emulator.shape, emulator, 0

    def __call__(self, stage: int, blocks: int, arguments: Any) -> None:
        if stage == 2:
            assert isinstance(arguments[-2], torch.Tensor)
            left = int(arguments[-2]) - arguments[-1] if arguments[-2].numel() else blocks
            self.blocks += max(0, min(blocks, left))
            for value in arguments[5:7]:
                value.fill_(float("nan"))
        self._emulator(stage, blocks, arguments)
        if stage == 2:
            computed = ~arguments[5].flatten(1).isnan().any(1)
            assert computed.tolist() == [i < left for i in range(blocks)]


@torch.no_grad()
def test_only_selected_images_are_computed(emulator: Emulator) -> None:
    launch = _OnlySelected(emulator)
    fused = FusedResNet(of_whole_numbers(8, seed=1), launch)
    fused.selected(_images(7), Selection.of(SOME), at_once=3)
    assert launch.blocks == int(SOME.sum())


class _NoQuestions(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses what would make the host wait for the device."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        name = str(func)
        asks = any(word in name for word in ("nonzero", "_local_scalar", "masked_select", "item"))
        masks = name.startswith(("aten.index.", "aten.index_put")) and any(
            each is not None and each.dtype == torch.bool for each in args[1]
        )
        if asks or masks:
            raise AssertionError(f"{name} waits for the device")
        return func(*args, **(kwargs or {}))


def _panel(policy: ExitPolicy) -> Voters:
    return Voters(
        WeightedEnsemble(_members(), [0.4, 0.35, 0.25]),
        name="ensemble",
        forward=FixedShapeForward(10, 4),
        policy=policy,
        preparation=Preparation("float16", compile=True),
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["exact", "paper"])
@pytest.mark.usefixtures("with_kernels")
@torch.inference_mode()
def test_an_exit_never_reads_the_number_of_rows_left(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    panel, noisy = _panel(ExitPolicy(name, threshold=0.8)), _blurred(6)
    for member in panel.members:
        member.refresh(noisy[:4])
        assert member.fused is not None
    with _NoQuestions():  # type: ignore[no-untyped-call]
        votes = finish(panel.vote(noisy))
    assert len(set(votes.evaluations[0].tolist())) > 1
    # Gathered for each member, as for networks without custom kernels.
    monkeypatch.setattr(Member, "fused", None)
    gathered = finish(panel.vote(noisy))
    assert torch.equal(votes.labels, gathered.labels)
    assert torch.equal(votes.evaluations, gathered.evaluations)
    asking = _NoQuestions()  # type: ignore[no-untyped-call]
    with pytest.raises(AssertionError, match="waits"), asking:
        finish(panel.vote(noisy))


@pytest.mark.usefixtures("with_kernels")
@torch.inference_mode()
def test_non_finite_selected_outputs_are_refused() -> None:
    panel, images = _panel(ExitPolicy("exact")), _images(4)
    member = panel.members[0]
    member.refresh(images)
    images[2] = float("nan")
    finish(panel.forward.where(member, images, torch.tensor([True, True, False, True])))
    refuse_non_finite(panel.forward.all_finite(images.device))
    finish(panel.forward.where(member, images, torch.tensor([False, False, True, False])))
    with pytest.raises(ContractError, match="finite"):
        refuse_non_finite(panel.forward.all_finite(images.device))
