"""Indices and seeds of a classifier's images: noise that repeats only when asked to."""

import copy
import pickle
import warnings

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from sween.errors import RepeatedNoiseWarning
from sween.evaluation import certified_accuracy
from sween.records import Certificate
from sween.sampling import CertifySettings
from sween.smoothing import SmoothedClassifier
from sween.smoothing import numbering as numbering_module
from sween.smoothing.numbering import ImageNumbering
from tests.smoothing import small

pytestmark = pytest.mark.filterwarnings("ignore::sween.errors.SmallSampleWarning")


ONE, OTHER = small.images(2)[:1], small.images(2)[1:]
SETTINGS = CertifySettings(n0=20, n=100, seed=4)


@pytest.fixture
def smoothed() -> SmoothedClassifier:
    return small.smoothed()


@pytest.mark.parametrize("seed", [None, 5])
def test_a_loop_over_a_loader_gives_every_image_its_own_noise(
    smoothed: SmoothedClassifier, seed: int | None
) -> None:
    images = small.images(1).expand(6, -1, -1, -1)  # equal images: only the noise can differ
    loader = DataLoader(TensorDataset(images, torch.arange(6)), batch_size=2)
    rows = list[Certificate]()
    with warnings.catch_warnings():
        warnings.simplefilter("error", RepeatedNoiseWarning)
        for _ in range(20):
            for x, y in loader:
                rows += smoothed.certify(x, labels=y, n0=20, n=200, seed=seed)
    assert [row.index for row in rows] == list(range(120))
    assert len({row.estimation_counts for row in rows}) == 120
    assert 0 <= certified_accuracy(rows, [0.0])[0] <= 1


def test_predictions_and_certificates_are_numbered_apart(smoothed: SmoothedClassifier) -> None:
    answers = [smoothed.predict(ONE, n=20) for _ in range(3)]
    assert [answer[0].index for answer in answers] == [0, 1, 2]
    assert smoothed.certify(ONE, n=100)[0].index == 0


def test_images_are_numbered_after_the_indices_that_were_given() -> None:
    numbering = ImageNumbering()
    assert numbering.number("certification", [3, 9], 2) == [3, 9]
    assert numbering.number("certification", None, 2) == [10, 11]
    assert numbering.number("certification", [0], 1) == [0]
    assert numbering.number("certification", None, 1) == [12]
    numbering.number("prediction", [4, 2**63 - 1], 2)  # the largest index
    assert numbering.number("prediction", None, 1) == [0]


def test_noise_used_for_another_image_warns_at_the_line_that_asked(
    smoothed: SmoothedClassifier,
) -> None:
    for ask in (
        lambda image: smoothed.certify(image, n0=20, n=100, seed=4, indices=[1]),
        lambda image: smoothed.certify(image, settings=SETTINGS, indices=[2]),
        lambda image: smoothed.predict(image, n=20, seed=4, indices=[3]),
    ):
        ask(ONE)
        with pytest.warns(RepeatedNoiseWarning, match=r"index \d .*seed 4") as caught:
            assert ask(OTHER)
        assert {warning.filename for warning in caught} == {__file__}


def test_noise_that_is_repeated_for_one_image_does_not_warn(smoothed: SmoothedClassifier) -> None:
    """Nor does another purpose, seed or index; pytest makes errors of warnings."""
    for _ in range(2):
        smoothed.certify(ONE, settings=SETTINGS, indices=[7])
    smoothed.predict(OTHER, n=20, seed=4, indices=[7])
    smoothed.certify(OTHER, n0=20, n=100, seed=5, indices=[7])
    smoothed.certify(OTHER, n0=20, n=100, seed=4, indices=[8])
    for image in (ONE, OTHER):  # a judge compares images under common noise
        smoothed.predict_batch(image, n=20, seed=4, indices=[9])


def test_the_oldest_images_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbering_module, "MOST_REMEMBERED", 3)
    numbering = ImageNumbering()
    for key in range(5):
        numbering.watch(0, "prediction", [key], ONE)
    assert len(numbering._met) == 3
    numbering.watch(0, "prediction", [0], OTHER)  # forgotten: no warning
    with pytest.warns(RepeatedNoiseWarning):
        numbering.watch(0, "prediction", [4], OTHER)


def test_every_call_has_a_fresh_seed_that_replays_it(smoothed: SmoothedClassifier) -> None:
    image, seeds = ONE[0], set[int]()
    for _ in range(3):
        row, answer = smoothed.certify_one(image, n=200), smoothed.predict_one(image, n=50)
        seeds |= {row.seed, answer.seed}
        again = smoothed.certify_one(image, n=200, seed=row.seed, indices=row.index)
        assert again.estimation_counts == row.estimation_counts
        same = smoothed.predict_one(image, n=50, seed=answer.seed, indices=answer.index)
        assert same.counts == answer.counts
    assert len(seeds) == 6
    assert all(0 <= seed < 2**53 for seed in seeds)  # as JSON's readers give them back


def test_a_given_seed_is_used_as_given(smoothed: SmoothedClassifier) -> None:
    first, second = (
        own.certify(ONE, n=200, seed=12, indices=[5])[0] for own in (smoothed, small.smoothed())
    )
    assert first.seed == second.seed == 12
    assert first.estimation_counts == second.estimation_counts
    assert CertifySettings().seed == 0  # of runs on a data set, which resume


def test_a_classifier_can_be_copied_and_pickled(smoothed: SmoothedClassifier) -> None:
    first = smoothed.certify_one(ONE[0], n=200, seed=3, indices=8)
    for twin in (copy.deepcopy(smoothed), pickle.loads(pickle.dumps(smoothed))):  # noqa: S301
        again = twin.certify_one(ONE[0], n=200, seed=3, indices=8)
        assert again.estimation_counts == first.estimation_counts
        assert twin.certify_one(ONE[0], n=200).index == 9
