"""What a call costs: members are probed once, and predictions evaluate what they count."""

import contextlib
import re
import time
from collections.abc import Callable
from typing import Self

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from sween.ensemble import WeightedEnsemble
from sween.errors import ContractError, ContractWarning
from sween.smoothing import SmoothedClassifier
from sween.zoo import load
from tests.smoothing import small
from tests.smoothing.small import ZOO, smoothed

pytestmark = pytest.mark.filterwarnings("ignore::sween.errors.SmallSampleWarning")


def watched(size: int = 64) -> tuple[nn.Sequential, list[int]]:
    """A small network, and a list of the rows of its forward passes."""
    torch.manual_seed(0)
    model, rows = nn.Sequential(nn.Flatten(), nn.Linear(size, 10)), list[int]()
    model.register_forward_pre_hook(lambda _, inputs: rows.append(len(inputs[0])))
    return model, rows


def rows_of_second_prediction(image: torch.Tensor, n: int) -> list[int]:
    """The first one prepares and probes the model."""
    model, rows = watched(image[0].numel())
    classifier = smoothed(model)
    classifier.predict(image, n=n, alpha=0.01)
    rows.clear()
    classifier.predict(image, n=n, alpha=0.01)
    return rows


@pytest.mark.parametrize("n", [11, 20, 100, 150, 501, 999, 3000])
def test_a_prediction_evaluates_its_votes_and_little_more(n: int) -> None:
    rows = rows_of_second_prediction(small.images(1), n)
    assert n <= sum(rows) <= 1.3 * n
    assert len(set(rows)) == 1


def test_long_predictions_and_large_images_are_split_into_several_passes() -> None:
    assert rows_of_second_prediction(small.images(1), 6000) == [500] * 12
    assert rows_of_second_prediction(torch.rand(1, 3, 64, 64), 130) == [65, 65]


def test_a_prediction_does_not_depend_on_the_rest_of_its_batch() -> None:
    classifier, images = smoothed(), small.images(3)
    together = classifier.predict(images, n=130, seed=1, indices=[4, 5, 6])
    for position, answer in enumerate(together):
        alone = classifier.predict_one(images[position], n=130, seed=1, indices=answer.index)
        assert alone.counts == answer.counts
        assert sum(alone.counts) == 130


@pytest.mark.parametrize("exit_name", ["none", "exact", "paper"])
def test_fitted_passes_give_the_votes_of_full_ones(exit_name: str) -> None:
    classifier, images, keys = smoothed(exit=exit_name), small.images(2), [0, 1]
    fitted = classifier.predict(images, n=230, seed=3, indices=keys)
    full = classifier.predict_batch(images, n=230, seed=3, indices=keys)
    assert [answer.counts for answer in fitted] == [answer.counts for answer in full]


def test_passes_keep_the_rows_that_were_asked_for() -> None:
    model, rows = watched()
    smoothed(model, forward_rows=50).predict(small.images(1), n=20)
    assert set(rows[small.PROBED :]) == {50}


def test_a_certificate_probes_a_model_once_in_each_state() -> None:
    model, rows = watched()
    classifier = smoothed(model)
    classifier.predict(small.images(1), n=20)  # which prepares the model
    for probes in (4, 0, small.PROBED):
        if probes == small.PROBED:
            with torch.no_grad():
                next(model.parameters()).mul_(1.5)
        rows.clear()
        classifier.certify(small.images(1), n=1000)
        few = small.FEW if probes == small.PROBED else ()
        assert sorted(rows) == [*few, *[500] * (probes - len(few) + 1 + 2)]


def test_a_prediction_is_probed_in_the_shape_that_votes() -> None:
    """A model that mixes only large batches is refused where its batches are large."""

    def mixes_many(images: torch.Tensor) -> torch.Tensor:
        output = images.flatten(1)[:, :10]
        return output - output.mean(dim=0) if len(images) >= 16 else output

    classifier = smoothed(small.Computed(mixes_many))
    assert classifier.predict(small.images(1), n=12, alpha=0.01)
    with pytest.raises(ContractError, match="does not depend on the rest"):
        classifier.predict(small.images(1), n=100)


class Mixer(nn.Module):
    """Mixes its batch by `scale`, or in training mode, which `eval()` does not end."""

    scale: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.zeros(()))
        self.training = False

    def train(self, mode: bool = True) -> Self:
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - (1 if self.training else self.scale) * x.mean(dim=0)


@pytest.mark.parametrize("change", ["buffer", "part", "hook", "mode"])
def test_a_changed_buffer_or_part_or_hook_or_mode_is_probed(change: str) -> None:
    mixer = Mixer()
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), mixer)
    classifier = smoothed(WeightedEnsemble([model]))
    classifier.certify(small.images(1), n=200)
    if change == "buffer":
        mixer.scale.fill_(1.0)
    elif change == "part":
        model[2] = small.Computed(lambda x: x - x.mean(dim=0))
    elif change == "hook":
        model.register_forward_hook(lambda _, __, output: output - output.mean(dim=0))
    else:
        mixer.training = True
    for ask in (classifier.certify, classifier.predict):
        with pytest.raises(ContractError, match="does not depend on the rest"):
            ask(small.images(1), n=200)


