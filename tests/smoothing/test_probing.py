"""What a call costs: members are probed once, and predictions evaluate what they count."""

import time
from collections.abc import Callable
from typing import Self

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from sween.ensemble import WeightedEnsemble
from sween.errors import ContractError
from sween.smoothing import SmoothedClassifier
from sween.zoo import load
from tests.smoothing import small

pytestmark = pytest.mark.filterwarnings("ignore::sween.errors.SmallSampleWarning")


class Watched(nn.Module):
    """Notes the rows of every forward pass; can be made to mix its batch."""

    scale: torch.Tensor

    def __init__(self, size: int = 64) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(size, 10)
        self.register_buffer("scale", torch.zeros(()))
        self.rows: list[int] = []

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.rows.append(len(images))
        flat = images.flatten(1)
        output: torch.Tensor = self.body(flat + self.scale * flat.mean(dim=0, keepdim=True))
        return output

    def take_rows(self) -> list[int]:
        rows, self.rows = self.rows, []
        return rows


def smoothed(model: nn.Module, forward_rows: int | None = None) -> SmoothedClassifier:
    return SmoothedClassifier(model, sigma=0.5, num_classes=10, forward_rows=forward_rows)


@pytest.mark.parametrize("n", [11, 20, 100, 150, 501, 999, 3000])
def test_a_known_model_sees_the_votes_of_a_prediction_and_little_more(n: int) -> None:
    model = Watched()
    classifier = smoothed(model)
    classifier.predict(small.images(1), n=n, alpha=0.01)
    model.take_rows()
    classifier.predict(small.images(1), n=n, alpha=0.01)
    rows = model.take_rows()
    assert n <= sum(rows) <= 1.3 * n
    assert len(set(rows)) == 1


def test_a_long_prediction_runs_in_the_passes_of_a_certificate() -> None:
    model = Watched()
    classifier = smoothed(model)
    classifier.predict(small.images(1), n=6000)
    model.take_rows()
    classifier.predict(small.images(1), n=6000)
    assert model.take_rows() == [500] * 12


def test_large_images_are_predicted_in_smaller_passes() -> None:
    model = Watched(3 * 64 * 64)
    classifier = smoothed(model)
    image = torch.rand(3, 64, 64, generator=torch.Generator().manual_seed(1))
    classifier.predict(image, n=130)
    model.take_rows()
    classifier.predict(image, n=130)
    assert model.take_rows() == [65, 65]


def test_a_prediction_does_not_depend_on_its_company() -> None:
    classifier = smoothed(small.ensemble())
    images = small.images(3)
    together = classifier.predict(images, n=130, seed=1, indices=[4, 5, 6])
    for position, answer in enumerate(together):
        alone = classifier.predict_one(images[position], n=130, seed=1, indices=answer.index)
        assert alone.counts == answer.counts
        assert sum(alone.counts) == 130


@pytest.mark.parametrize("exit_name", ["none", "exact", "paper"])
def test_fitted_passes_give_the_votes_of_full_ones(exit_name: str) -> None:
    classifier = SmoothedClassifier(small.ensemble(), sigma=0.5, num_classes=10, exit=exit_name)
    images, keys = small.images(2), [0, 1]
    fitted = classifier.predict(images, n=230, seed=3, indices=keys)
    full = classifier.predict_batch(images, n=230, seed=3, indices=keys)
    assert [answer.counts for answer in fitted] == [answer.counts for answer in full]


def test_passes_keep_the_rows_that_were_asked_for() -> None:
    model = Watched()
    classifier = smoothed(model, forward_rows=50)
    classifier.predict(small.images(1), n=20)
    assert set(model.take_rows()) == {50}


def test_a_certificate_probes_once_and_keeps_its_shape() -> None:
    model = Watched()
    classifier = smoothed(model)
    classifier.predict(small.images(1), n=20)  # which prepares the model
    for seed in range(2):
        model.take_rows()
        classifier.certify(small.images(1), n=1000, seed=seed, indices=[0])
        rows = model.take_rows()
        assert set(rows) == {500}
        # Three passes to find out whether the batch is mixed, in the first call alone.
        assert len(rows) == (3 if seed == 0 else 0) + 1 + 2


