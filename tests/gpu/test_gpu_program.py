"""A classifier on a GPU as a program uses it: threads, predictions, noise that is one number."""

import functools

import pytest
import torch
from torch import nn

from sween.ensemble import WeightedEnsemble
from sween.models import create_model
from sween.smoothing import SmoothedClassifier
from tests.at_once import at_once

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
    pytest.mark.filterwarnings(
        "ignore::DeprecationWarning",
        "ignore::FutureWarning",
        "ignore::UserWarning",
        "error::sween.errors.PreparationWarning",
    ),
]
Answer = list[tuple[int, ...]]


def _ensemble() -> WeightedEnsemble:
    members = []
    for seed in range(2):
        model = create_model("resnet20", num_classes=10, image_shape=(3, 32, 32), seed=seed)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.3)
        members.append(model)
    return WeightedEnsemble(members, [0.6, 0.4]).cuda()


def _smoothed(model: nn.Module, compile: bool | None) -> SmoothedClassifier:
    return SmoothedClassifier(model, sigma=0.5, num_classes=10, forward_rows=1000, compile=compile)


def _ask(smoothed: SmoothedClassifier, seed: int) -> Answer:
    images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    rows = smoothed.certify(images, n=5_000, seed=seed, indices=[0, 1])
    answers = smoothed.predict(images, n=200, seed=seed, indices=[0, 1])
    return [*(row.estimation_counts for row in rows), *(answer.counts for answer in answers)]


@pytest.mark.parametrize("compile", [None, False])
def test_four_threads_get_the_answers_of_one(compile: bool | None) -> None:
    ensemble = _ensemble().train()
    alone = [_ask(_smoothed(ensemble, compile), seed) for seed in range(4)]
    shared = _smoothed(ensemble, compile)
    for _ in range(3):
        works = [functools.partial(_ask, shared, seed) for seed in range(4)]
        assert at_once(works) == alone
        works = [functools.partial(_ask, _smoothed(ensemble, compile), seed) for seed in range(4)]
        assert at_once(works) == alone
    assert all(part.training for part in ensemble.modules())


def test_a_prediction_of_an_uncompiled_model_evaluates_what_it_counts() -> None:
    seen = list[int]()

    class Watched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(3 * 32 * 32, 10)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            seen.append(len(images))
            output: torch.Tensor = self.body(images.flatten(1))
            return output

    smoothed = SmoothedClassifier(Watched().cuda(), sigma=0.5, num_classes=10, compile=False)
    image = torch.rand(3, 32, 32)
    smoothed.predict(image, n=130)
    seen.clear()
    answer = smoothed.predict_one(image, n=130)
    assert seen == [130]
    assert sum(answer.counts) == 130
