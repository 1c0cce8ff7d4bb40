"""Slow device-to-host copies: other batches run in the meantime, and counts do not change."""

import itertools
from collections.abc import Iterator
from typing import Any, Self

import pytest
import torch
from torch import nn

from sween.engine import forward
from sween.engine import votes as votes_module
from sween.engine.engine import VoteEngine
from sween.engine.forward import FixedShapeForward
from sween.engine.votes import VoteRequest, Votes
from sween.ensemble import EXITS, ExitPolicy, WeightedEnsemble
from sween.errors import ContractError
from sween.interleave import Steps
from sween.sampling import CertifySettings
from sween.smoothing import SmoothedClassifier, pipeline
from tests.smoothing.small import Batch, SmallMemory, counts, images, smoothed


class _Queue:
    """A slow device: a copy arrives only when the host resumes the task."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.queued, self.meanwhile = 0, list[int]()
        monkeypatch.setattr(forward, "to_host_async", self.to_host_async)
        monkeypatch.setattr(votes_module, "to_host_async", self.to_host_async)
        one = FixedShapeForward._one

        def counted(*arguments: Any) -> torch.Tensor:
            self.queued += 1
            return one(*arguments)

        monkeypatch.setattr(FixedShapeForward, "_one", counted)

    def to_host_async(self, *tensors: torch.Tensor) -> Steps[list[torch.Tensor]]:
        before, copies = self.queued, [tensor.clone() for tensor in tensors]
        yield lambda: False
        self.meanwhile.append(self.queued - before)
        return copies


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Queue]:
    queue = _Queue(monkeypatch)
    yield queue
    assert queue.meanwhile, "nothing came late"


def _smoothed(exit: str = "none", batch_size: int = 200) -> SmoothedClassifier:
    return smoothed(exit=ExitPolicy(exit, threshold=0.6), batch_size=batch_size)


def _prepared(classifier: SmoothedClassifier) -> VoteEngine:
    classifier.engine.prepare(images(1)[0])
    return classifier.engine


def _request(size: int, index: int = 0) -> VoteRequest:
    return VoteRequest(images(1), [index], "estimation", [size])


MODES: dict[str, dict[str, Any]] = {
    "fixed": {"n": 750},
    "decide": {"n": 1_500, "sampling": "decide", "radii": (0.2,)},
    "tolerance": {"n": 1_500, "sampling": "tolerance", "tolerance": 0.1},
    "budget": {"n": 1_500, "sampling": "budget", "budget": 2_400},
    "soft": {"n": 750, "votes": "soft"},
}


@pytest.mark.parametrize(
    ("mode", "exit_name"),
    [("soft", "none"), *itertools.product(("fixed", "decide", "tolerance", "budget"), EXITS)],
)
def test_late_copies_do_not_change_certificates(
    mode: str, exit_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = CertifySettings(n0=130, **MODES[mode])
    wanted = counts(_smoothed(exit_name).certify(images(), settings=settings))
    queue = _Queue(monkeypatch)
    assert counts(_smoothed(exit_name).certify(images(), settings=settings)) == wanted
    assert queue.meanwhile


@pytest.mark.parametrize("exit_name", EXITS)
def test_other_batches_are_queued_while_a_copy_is_pending(exit_name: str, device: _Queue) -> None:
    engine = _prepared(_smoothed(exit_name))
    device.meanwhile.clear()
    votes = list(engine.count([_request(600, index) for index in range(4)], seed=0))
    assert [int(own.counts.sum()) for own in votes] == [600] * 4
    asked = 4 + (2 * 12 if exit_name != "none" else 0)  # each set; each later member and batch
    assert len(device.meanwhile) == asked
    assert all(device.meanwhile[: -1 if exit_name == "none" else -3])
    assert not device.meanwhile[-1]


def test_requests_finish_in_order(device: _Queue) -> None:
    """A request without votes may be ready before the previous one."""
    sizes = [300, 0, 450, 0, 0, 100]
    requests = [_request(size, index) for index, size in enumerate(sizes)]
    votes = list(_prepared(_smoothed("exact")).count(requests, seed=0))
    assert [own.drawn for own in votes] == [[size] for size in sizes]
    assert [int(own.counts.sum()) for own in votes] == sizes
    assert [own.of("model", 0).evaluations > 0 for own in votes] == [size > 0 for size in sizes]


def test_at_most_two_batches_are_in_memory(device: _Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, held, most = _prepared(_smoothed("exact")), 0, 0
    vote = engine._voters.vote

    def watch(noisy: torch.Tensor) -> Steps[Any]:
        nonlocal held, most
        held, most = held + 1, max(most, held + 1)
        ballot = yield from vote(noisy)
        held -= 1
        return ballot

    monkeypatch.setattr(engine._voters, "vote", watch)
    engine.count_one(_request(2_000), seed=0)
    assert (held, most) == (0, 2)


class _Broken(nn.Module):
    """Returns NaN from the `good`-th noisy image on."""

    def __init__(self) -> None:
        super().__init__()
        self.good, self.rows = 10**6, list[int]()

    def __deepcopy__(self, memo: object) -> Self:
        return self  # the prepared copy counts along

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.rows.append(len(x))
        total = x.flatten(1).sum(1)
        wrong = float("nan") if sum(self.rows) > self.good else 0.0
        return torch.stack([total + wrong, 32 - total], dim=1)


def _pair(first: nn.Module, second: nn.Module, forward_rows: int = 100) -> SmoothedClassifier:
    ensemble = WeightedEnsemble([first, second], [0.6, 0.4])
    return smoothed(
        ensemble, num_classes=2, batch_size=200, forward_rows=forward_rows, exit="exact"
    )


def test_non_finite_outputs_never_vote(device: _Queue) -> None:
    broken = _Broken()
    engine = _prepared(_pair(broken, _Broken()))
    broken.good = sum(broken.rows) + 700
    through: list[Votes] = []
    with pytest.raises(ContractError, match="finite"):
        through.extend(engine.count([_request(200, index) for index in range(10)], seed=0))
    # The fourth has a NaN vote; the third came back when that was already known.
    assert len(through) == 2


def test_selection_and_estimation_votes_are_queued_together(device: _Queue) -> None:
    classifier = _smoothed(batch_size=400)
    _prepared(classifier)
    device.meanwhile.clear()
    classifier.certify(images(), settings=CertifySettings(n0=100, n=750))
    # First votes, then those of each image: only the last ones find nothing queued behind them.
    assert [queued > 0 for queued in device.meanwhile] == [True] * 3 + [False]


@pytest.mark.parametrize("fits", [1, 5, 8, 11])
def test_out_of_memory_while_another_batch_is_in_flight(fits: int, device: _Queue) -> None:
    settings = CertifySettings(n0=100, n=800)
    scarce = SmallMemory(50, fits=10**6)
    own, wanted = _pair(scarce, scarce), _pair(scarce, scarce, forward_rows=50)
    _prepared(own)
    scarce.fits = fits
    rows = own.certify(images(), settings=settings)
    assert {row.forward_rows for row in rows} <= {50, 100}
    assert rows[-1].forward_rows == 50
    assert [row.estimation_counts for row in rows] == [
        row.estimation_counts for row in wanted.certify(images(), settings=settings)
    ]
    assert len(own.predict_batch(images(), n=400, seed=0, indices=range(3))) == 3


def test_only_one_count_can_be_active(device: _Queue) -> None:
    """Two at once would share the check for non-finite outputs."""
    engine = _prepared(_smoothed("exact"))
    counting = engine.count([_request(400, index) for index in range(3)], seed=0)
    next(counting)
    with pytest.raises(RuntimeError, match="is counting"):
        engine.count_one(_request(100), seed=0)
    counting.close()
    assert engine.count_one(_request(100), seed=0)


def test_closing_early_restores_the_model(device: _Queue) -> None:
    classifier = _smoothed("exact")
    model = classifier.engine.model.train()
    rows = pipeline.certify(
        [_prepared(classifier)], Batch(images()), range(3), CertifySettings(n0=100, n=750)
    )
    next(rows)
    assert not torch.is_inference_mode_enabled()
    rows.close()
    assert all(part.training for part in model.modules())
    assert classifier.predict(images(1), n=100)