def test_another_state_is_probed_again() -> None:
    """Parameters, buffers, a new member, another shape: each is looked at once more."""
    model = Watched()
    classifier = smoothed(WeightedEnsemble([model]))
    image = small.images(1)
    classifier.certify(image, n=200)
    with torch.no_grad():
        model.body.weight.mul_(1.5)
    model.take_rows()
    classifier.certify(image, n=200)
    assert len(model.take_rows()) == small.PROBED + 2
    model.scale.fill_(1.0)
    with pytest.raises(ContractError, match="does not depend on the rest"):
        classifier.certify(image, n=200)
    with pytest.raises(ContractError, match="does not depend on the rest"):
        classifier.predict(image, n=20)
    model.scale.fill_(0.0)
    classifier.certify(image, n=200)


def test_a_prediction_is_probed_in_the_shape_that_votes() -> None:
    """A model that mixes large batches only is refused where its batches are large."""

    class MixesMany(Watched):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            output = super().forward(images)
            return output - output.mean(dim=0) if len(images) >= 16 else output

    classifier = smoothed(MixesMany())
    assert classifier.predict(small.images(1), n=12, alpha=0.01)
    with pytest.raises(ContractError, match="does not depend on the rest"):
        classifier.predict(small.images(1), n=100)


@pytest.mark.parametrize("how", ["part", "hook"])
def test_an_exchanged_part_and_a_hook_are_probed(how: str) -> None:
    """Neither has parameters of its own."""

    class Centre(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x - x.mean(dim=0)

    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.Identity())
    classifier = smoothed(model)
    classifier.certify(small.images(1), n=200)
    if how == "part":
        model[2] = Centre()
    else:
        model.register_forward_hook(lambda _, __, output: output - output.mean(dim=0))
    with pytest.raises(ContractError, match="does not depend on the rest"):
        classifier.certify(small.images(1), n=200)


def test_another_mode_is_probed_again() -> None:
    class KeepsItsMode(Watched):
        """Ignores `eval()`; mixes its batch in training mode."""

        def train(self, mode: bool = True) -> Self:
            return self

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            flat = images.flatten(1)
            mixed = flat.mean(dim=0, keepdim=True) if self.training else 0.0
            output: torch.Tensor = self.body(flat + mixed)
            return output

    model = KeepsItsMode()
    model.training = False
    classifier = smoothed(model)
    classifier.certify(small.images(1), n=200)
    model.training = True
    with pytest.raises(ContractError, match="does not depend on the rest"):
        classifier.certify(small.images(1), n=200)


def test_a_prediction_that_runs_out_of_memory_goes_on_in_the_passes_of_a_certificate() -> None:
    class Small(Watched):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            if len(images) > 60:
                raise torch.OutOfMemoryError("out of memory")
            return super().forward(images)

    model = Small()
    classifier = smoothed(model)
    answer = classifier.predict_one(small.images(1)[0], n=200, seed=0, indices=0)
    plain = smoothed(Watched()).predict_one(small.images(1)[0], n=200, seed=0, indices=0)
    assert sum(answer.counts) == 200
    assert answer.counts == plain.counts


def published_predict(model: nn.Module, image: torch.Tensor, n: int, alpha: float) -> int:
    """Cohen et al.'s PREDICT as they wrote it: one batch, counts, a binomial test."""
    with torch.no_grad():
        batch = image.repeat((n, 1, 1, 1))
        counts = np.zeros(10, dtype=int)
        for label in model(batch + 0.5 * torch.randn_like(batch)).argmax(1).numpy():
            counts[label] += 1
    top, second = counts.argsort()[::-1][:2]
    test = stats.binomtest(counts[top], counts[top] + counts[second], p=0.5)
    return -1 if test.pvalue > alpha else int(top)


@pytest.mark.slow
def test_a_prediction_of_a_known_tiny_model_costs_little_more_than_the_published_loop() -> None:
    """The worst case: three networks of 20,000 parameters, where a call takes 3 ms."""
    ensemble, image = load("digits-sween3-gaussian-sigma0.50").eval(), small.images(1)[0]
    classifier = SmoothedClassifier(ensemble, sigma=0.5, num_classes=10)
    ways: tuple[Callable[[], object], ...] = (
        lambda: published_predict(ensemble, image, 100, 0.001),
        lambda: classifier.predict(image, n=100, alpha=0.001),
    )
    ratios = []
    for _ in range(10):
        seconds = np.empty((2, 50))
        for turn in range(50):
            for place, way in enumerate(ways):
                began = time.perf_counter()
                way()
                seconds[place, turn] = time.perf_counter() - began
        published, own = np.median(seconds, axis=1)
        ratios.append(own / published)
    assert float(np.median(ratios[1:])) <= 1.3
