"""Running out of memory halves the forward pass and starts the image again."""

from typing import Any

import pytest
import torch

from sween.errors import BadInput, ContractError, is_out_of_memory
from sween.sampling import CertifySettings
from sween.seeding import NOISE_BLOCK
from sween.smoothing import SmoothedClassifier, pipeline
from tests.smoothing.small import (
    FEW,
    PROBED,
    SETTINGS,
    Computed,
    SmallMemory,
    counts,
    images,
    smoothed,
)

BEFORE = PROBED - len(FEW)
"""Passes of all rows before the first vote."""


def _limited(room: int, fits: int = 0, forward_rows: int = NOISE_BLOCK) -> SmoothedClassifier:
    return smoothed(SmallMemory(room, fits), num_classes=2, forward_rows=forward_rows)


@pytest.mark.parametrize("fits", [0, BEFORE + 4, BEFORE + 12])
@pytest.mark.parametrize(
    "options", [{}, {"sampling": "budget", "budget": 4_000}], ids=["fixed", "budget"]
)
def test_out_of_memory_halves_the_forward_pass_and_starts_the_image_again(
    fits: int, options: dict[str, Any]
) -> None:
    """At the start, among the pilots or later: all votes come from the final shape."""
    settings = CertifySettings(n0=300, n=2_000, **options)
    rows, wanted = (
        classifier.certify(images(), settings=settings)
        for classifier in (_limited(30, fits), _limited(30, forward_rows=25))
    )
    assert counts(rows) == counts(wanted)
    assert [row.forward_rows for row in rows] == [25] * 3
    answers = _limited(30, fits).predict_batch(images(2), n=500, seed=0, indices=[0, 1])
    assert [sum(answer.counts) for answer in answers] == [500, 500]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("CUDA error: out of memory", True),
        ("CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", True),
        ("[enforce fail] DefaultCPUAllocator: can't allocate memory", True),
        ("shape mismatch", False),
    ],
)
def test_out_of_memory_is_recognised_in_every_wording(message: str, expected: bool) -> None:
    assert is_out_of_memory(RuntimeError(message)) == expected


def test_out_of_memory_at_batch_1_is_one_clear_line() -> None:
    with pytest.raises(BadInput, match=r"out of memory on cpu even at batch 1; .* another device"):
        _limited(0).certify(images(1), settings=SETTINGS)


def test_other_model_errors_are_not_mistaken_for_out_of_memory() -> None:
    def broken(_: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("shape mismatch")

    with pytest.raises(ContractError, match="shape mismatch"):
        smoothed(Computed(broken)).certify(images(1), n=200)


def test_memory_that_runs_out_before_the_first_batch_shrinks_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As when the images of the first request are gathered on the device."""
    failed, gather = list[bool](), pipeline._Group._located

    def scarce(group: Any, request: Any) -> Any:
        if not failed:
            failed.append(True)
            raise torch.OutOfMemoryError("CUDA out of memory")
        return gather(group, request)

    monkeypatch.setattr(pipeline._Group, "_located", scarce)
    (row,) = _limited(100, forward_rows=100).certify(images(1), settings=SETTINGS)
    assert row.forward_rows == 50


def test_a_prediction_that_did_not_fit_does_not_change_the_next() -> None:
    model = SmallMemory(80)
    classifier = smoothed(model, num_classes=2)
    seen = list[int]()
    model.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    for room in (80, 40, 80):
        model.room = room
        classifier.predict(images(1), n=60, seed=0)
    assert seen[-1] == 60
