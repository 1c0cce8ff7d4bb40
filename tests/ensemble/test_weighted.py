"""The weighted ensemble and its folders."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sween.ensemble import (
    WeightedEnsemble,
    WeightSolution,
    load_ensemble,
    load_members,
    save_ensemble,
)
from sween.ensemble.weighted import check_weights, evaluation_order
from sween.errors import BadInput, CheckpointError, ContractError
from sween.models import Manifest, create_model, save_checkpoint
from tests.smoothing.small import SHAPE, images, smoothed


def _member(seed: int) -> nn.Module:
    return create_model("digits-mlp", num_classes=10, image_shape=SHAPE, seed=seed).eval()


def _ensemble(*weights: float) -> WeightedEnsemble:
    return WeightedEnsemble([_member(seed) for seed in range(len(weights))], weights).eval()


@torch.inference_mode()
def test_probabilities_are_the_weighted_mean_of_softmaxes() -> None:
    ensemble = _ensemble(0.2, 0.5, 0.3)
    first, second, third = (torch.softmax(_member(seed)(images()), dim=1) for seed in range(3))
    torch.testing.assert_close(ensemble(images()), 0.2 * first + 0.5 * second + 0.3 * third)
    assert float(ensemble(images()).sum(1).sub(1).abs().max()) < 1e-6
    assert evaluation_order(ensemble.weights.tolist()) == [1, 2, 0]


def test_members_of_equal_weight_keep_their_order() -> None:
    """With an exit and without: sums in another order could round differently."""
    assert evaluation_order([0.25, 0.5, 0.25]) == [1, 0, 2]


def test_weights_are_uniform_by_default_and_stay_on_the_simplex() -> None:
    ensemble = WeightedEnsemble([_member(0), _member(1)])
    assert ensemble.weights.tolist() == [0.5, 0.5]
    ensemble.weights = [0.25, 0.75]
    ensemble.weights[0] = 9.0  # a copy
    assert ensemble.weights.tolist() == [0.25, 0.75]


OFF_THE_SIMPLEX: dict[str, Any] = {
    "nan": [float("nan"), 1.0],
    "zeros": [0.0, 0.0],
    "negative": [-0.1, 1.1],
    "too short": [1.0],
    "too long": [0.5, 0.25, 0.25],
    "infinite": [float("inf"), 0.0],
    "wrong sum": [0.5, 0.6],
    "not numbers": ["a", "b"],
}


@pytest.mark.parametrize("kind", OFF_THE_SIMPLEX)
def test_weights_off_the_simplex_are_refused(kind: str) -> None:
    """Those of an ensemble and those of other weightings; NaN weights would vote, for class 0."""
    weights = OFF_THE_SIMPLEX[kind]
    with pytest.raises(BadInput, match="weights"):
        WeightedEnsemble([_member(0), _member(1)], weights)
    with pytest.raises(BadInput, match="weighting other: expected"):
        smoothed(_ensemble(0.5, 0.5), weightings={"other": weights})


def test_invalid_weights_do_not_vote() -> None:
    ensemble = _ensemble(0.5, 0.5)
    classifier = smoothed(ensemble)
    ensemble._weights = (float("nan"), 1.0)
    for ask in (classifier.certify, classifier.predict):
        with pytest.raises(BadInput, match="weights: expected non-negative numbers"):
            ask(images(), n=200)
    ensemble.weights = [0.5, 0.5]
    ensemble.members.append(_member(2))
    with pytest.raises(BadInput, match="weights: expected 3 numbers"):
        classifier.predict(images(), n=200)


@pytest.mark.parametrize("dynamic", [False, True])
@torch.inference_mode()
def test_an_ensemble_can_be_exported(dynamic: bool) -> None:
    """To a graph with the same outputs, also for any number of images."""
    ensemble = _ensemble(0.2, 0.5, 0.3)
    shapes = ({0: torch.export.Dim("batch")},) if dynamic else None
    graph = torch.export.export(ensemble, (images(3),), dynamic_shapes=shapes).module()
    batch = images(9 if dynamic else 3)
    assert torch.equal(graph(batch), ensemble(batch))


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of torch's own exporter
@torch.inference_mode()
def test_an_ensemble_can_be_exported_to_onnx(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    ensemble, path = _ensemble(0.2, 0.5, 0.3), tmp_path / "ensemble.onnx"
    torch.onnx.export(ensemble, (images(),), path, dynamo=True)
    session = runtime.InferenceSession(path)
    (found,) = session.run(None, {session.get_inputs()[0].name: images().numpy()})
    torch.testing.assert_close(torch.from_numpy(found), ensemble(images()))


def test_members_must_be_modules_with_the_same_number_of_classes() -> None:
    with pytest.raises(BadInput, match="members"):
        WeightedEnsemble([])
    with pytest.raises(ContractError, match="member 0"):
        WeightedEnsemble([lambda x: x])  # type: ignore[list-item]
    with pytest.raises(ContractError, match="a WeightedEnsemble, which returns probabilities"):
        WeightedEnsemble([_ensemble(1.0)])
    other = create_model("digits-mlp", num_classes=7, image_shape=SHAPE)
    with pytest.raises(ContractError, match=r"expected 10 classes.*got 7"):
        WeightedEnsemble([_member(0), other])(images())


def test_gradients_flow_to_the_image() -> None:
    batch = images().requires_grad_()
    _ensemble(0.5, 0.5)(batch)[:, 0].sum().backward()
    assert batch.grad is not None
    assert float(batch.grad.abs().sum()) > 0


def make_run(folder: Path, seed: int, *, named: int | None = None) -> Path:
    """A run folder with an untrained network; `named` overrides the seed in its manifest."""
    manifest = Manifest(
        arch="digits-mlp",
        num_classes=10,
        image_shape=SHAPE,
        dataset="digits",
        class_names=tuple("0123456789"),
        sigma=0.5,
        training={"seed": seed if named is None else named},
    )
    save_checkpoint(_member(seed), folder / "model.safetensors", manifest)
    return folder


def make_solution(weights: tuple[float, ...]) -> WeightSolution:
    found: dict[str, Any] = {"loss": 0.5, "gap": 0.0, "iterations": 1, "seconds": 0.1}
    return WeightSolution(method="convex", weights=weights, samples=100, seed=0, **found)


@pytest.fixture
def ensemble_folder(tmp_path: Path) -> Path:
    runs = [make_run(tmp_path / name, seed) for seed, name in enumerate("abc")]
    save_ensemble(load_members(runs), runs, make_solution((0.2, 0.3, 0.5)), tmp_path / "ensemble")
    return tmp_path / "ensemble"


def test_an_ensemble_folder_is_self_contained(ensemble_folder: Path, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere" / "moved"
    moved.parent.mkdir()
    shutil.move(ensemble_folder, moved)
    for name in "abc":
        shutil.rmtree(tmp_path / name)
    loaded = load_ensemble(moved)
    assert loaded.weights.tolist() == [0.2, 0.3, 0.5]
    assert loaded.member_names == tuple(f"digits-mlp-seed{seed}" for seed in range(3))
    assert loaded.name == "SWEEN-3"
    with torch.inference_mode():
        torch.testing.assert_close(loaded.members[1](images()), _member(1)(images()))


def test_the_fingerprint_covers_weights_and_members(ensemble_folder: Path, tmp_path: Path) -> None:
    loaded = load_ensemble(ensemble_folder)
    before = loaded.fingerprint
    loaded.weights = [0.3, 0.2, 0.5]
    assert loaded.fingerprint != before
    assert load_ensemble(tmp_path / "a").fingerprint != load_ensemble(tmp_path / "b").fingerprint


def test_a_replaced_member_is_detected(ensemble_folder: Path) -> None:
    members = ensemble_folder / "members"
    first, second = (members / f"digits-mlp-seed{seed}.safetensors" for seed in range(2))
    shutil.copyfile(first, second)
    with pytest.raises(CheckpointError, match="member digits-mlp-seed1"):
        load_ensemble(ensemble_folder)


def test_weights_are_part_of_the_state_dict() -> None:
    first = _ensemble(0.25, 0.75)
    second = WeightedEnsemble([_member(2), _member(3)])
    second.load_state_dict(first.state_dict())
    assert second.weights.tolist() == [0.25, 0.75]
    with torch.inference_mode():
        assert torch.equal(first(images()), second(images()))


def test_checking_weights_twice_changes_nothing() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(500):
        raw = torch.rand(3, generator=generator, dtype=torch.float64)
        once = check_weights(raw / raw.sum(), 3)
        assert torch.equal(check_weights(once, 3), once)
