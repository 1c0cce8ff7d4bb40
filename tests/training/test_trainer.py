"""The training loop: deterministic on a CPU, learning, and careful with its folder."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from sween.bounds.radius import radius_cohen
from sween.ensemble import load_ensemble
from sween.errors import BadInput, CheckpointError, ContractError, UnknownName
from sween.models import load_checkpoint, read_manifest
from sween.run_folder import read_config
from sween.runs import TrainingRun
from sween.training import TrainConfig, train
from sween.training.noisy_accuracy import noisy_accuracy
from sween.training.step import StepInputs, TrainingStep
from sween.training.trainer import Trainer
from sween.training.training_images import describe_images
from sween.training.training_votes import count_votes

from . import datasets
from .datasets import digits, few_digits, files, measured, photos, same, weights

DROPOUT = "tests.models.factories:with_dropout"


def config(**fields: Any) -> TrainConfig:
    return datasets.config(**{"sigma": 0.25, "epochs": 1} | fields)


@pytest.mark.parametrize("arch", ["digits-mlp", "digits-conv", "digits-resnet", DROPOUT])
def test_config_and_data_alone_decide_the_weights(tmp_path: Path, arch: str) -> None:
    state = torch.get_rng_state()
    train(config(arch=arch), few_digits(), tmp_path / "one", quiet=True)
    assert torch.equal(state, torch.get_rng_state()), "the caller's random state was used"
    with torch.random.fork_rng(devices=[]):
        torch.rand(13)
        train(config(arch=arch), few_digits(), tmp_path / "again", quiet=True)
    train(config(arch=arch, seed=1), few_digits(), tmp_path / "other", quiet=True)
    one = weights(tmp_path / "one")
    assert same(one, weights(tmp_path / "again"))
    assert not same(one, weights(tmp_path / "other"))
    rows = [measured(tmp_path / name) for name in ("one", "again", "other")]
    assert rows[0] == rows[1] != rows[2]


def test_training_learns_the_digits(tmp_path: Path) -> None:
    """Also: the test split is never touched, since `digits()` has none to touch."""
    wanted = config(epochs=3, batch_size=128)
    model = train(wanted, digits(), tmp_path, quiet=True)
    rows = TrainingRun.read(tmp_path).metrics
    assert [row.epoch for row in rows] == [1, 2, 3]
    losses = [row.loss for row in rows]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.5 < math.log(10)
    assert rows[-1].noisy_accuracy > 0.8
    assert not model.training
    again = noisy_accuracy(model, digits().weights, wanted.sigma, wanted.seed)
    assert again == rows[-1].noisy_accuracy
    split = noisy_accuracy(model, digits().weights, 0.0, 0, batch_size=7)
    assert split == noisy_accuracy(model, digits().weights, 0.0, 0)


def test_the_folder_holds_what_was_asked_and_made(tmp_path: Path) -> None:
    out = tmp_path / "new" / "run"
    wanted = config(epochs=2)
    model = train(wanted, few_digits(), out, quiet=True)
    assert sorted(path.name for path in out.iterdir()) == [
        "config.toml",
        "environment.json",
        "metrics.jsonl",
        "model.safetensors",
    ]
    assert TrainConfig.from_dict(read_config(out)) == wanted
    loaded, manifest = load_checkpoint(out)
    assert same(loaded.state_dict(), model.state_dict())
    assert (manifest.arch, manifest.dataset, manifest.sigma) == ("digits-conv", "digits", 0.25)
    assert (manifest.num_classes, manifest.image_shape) == (10, (1, 8, 8))
    assert manifest.class_names == tuple("0123456789")
    assert manifest.training == wanted.as_dict() | describe_images(few_digits())
    config_toml = TrainingRun.read(out).config
    assert {"milestones", "image_shape", "train_data"} <= config_toml.content.keys()
    assert (config_toml.arch, config_toml.sigma, config_toml.seed) == ("digits-conv", 0.25, 0)
    mean, std = digits().mean[0], digits().std[0]
    assert loaded.state_dict()["0.mean"].item() == pytest.approx(mean)
    assert loaded.state_dict()["0.std"].item() == pytest.approx(std)


def test_training_noise_of_a_multiple_of_sigma(tmp_path: Path) -> None:
    """The weights are those of that noise; the network is still one for its sigma."""
    for name, fields in {
        "more": {"sigma": 0.25, "noise_factor": 2.0},
        "that": {"sigma": 0.5},
        "plain": {"sigma": 0.25},
    }.items():
        train(config(**fields), few_digits(), tmp_path / name, quiet=True)
    assert same(weights(tmp_path / "more"), weights(tmp_path / "that"))
    assert not same(weights(tmp_path / "more"), weights(tmp_path / "plain"))
    assert [read_manifest(tmp_path / name).sigma for name in ("more", "that")] == [0.25, 0.5]
    assert read_config(tmp_path / "more")["noise_factor"] == 2.0
    assert "noise_factor" not in read_config(tmp_path / "plain")


def test_a_folder_of_another_config_is_refused_and_kept(tmp_path: Path) -> None:
    train(config(), few_digits(), tmp_path, quiet=True)
    before = files(tmp_path)
    with pytest.raises(CheckpointError, match=r"sigma 0\.25 -> 0\.5"):
        train(config(sigma=0.5), few_digits(), tmp_path, quiet=True)
    assert files(tmp_path) == before


@pytest.mark.parametrize(
    "fields",
    [
        {"arch": "digits-mlp", "epochs": 3, "learning_rate": 1e6},
        {"arch": "digits-conv", "epochs": 3, "learning_rate": 1e6},
        # In the very last step, which no loss follows:
        {"batch_size": 60, "learning_rate": 1e30, "schedule": "constant"},
    ],
)
def test_divergence_names_epoch_and_step(tmp_path: Path, fields: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=r"diverged at epoch \d+, step \d+: .*learning rate"):
        train(config(**fields), few_digits(), tmp_path / "run", quiet=True)
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_a_class_without_training_images_is_named(tmp_path: Path) -> None:
    whole = few_digits()
    labels = torch.where(torch.isin(whole.train.labels, torch.tensor([3, 7])), 0, 1)
    split = dataclasses.replace(whole.train, labels=labels)
    with pytest.raises(BadInput, match=r"digits: training images: .*got none of 2, 3, "):
        train(config(), dataclasses.replace(whole, train=split), tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_a_teacher_is_needed_and_must_fit(tmp_path: Path) -> None:
    asked, dataset = config(method="catrs", votes=10, attack_steps=0), few_digits()
    out = tmp_path / "run"
    with pytest.raises(BadInput, match=r"teacher: expected a trained network .*pass `teacher`"):
        train(asked, dataset, out, quiet=True)
    teacher = tmp_path / "teacher"
    teacher.mkdir()
    with pytest.raises(CheckpointError, match="expected an ensemble folder or a run folder"):
        train(dataclasses.replace(asked, teacher=str(teacher)), dataset, out, quiet=True)
    train(config(), dataset, teacher, quiet=True)
    asked = dataclasses.replace(asked, teacher=str(teacher))
    other = dataclasses.replace(dataset, class_names=tuple("abcdefghij"))
    with pytest.raises(CheckpointError, match=r"teacher .*expected classes \('a', .*same images"):
        train(asked, other, out, quiet=True)
    assert not out.exists()
    train(asked, dataset, out, quiet=True)
    assert read_config(out)["teacher_fingerprint"] == load_ensemble(teacher).fingerprint
    assert TrainConfig.from_dict(read_config(out)) == asked
    train(config(seed=1), dataset, tmp_path / "second", quiet=True)
    (teacher / "model.safetensors").write_bytes(
        (tmp_path / "second" / "model.safetensors").read_bytes()
    )
    with pytest.raises(CheckpointError, match=r"another config \(teacher_fingerprint"):
        train(asked, dataset, out, quiet=True)


@pytest.mark.parametrize(
    ("fields", "kind", "message"),
    [
        ({"dataset": "cifar10"}, BadInput, "dataset: expected cifar10, got digits"),
        ({"arch": "digits-convv"}, UnknownName, "did you mean 'digits-conv'"),
        ({"arch": "tests.models.factories:not_a_module"}, ContractError, "got a list"),
        ({"seed": 2**63}, BadInput, "seed"),
    ],
)
def test_what_cannot_start_leaves_no_folder(
    tmp_path: Path, fields: dict[str, Any], kind: type[BadInput], message: str
) -> None:
    out = tmp_path / "run"
    with pytest.raises(kind, match=message):
        train(config(**fields), few_digits(), out, quiet=True)
    assert not out.exists()


def test_an_architecture_for_other_images_is_refused(tmp_path: Path) -> None:
    wanted = config(dataset="image_folder", arch="digits-mlp")
    with pytest.raises(ContractError, match=r"images of shape \(N, 3, 32, 32\)"):
        train(wanted, photos(), tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_photos_with_crop_flip_train_a_cifar_resnet(tmp_path: Path) -> None:
    wanted = config(dataset="image_folder", arch="resnet20", batch_size=4)
    train(wanted, photos(), tmp_path / "one", quiet=True)
    assert read_manifest(tmp_path / "one").image_shape == (3, 32, 32)
    train(wanted, photos(augmentation="none"), tmp_path / "plain", quiet=True)
    assert not same(weights(tmp_path / "one"), weights(tmp_path / "plain")), "nothing was augmented"


def test_what_the_network_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole batches of other images each epoch, in [0,1], with fresh noise in pixel units."""
    seen: list[torch.Tensor] = []
    clean: list[torch.Tensor] = []
    images_of, noisy_of = StepInputs.images, TrainingStep._noisy

    def watch_images(self: StepInputs, drawn: Any) -> torch.Tensor:
        clean.append(images_of(self, drawn))
        return clean[-1]

    def watch_noisy(self: TrainingStep, drawn: Any, noise: torch.Tensor) -> torch.Tensor:
        seen.append(noisy_of(self, drawn, noise))
        return seen[-1]

    monkeypatch.setattr(StepInputs, "images", watch_images)
    monkeypatch.setattr(TrainingStep, "_noisy", watch_noisy)
    dataset = few_digits(50)
    train(config(epochs=2, copies=2), dataset, tmp_path, quiet=True)
    assert [len(images) for images in clean] == [16, 16, 16] * 2
    everything = {tuple(row) for row in dataset.train.all_images().flatten(1).tolist()}
    epochs = [torch.cat(clean[part : part + 3]).flatten(1) for part in (0, 3)]
    for images in epochs:
        rows = {tuple(row) for row in images.tolist()}
        assert rows <= everything
        assert 0 <= images.min() <= images.max() <= 1
    assert not torch.equal(epochs[0], epochs[1])
    noise = torch.cat(
        [noisy - images.repeat(2, 1, 1, 1) for noisy, images in zip(seen, clean, strict=True)]
    ).flatten(1)
    assert len({tuple(row) for row in noise.tolist()}) == 2 * 96, "a noise vector comes twice"
    assert noise.std().item() == pytest.approx(0.25, rel=0.03)