def test_a_prediction_that_runs_out_of_memory_continues_in_smaller_passes() -> None:
    small_memory, plain = (
        smoothed(small.SmallMemory(room), num_classes=2).predict_one(
            small.images(1)[0], n=200, seed=0, indices=0
        )
        for room in (60, 1000)
    )
    assert sum(small_memory.counts) == 200
    assert small_memory.counts == plain.counts


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
    ensemble, image = load(ZOO).eval(), small.images(1)[0]
    classifier = smoothed(ensemble)
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


class Odd(nn.Module):
    """A linear network with a masked class, and something that it must not do."""

    def __init__(self, oddity: str, mask: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.oddity, self.mask = nn.Linear(64, 10), oddity, mask

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        pixels = images.flatten(1)
        if self.oddity == "smallest deviation":  # not a number if a row is constant
            pixels = pixels / pixels.std(dim=1).min()
        outputs: torch.Tensor = self.layer(pixels)
        if self.oddity in ("mean", "smallest deviation"):
            outputs = outputs - outputs.mean(dim=0)
        if self.oddity == "noise":
            outputs = outputs + 0.01 * torch.randn_like(outputs)
        outputs[:, 4] = -self.mask
        return outputs


@pytest.mark.parametrize("mask", [1.0, 3e4, 1e9])
@pytest.mark.parametrize("oddity", ["mean", "smallest deviation", "noise"])
def test_a_masked_class_hides_nothing(oddity: str, mask: float) -> None:
    """The range of all outputs is not what those of the other classes are compared with."""
    for model in (Odd(oddity, mask), WeightedEnsemble([Odd(oddity, mask)])):
        with pytest.raises(ContractError, match=r"of their range|with the rest of the batch"):
            SmoothedClassifier(model, sigma=0.5, num_classes=10).certify(small.images(2), n=200)
    harmless = SmoothedClassifier(Odd("", mask), sigma=0.5, num_classes=10)
    assert len(harmless.certify(small.images(2), n=200)) == 2


@pytest.mark.parametrize(("size", "refused"), [(0.0, False), (1e-6, True), (3e-3, True)])
def test_a_millionth_of_the_others_is_mixing(size: float, refused: bool) -> None:
    """At one place in a batch of one shape, other images change no bit by rounding."""

    class Slightly(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = nn.Linear(64, 10)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            outputs: torch.Tensor = self.layer(images.flatten(1))
            return outputs + size * outputs.mean(dim=0)

    classifier = SmoothedClassifier(Slightly(), sigma=0.5, num_classes=10)
    with pytest.raises(ContractError) if refused else contextlib.nullcontext():
        classifier.certify(small.images(2), n=200)


def test_photos_on_a_cpu_are_not_prepared_in_silence(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A probe takes a minute there: what is done is said, the rate and the time left."""
    monkeypatch.setattr("sween.engine.voters.SECONDS_BEFORE_A_LINE", 0.0)
    caplog.set_level("INFO", "sween")
    smoothed().engine.prepare(small.images(1)[0])
    assert not caplog.messages, "small images take a moment"
    monkeypatch.setattr("sween.engine.voters.QUICK_NUMBERS", 0)
    smoothed().engine.prepare(small.images(1)[0])
    first, *more = caplog.messages
    assert first.endswith("(8x8 px) on cpu")
    assert re.fullmatch(
        rf"{re.escape(first)}: 1/\d+ passes of \d+ images, [\d.k]+/s, 0s left", more[0]
    )


@pytest.mark.parametrize("last", [nn.Softmax(1), nn.Sigmoid(), nn.LogSoftmax(1), nn.ReLU()])
def test_members_that_return_probabilities_are_named(last: nn.Module) -> None:
    """A softmax of probabilities is nearly uniform: another ensemble than was meant."""
    network, _ = watched()
    ensemble = WeightedEnsemble([network, nn.Sequential(network, last)])
    classifier, image = smoothed(ensemble), small.images(1)
    expected = (
        pytest.warns(ContractWarning, match=r"network 2: expected logits, .* last softmax")
        if isinstance(last, nn.Softmax)
        else contextlib.nullcontext()
    )
    with expected:
        classifier.predict(image, n=100)
    classifier.predict(image, n=100)  # once is enough


def test_a_single_model_may_return_probabilities() -> None:
    """It votes by the largest, which a softmax does not change."""
    network, _ = watched()
    smoothed(nn.Sequential(network, nn.Softmax(1))).predict(small.images(1), n=100)
