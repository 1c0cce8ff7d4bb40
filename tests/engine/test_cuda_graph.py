"""Members compiled by torch.compile on a CPU."""

import pytest

import sween
from sween.data import load_dataset
from sween.smoothing import SmoothedClassifier


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning",
    "ignore::FutureWarning",
    "ignore::UserWarning",
    "error::sween.errors.PreparationWarning",
)
def test_several_members_of_one_class_are_compiled() -> None:
    """torch counts each as a recompilation, of which it allows only a few by default."""
    ensemble = sween.load("digits-sween3-gaussian-sigma0.50")
    images = load_dataset("digits").test.images(range(2))
    smoothed = SmoothedClassifier(ensemble, sigma=0.5, num_classes=10, compile=True)
    rows = smoothed.certify(images, n=500)
    assert {row.precision for row in rows} == {"float32+compiled"}
    assert [sum(row.estimation_counts) for row in rows] == [500, 500]
    answers = smoothed.predict(images)
    assert [answer.prediction for answer in answers] == [row.prediction for row in rows]
