"""Which training images are dropped and how often the others are drawn; votes on them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats

from sween.errors import BadInput, CheckpointError
from sween.models import load_checkpoint
from sween.training import train
from sween.training import trainer as trainer_module
from sween.training.image_weights import REWEIGH_COPIES, keep_easy, weigh_images
from sween.training.state import load_state
from sween.training.trainer import Trainer
from sween.training.training_votes import count_votes

from .datasets import config, few_digits, interrupted, same, weights

ACR: dict[str, Any] = {"method": "acr", "attack_steps": 0, "votes": 20, "copies": 1}


def test_weights_are_the_published_formula() -> None:
    """Sun et al. 2025, by scipy's own beta quantiles."""
    correct = torch.arange(REWEIGH_COPIES + 1)
    expected = []
    for count in correct.tolist():
        clipped = int(min(max(count / 16, 0.75), 1.0) * 16)
        expected.append(stats.norm.ppf(stats.beta.ppf(0.1, clipped, 16 - clipped + 1)))
    assert weigh_images(correct).tolist() == pytest.approx(expected, rel=1e-6)
    assert 0 < expected[0] == expected[12] < expected[13] < expected[16]


def test_images_below_the_share_are_dropped() -> None:
    correct = torch.tensor([0.0, 39.0, 40.0, 41.0, 100.0])
    assert keep_easy(correct, 100, 0.4).tolist() == [0, 0, 1, 1, 1]
    with pytest.raises(BadInput, match=r"drop_below: .*got 0\.99, where the largest share is 0\.5"):
        keep_easy(torch.tensor([1.0, 50.0]), 100, 0.99)


def test_votes_are_those_of_a_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to chance, since the noise is drawn otherwise; and whatever the size of a pass."""
    dataset = few_digits(50)
    train(config(epochs=2), dataset, tmp_path, quiet=True)
    model, _ = load_checkpoint(tmp_path)
    options: dict[str, Any] = {"sigma": 0.5, "num_classes": 10, "seed": 0, "purpose": "test"}
    votes = count_votes(model, dataset.train, copies=600, **options)
    assert votes.sum(dim=1).tolist() == [600] * 50
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for position in (0, 7, 49):
            image = dataset.train.images([position])
            noisy = image + 0.5 * torch.randn(600, *image.shape[1:], generator=generator)
            share = model(noisy).argmax(dim=1).bincount(minlength=10) / 600
            assert (votes[position] / 600 - share).abs().max() < 0.12
    again = count_votes(model, dataset.train, copies=50, **options)
    assert torch.equal(again, count_votes(model, dataset.train, copies=50, **options))
    assert not torch.equal(again, count_votes(model, dataset.train, copies=50, epoch=1, **options))
    sizes: list[int] = []
    model.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    monkeypatch.setattr("sween.training.training_votes.ROWS", 60)
    for copies in (25, 50, 130):
        few = count_votes(model, dataset.train, copies=copies, **options)
        assert few.sum(dim=1).tolist() == [copies] * 50
        assert (few / copies - votes / 600).abs().mean() < 0.05
    monkeypatch.setattr("sween.training.training_votes.CIFAR_NUMBERS", 16)  # digits have 64
    count_votes(model, dataset.train, copies=25, **options)
    assert max(sizes) == 60
    assert sizes[-1] == 10  # the rest of 25 in passes of 15


def test_the_average_of_the_weights_votes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the weights that are trained on are the same afterwards."""
    seen = list[tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]]()
    of_trainer = Trainer._correct

    def watch(trainer: Trainer, *args: Any) -> torch.Tensor:
        assert trainer.average is not None
        before = {name: own.clone() for name, own in trainer.model.state_dict().items()}
        average = {name: own.clone() for name, own in trainer.average.tensors.items()}

        def votes(model: torch.nn.Module, *args: Any, **options: Any) -> torch.Tensor:
            voting = {name: own.clone() for name, own in model.state_dict().items()}
            seen.append((average, voting))
            return count_votes(model, *args, **options)

        monkeypatch.setattr(trainer_module, "count_votes", votes)
        found = of_trainer(trainer, *args)
        assert same(before, trainer.model.state_dict())
        return found

    monkeypatch.setattr(Trainer, "_correct", watch)
    wanted = config(**ACR, epochs=4, reweigh_from=2, drop_below=0.1, average=0.9)
    train(wanted, few_digits(50), tmp_path, quiet=True)
    assert len(seen) == 2
    for average, voting in seen:
        assert all(torch.equal(average[name], voting[name]) for name in average)


@pytest.mark.parametrize("method", [ACR, {"method": "consistency", "votes": 20}])
def test_dropped_images_are_never_seen_again(tmp_path: Path, method: dict[str, Any]) -> None:
    """Before the start all images are, in every epoch; afterwards easy ones, some repeatedly."""
    wanted = config(**method, reweigh_from=2, drop_below=0.3, reweigh_every=2, epochs=5)
    dataset = few_digits(160)
    trainer = Trainer(wanted, dataset, tmp_path, device=torch.device("cpu"))
    seen: list[set[int]] = [set() for _ in range(5)]
    for _ in trainer.run():
        seen[trainer.epochs_done].update(trainer.step.inputs.picks.tolist())
    assert seen[0] == seen[1] == set(range(160))
    kept = set((trainer.per_image["weights"] > 0).nonzero()[:, 0].tolist())
    assert 10 < len(kept) < 150
    for epoch in (2, 3, 4):
        assert seen[epoch] <= kept
    assert len(set.union(*seen[2:])) > 0.8 * len(kept)
    assert len(torch.unique(trainer.per_image["weights"])) > 2


def test_without_dropping_or_weighing_images_are_drawn_as_ever(tmp_path: Path) -> None:
    """Then `acr` without an attack is `gaussian` with as many copies."""
    same_as = {"copies": 2, "epochs": 2}
    off = {**ACR, "drop_below": 0.0, "reweigh_every": 0, "votes": None}
    train(config(**off | same_as), few_digits(50), tmp_path / "acr", quiet=True)
    train(config(**same_as), few_digits(50), tmp_path / "gaussian", quiet=True)
    assert same(weights(tmp_path / "acr"), weights(tmp_path / "gaussian"))


def test_the_state_has_the_weights_of_the_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer_module, "SECONDS_BETWEEN_STATES", -1.0)
    wanted = config(**ACR, reweigh_from=1, drop_below=0.05)
    interrupted(wanted, few_digits(50), tmp_path, 7)
    state = load_state(tmp_path)
    assert state is not None
    assert state.epochs_done == 2
    assert state.tensors["images.weights"].shape == (50,)
    state.tensors["images.weights"] = torch.ones(49, dtype=torch.float64)
    trainer = Trainer(wanted, few_digits(50), tmp_path, device=torch.device("cpu"))
    with pytest.raises(CheckpointError, match="a training state of this network"):
        trainer._restore(state)
