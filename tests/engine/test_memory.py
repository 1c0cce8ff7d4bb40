"""Running out of memory halves the forward pass and starts the image again."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import sween
from sween.data import load_dataset
from sween.engine.engine import VoteEngine
from sween.engine.votes import Tally
from sween.errors import BadInput, ContractError
from sween.interleave import Steps
from sween.models.device import is_out_of_memory
from sween.runs import verify_folder
from sween.sampling import CertifySettings
from sween.seeding import NOISE_BLOCK
from sween.smoothing import SmoothedClassifier, pipeline
from tests.certifying import certify_into
from tests.smoothing.small import PROBED, SETTINGS
from tests.smoothing.small import counts as _counts
from tests.smoothing.small import images as _images


class _SmallMemory(nn.Module):
    """Runs out of memory on more than `room` rows, after some passes that fitted."""

    def __init__(self, room: int, fits: int = 0) -> None:
        super().__init__()
        self.room, self.fits = room, fits

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) > self.room:
            if self.fits == 0:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
            self.fits -= 1
        total = x.flatten(1).sum(1)
        return torch.stack([total - 32, 32 - total], dim=1)


def _limited(room: int, fits: int = 0, forward_rows: int = NOISE_BLOCK) -> SmoothedClassifier:
    return SmoothedClassifier(
        _SmallMemory(room, fits), sigma=0.5, num_classes=2, forward_rows=forward_rows
    )


@pytest.mark.parametrize("fits", [0, PROBED + 4])
def test_out_of_memory_halves_the_forward_pass_and_starts_the_image_again(fits: int) -> None:
    """At the start or in the middle of an image: all votes come from the final shape."""
    images = _images(2)
    smoothed = _limited(30, fits)
    rows = smoothed.certify(images, settings=SETTINGS)
    wanted = _limited(30, forward_rows=25)
    assert _counts(rows) == _counts(wanted.certify(images, settings=SETTINGS))
    assert [row.forward_rows for row in rows] == [25, 25]
    answers = _limited(30, fits).predict_batch(images, n=500, seed=0, indices=[0, 1])
    assert [sum(answer.counts) for answer in answers] == [500, 500]


def test_a_budget_keeps_its_pilots_when_memory_runs_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sizes follow from the pilots, whatever the shape of the forward passes."""
    model, digits = sween.load("digits-sween3-gaussian-sigma0.50"), load_dataset("digits")
    settings = CertifySettings(n0=200, n=2000, sampling="budget", budget=12 * 900)
    raised = list[int]()

    add = VoteEngine._add_batch

    def scarce(engine: VoteEngine, tally: Tally, *arguments: Any) -> Steps[None]:
        if tally.request.purpose == "estimation" and not raised:
            raised.append(engine.forward_rows)
            raise MemoryError
        return add(engine, tally, *arguments)

    rows = certify_into(tmp_path / "whole", model, digits, range(12), settings).rows
    monkeypatch.setattr(VoteEngine, "_add_batch", scarce)
    again = certify_into(tmp_path / "scarce", model, digits, range(12), settings).rows
    assert {row.forward_rows for row in again} == {raised[0] // 2}
    assert [(row.n, row.selection_counts) for row in again] == [
        (row.n, row.selection_counts) for row in rows
    ]
    assert verify_folder(tmp_path / "scarce").images == 12


@pytest.mark.parametrize(
    ("said", "is_it"),
    [
        ("CUDA error: out of memory", True),
        ("CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", True),
        ("[enforce fail] DefaultCPUAllocator: can't allocate memory", True),
        ("shape mismatch", False),
    ],
)
def test_out_of_memory_is_recognised_in_every_wording(said: str, is_it: bool) -> None:
    assert is_out_of_memory(RuntimeError(said)) == is_it


def test_out_of_memory_at_batch_1_is_one_clear_line() -> None:
    smoothed = SmoothedClassifier(_SmallMemory(0), sigma=0.5, num_classes=2)
    with pytest.raises(BadInput, match=r"out of memory on cpu even at batch 1; .* --device"):
        smoothed.certify(_images(1), settings=SETTINGS)


def test_other_model_errors_are_not_mistaken_for_out_of_memory() -> None:
    class Broken(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("shape mismatch")

    with pytest.raises(ContractError, match="shape mismatch"):
        SmoothedClassifier(Broken(), sigma=0.5, num_classes=2).certify(_images(1), n=200)


def test_a_budget_that_runs_out_of_memory_is_planned_again() -> None:
    images = _images(3)
    rows = []
    for smoothed in (_limited(30, PROBED + 4), _limited(30, forward_rows=25)):
        answer = smoothed.certify(images, n=2_000, n0=300, sampling="budget", budget=4_000, seed=0)
        rows.append(answer)
    assert _counts(rows[0]) == _counts(rows[1])
    assert [row.forward_rows for row in rows[0]] == [25] * 3


def test_memory_that_runs_out_before_the_first_batch_shrinks_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As when the images of the first request are gathered on the device."""
    smoothed, failed = _limited(100, forward_rows=100), list[bool]()
    gather = pipeline._Group._located

    def scarce(group: Any, request: Any) -> Any:
        if not failed:
            failed.append(True)
            raise torch.OutOfMemoryError("CUDA out of memory")
        return gather(group, request)

    monkeypatch.setattr(pipeline._Group, "_located", scarce)
    (row,) = smoothed.certify(_images(1), settings=SETTINGS)
    assert row.forward_rows == 50


def test_a_prediction_that_did_not_fit_does_not_change_the_next() -> None:
    model = _SmallMemory(80)
    smoothed = SmoothedClassifier(model, sigma=0.5, num_classes=2)
    smoothed.predict(_images(1), n=60, seed=0)
    model.room = 40
    smoothed.predict(_images(1), n=60, seed=0)
    model.room = 80
    seen = list[int]()
    model.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    smoothed.predict(_images(1), n=60, seed=0)
    assert seen[-1] == 60
