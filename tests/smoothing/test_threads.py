"""One classifier from several threads, and several classifiers over one ensemble at once."""

import functools
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from sween.engine.fold_batch_norm import fold_batch_norm
from sween.models.evaluation_mode import evaluating
from sween.smoothing import SmoothedClassifier
from tests.at_once import at_once
from tests.smoothing import small
from tests.smoothing.small import smoothed

THREADS = 4
Answer = tuple[tuple[int, ...], ...]


def ask(classifier: SmoothedClassifier, seed: int) -> Answer:
    """A certificate and a prediction of each of two images, as their counts."""
    images, indices = small.images(2), [3, 7]
    certificates = classifier.certify(images, n0=50, n=150, seed=seed, indices=indices)
    predictions = classifier.predict(images, n=60, seed=seed, indices=indices)
    return (
        *(row.selection_counts for row in certificates),
        *(row.estimation_counts for row in certificates),
        *(answer.counts for answer in predictions),
    )


@pytest.fixture(scope="module")
def alone() -> list[Answer]:
    """What each seed gives in a program of one thread."""
    return [ask(smoothed(), seed) for seed in range(THREADS)]


@pytest.mark.parametrize("turn", range(20))
@pytest.mark.parametrize("shared", ["classifier", "ensemble"])
def test_threads_get_the_answers_of_one_thread(shared: str, turn: int, alone: list[Answer]) -> None:
    """The ensemble is in training mode: whoever ends first must not put it back for the others."""
    ensemble = small.ensemble().train()
    classifier = smoothed(ensemble)
    own = [classifier if shared == "classifier" else smoothed(ensemble) for _ in range(THREADS)]
    assert at_once([functools.partial(ask, own[seed], seed) for seed in range(THREADS)]) == alone
    assert all(part.training for part in ensemble.modules())


def test_threads_number_their_images_without_gaps_or_duplicates() -> None:
    classifier = smoothed()

    def run() -> list[int]:
        calls = [classifier.certify(small.images(2), n0=20, n=100) for _ in range(5)]
        return [row.index for rows in calls for row in rows]

    found = [index for own in at_once([run] * THREADS) for index in own]
    assert sorted(found) == list(range(THREADS * 5 * 2))


def test_parts_stay_in_evaluation_mode_until_the_last_user_leaves() -> None:
    shared = nn.Dropout()
    one, other = nn.Sequential(shared, nn.ReLU()).train(), nn.Sequential(shared)
    first, second = evaluating(one), evaluating(other)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert (one.training, shared.training) == (True, False)
    second.__exit__(None, None, None)
    assert shared.training


def test_a_module_is_evaluated_while_another_thread_traces() -> None:
    """torch.fx patches every module of the process: the other thread must not be traced."""
    tracing, evaluated = threading.Event(), threading.Event()

    class Slow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Conv1d(4, 4, 1), nn.BatchNorm1d(4))
            self.seen = True

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not isinstance(x, torch.Tensor):  # as torch.fx calls it
                tracing.set()
                self.seen = evaluated.wait(30)
            y: torch.Tensor = self.body(x)
            return y

    slow, plain = Slow().eval(), nn.Sequential(nn.Conv1d(4, 4, 1), nn.BatchNorm1d(4)).eval()
    wanted = plain(torch.ones(2, 4, 1))

    def other() -> torch.Tensor:
        assert tracing.wait(30)
        try:
            output: torch.Tensor = plain(torch.ones(2, 4, 1))
            assert isinstance(plain[0].weight, nn.Parameter)
            return output
        finally:
            evaluated.set()

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(other)
        folded = fold_batch_norm(slow)
        assert torch.equal(future.result(), wanted)
    assert not any(isinstance(part, nn.BatchNorm1d) for part in folded.modules())


def test_a_thread_that_fails_leaves_the_classifier_to_the_others() -> None:
    classifier = smoothed()

    def fail() -> Answer:
        with pytest.raises(ValueError, match="images"):
            classifier.certify(torch.full((1, 1, 8, 8), 2.0), n=150)
        return ()

    works = [lambda: ask(classifier, 0), fail, lambda: ask(classifier, 1), fail]
    assert at_once(works)[::2] == [ask(classifier, 0), ask(classifier, 1)]