@pytest.mark.slow
def test_acr_trains_for_the_average_certified_radius(tmp_path: Path) -> None:
    """Larger than by as many noisy copies without attack, dropped and weighed images."""
    held_out, found = digits().weights, dict[str, float]()
    for method in ("gaussian", "acr"):
        wanted = config(method=method, sigma=1.0, copies=4, epochs=10, batch_size=64, average=0.99)
        model = train(wanted, digits(), tmp_path / method, quiet=True)
        votes = count_votes(
            model, held_out, sigma=1.0, copies=500, num_classes=10, seed=1, purpose="test"
        )
        answers = votes.argmax(dim=1)
        top = votes.amax(dim=1).numpy()
        radii = radius_cohen(top, 500, alpha=0.001, sigma=1.0)
        found[method] = float((radii * (answers == held_out.labels).numpy()).mean())
    assert found["acr"] > 1.4 * found["gaussian"]


def test_temporal_remembers_each_image_it_saw(tmp_path: Path) -> None:
    """An epoch of 50 images in batches of 16 leaves out two of them."""
    wanted = config(method="temporal", epochs=3, batch_size=16)
    trainer = Trainer(wanted, few_digits(50), tmp_path, device=torch.device("cpu"))
    assert len(list(trainer.run())) == 9
    totals = trainer.per_image["memory"].double().sum(dim=1)
    looks = torch.log(1 - totals) / math.log(0.9)
    assert torch.allclose(looks, looks.round(), atol=1e-4)
    assert int(looks.round().sum()) == 3 * 48
    assert int(looks.max().round()) == 3


def test_temporal_learns_the_true_classes(tmp_path: Path) -> None:
    """Agreement alone could be had by one class for all images, as it is for too large a lambda."""
    own = {"method": "temporal", "regulariser": 1.0, "sigma": 1.0, "average": 0.99}
    wanted = config(**own, epochs=15, batch_size=64)
    model = train(wanted, digits(), tmp_path, quiet=True)
    split = digits().weights
    votes = count_votes(model, split, sigma=1.0, copies=50, num_classes=10, seed=1, purpose="test")
    assert (votes.argmax(dim=1) == split.labels).float().mean() > 0.7
