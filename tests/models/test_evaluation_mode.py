"""Evaluation mode and back, for modules whose `train` does more than note the mode."""

import pytest
import torch
from torch import nn

from sween.models.evaluation_mode import evaluating


class LowRank(nn.Linear):
    """Merges its correction into the weights in evaluation mode, as low-rank adapters do."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.merged = False
        self.correction = nn.Parameter(torch.ones(4, 4))

    def train(self, mode: bool = True) -> "LowRank":
        super().train(mode)
        if mode == self.merged:
            self.weight.data += -self.correction.data if mode else self.correction.data
            self.merged = not mode
        return self


@pytest.mark.parametrize("inner", [False, True])
def test_merged_weights_are_taken_apart_again(inner: bool) -> None:
    layer = LowRank()
    module = nn.Sequential(nn.Flatten(), nn.Sequential(layer)) if inner else layer
    with torch.no_grad():
        layer.weight.zero_()
    with evaluating(module):
        assert layer.merged
        assert bool((layer.weight == 1).all())
    assert not layer.merged
    assert bool((layer.weight == 0).all())
    assert module.training


def test_parts_keep_modes_of_their_own() -> None:
    layer, norm = LowRank(), nn.BatchNorm1d(4)
    module = nn.Sequential(layer, norm)
    norm.eval()
    with evaluating(module):
        assert not any(part.training for part in module.modules())
    assert (module.training, layer.training, norm.training) == (True, True, False)


def test_a_part_that_others_still_evaluate_stays_merged() -> None:
    layer = LowRank()
    one, other = nn.Sequential(layer), nn.Sequential(layer)
    with evaluating(one):
        with evaluating(other):
            pass
        assert layer.merged
        assert not layer.training
    assert not layer.merged
    assert other.training


class Freezes(nn.Sequential):
    """Keeps its norms in evaluation mode, as networks that are fine-tuned do."""

    def train(self, mode: bool = True) -> "Freezes":
        super().train(mode)
        for part in self.modules():
            if isinstance(part, nn.BatchNorm1d):
                part.eval()
        return self


def test_a_part_that_others_evaluate_never_leaves_evaluation_mode() -> None:
    """Not for a moment: another thread may be in the middle of a pass."""
    seen = list[bool]()

    class Watched(nn.Dropout):
        def train(self, mode: bool = True) -> "Watched":
            seen.append(mode)
            super().train(mode)
            return self

    body = Watched()
    one, other = nn.Sequential(body), Freezes(body, nn.BatchNorm1d(4)).train()
    with evaluating(one):
        seen.clear()
        with evaluating(other):
            pass
        assert True not in seen
        assert not body.training
    assert body.training
