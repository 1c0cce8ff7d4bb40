"""The weighted ensemble and its folders."""

import shutil
from pathlib import Path

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
from sween.ensemble.weighted import check_weights
from sween.errors import BadInput, CheckpointError, ContractError
from sween.models import Manifest, create_model, save_checkpoint
from sween.smoothing import SmoothedClassifier

SHAPE = (1, 8, 8)


def _member(seed: int) -> nn.Module:
    return create_model("digits-mlp", num_classes=10, image_shape=SHAPE, seed=seed).eval()


def _images() -> torch.Tensor:
    return torch.rand(4, *SHAPE, generator=torch.Generator().manual_seed(0))


def test_probabilities_are_the_weighted_mean_of_softmaxes() -> None:
    members = [_member(seed) for seed in range(3)]
    weights = [0.2, 0.5, 0.3]
    ensemble = WeightedEnsemble(members, weights)
    images = _images()
    with torch.inference_mode():
        expected = sum(
            w * torch.softmax(m(images), dim=1) for w, m in zip(weights, members, strict=True)
        )
        assert isinstance(expected, torch.Tensor)
        torch.testing.assert_close(ensemble(images), expected)
        assert float(ensemble(images).sum(1).sub(1).abs().max()) < 1e-6
    assert ensemble.order == [1, 2, 0]


def test_smoothing_and_ensembling_commute() -> None:
    """Section 4.1 of the paper: the mean of the mixture is the mixture of the means."""
    members = [_member(seed) for seed in range(2)]
    ensemble = WeightedEnsemble(members, [0.7, 0.3])
    noisy = _images()[0] + 0.5 * torch.randn(
        500, *SHAPE, generator=torch.Generator().manual_seed(0)
    )
    with torch.inference_mode():
        smoothed = [torch.softmax(m(noisy), dim=1).mean(0) for m in members]
        torch.testing.assert_close(ensemble(noisy).mean(0), 0.7 * smoothed[0] + 0.3 * smoothed[1])


def test_weights_are_uniform_by_default_and_stay_on_the_simplex() -> None:
    ensemble = WeightedEnsemble([_member(0), _member(1)])
    assert ensemble.weights.tolist() == [0.5, 0.5]
    ensemble.weights = [0.25, 0.75]
    ensemble.weights[0] = 9.0  # a copy
    assert ensemble.weights.tolist() == [0.25, 0.75]


@pytest.mark.parametrize(
    "weights", [[0.5, 0.6], [-0.1, 1.1], [1.0], [float("nan"), 1.0], [0.0, 0.0]]
)
def test_weights_off_the_simplex(weights: list[float]) -> None:
    with pytest.raises(BadInput, match="weights"):
        WeightedEnsemble([_member(0), _member(1)], weights)


OFF_THE_SIMPLEX = {
    "nan": [float("nan"), 1.0],
    "zeros": [0.0, 0.0],
    "negative": [-0.1, 1.1],
    "too short": [1.0],
    "too long": [0.5, 0.25, 0.25],
    "infinite": [float("inf"), 0.0],
    "another sum": [0.5, 0.6],
    "no numbers": ["a", "b"],
}


@pytest.mark.parametrize("kind", OFF_THE_SIMPLEX)
def test_other_weightings_are_checked_as_the_ensembles_own(kind: str) -> None:
    """NaN weights would vote, for class 0."""
    ensemble = WeightedEnsemble([_member(0), _member(1)])
    with pytest.raises(BadInput, match="weighting other: expected"):
        SmoothedClassifier(
            ensemble,
            sigma=0.5,
            num_classes=10,
            weightings={"other": OFF_THE_SIMPLEX[kind]},  # type: ignore[dict-item]
        )


def test_invalid_weights_do_not_vote() -> None:
    ensemble = WeightedEnsemble([_member(0), _member(1)])
    smoothed = SmoothedClassifier(ensemble, sigma=0.5, num_classes=10)
    ensemble._weights = (float("nan"), 1.0)
    with pytest.raises(BadInput, match="weights: expected non-negative numbers"):
        smoothed.certify(_images(), n=200)
    with pytest.raises(BadInput, match="weights: expected non-negative numbers"):
        smoothed.predict(_images(), n=200)
    ensemble.weights = [0.5, 0.5]
    ensemble.members.append(_member(2))
    with pytest.raises(BadInput, match="weights: expected 3 numbers"):
        smoothed.predict(_images(), n=200)


def test_it_can_be_exported() -> None:
    """To a graph with the same outputs, for any number of images."""
    ensemble = WeightedEnsemble([_member(seed) for seed in range(3)], [0.2, 0.5, 0.3]).eval()
    images = _images()
    batch = torch.export.Dim("batch")
    for shapes in (None, ({0: batch},)):
        graph = torch.export.export(ensemble, (images,), dynamic_shapes=shapes).module()
        with torch.inference_mode():
            assert torch.equal(graph(images), ensemble(images))
            if shapes is not None:
                more = torch.cat([images] * 3)
                assert torch.equal(graph(more), ensemble(more))


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of torch's own exporter
def test_it_can_be_exported_to_onnx(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    ensemble = WeightedEnsemble([_member(seed) for seed in range(3)], [0.2, 0.5, 0.3]).eval()
    path = tmp_path / "ensemble.onnx"
    torch.onnx.export(ensemble, (_images(),), path, dynamo=True)
    session = runtime.InferenceSession(path)
    (found,) = session.run(None, {session.get_inputs()[0].name: _images().numpy()})
    with torch.inference_mode():
        torch.testing.assert_close(torch.from_numpy(found), ensemble(_images()))


def test_members_must_be_modules_of_one_class_count() -> None:
    with pytest.raises(BadInput, match="members"):
        WeightedEnsemble([])
    with pytest.raises(ContractError, match="member 0"):
        WeightedEnsemble([lambda x: x])  # type: ignore[list-item]
    other = create_model("digits-mlp", num_classes=7, image_shape=SHAPE)
    with pytest.raises(ContractError, match=r"expected 10 classes.*got 7"):
        WeightedEnsemble([_member(0), other])(_images())


def test_gradients_flow_to_the_image() -> None:
    images = _images().requires_grad_()
    WeightedEnsemble([_member(0), _member(1)])(images)[:, 0].sum().backward()
    assert images.grad is not None
    assert float(images.grad.abs().sum()) > 0


def make_run(
    folder: Path, seed: int, *, sigma: float = 0.5, classes: int = 10, named: int | None = None
) -> Path:
    """A run folder with an untrained network; `named` overrides the seed in its manifest."""
    manifest = Manifest(
        arch="digits-mlp",
        num_classes=classes,
        image_shape=SHAPE,
        dataset="digits",
        class_names=tuple(str(k) for k in range(classes)),
        sigma=sigma,
        training={"seed": seed if named is None else named},
    )
    model = create_model("digits-mlp", num_classes=classes, image_shape=SHAPE, seed=seed)
    save_checkpoint(model, folder / "model.safetensors", manifest)
    return folder


def make_solution(weights: tuple[float, ...]) -> WeightSolution:
    return WeightSolution(
        method="convex",
        weights=weights,
        loss=0.5,
        gap=0.0,
        iterations=1,
        samples=100,
        seed=0,
        seconds=0.1,
    )


@pytest.fixture
def ensemble_folder(tmp_path: Path) -> Path:
    runs = [make_run(tmp_path / name, seed) for seed, name in enumerate("abc")]
    loaded = load_members(runs)
    loaded.weights = [0.2, 0.3, 0.5]
    save_ensemble(loaded, runs, make_solution((0.2, 0.3, 0.5)), tmp_path / "ensemble")
    return tmp_path / "ensemble"


def test_an_ensemble_folder_is_self_contained(ensemble_folder: Path, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere" / "moved"
    moved.parent.mkdir()
    shutil.move(ensemble_folder, moved)
    for name in "abc":
        shutil.rmtree(tmp_path / name)
    loaded = load_ensemble(moved)
    assert loaded.weights.tolist() == [0.2, 0.3, 0.5]
    assert loaded.member_names == (
        "digits-mlp-seed0",
        "digits-mlp-seed1",
        "digits-mlp-seed2",
    )
    assert loaded.name == "SWEEN-3"
    with torch.inference_mode():
        torch.testing.assert_close(loaded.members[1](_images()), _member(1)(_images()))


def test_a_run_loads_as_an_ensemble_of_one(tmp_path: Path) -> None:
    loaded = load_ensemble(make_run(tmp_path / "a", 0))
    assert loaded.name == "digits-mlp"
    assert loaded.weights.tolist() == [1.0]


def test_the_fingerprint_covers_weights_and_members(ensemble_folder: Path, tmp_path: Path) -> None:
    loaded = load_ensemble(ensemble_folder)
    before = loaded.fingerprint
    loaded.weights = [0.3, 0.2, 0.5]
    assert loaded.fingerprint != before
    assert load_ensemble(tmp_path / "a").fingerprint != load_ensemble(tmp_path / "b").fingerprint


def test_a_replaced_member_is_detected(ensemble_folder: Path) -> None:
    members = ensemble_folder / "members"
    shutil.copyfile(
        members / "digits-mlp-seed0.safetensors", members / "digits-mlp-seed1.safetensors"
    )
    with pytest.raises(CheckpointError, match="member digits-mlp-seed1"):
        load_ensemble(ensemble_folder)


def test_writing_again_replaces_an_ensemble_and_nothing_else(
    ensemble_folder: Path, tmp_path: Path
) -> None:
    runs = [tmp_path / name for name in "ab"]
    loaded = load_members(runs)
    save_ensemble(loaded, runs, make_solution((0.5, 0.5)), ensemble_folder)
    assert len(load_ensemble(ensemble_folder).member_names) == 2
    with pytest.raises(BadInput, match="other files"):
        save_ensemble(loaded, runs, make_solution((0.5, 0.5)), tmp_path / "a")
    assert (tmp_path / "a" / "model.safetensors").exists()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("change", [{"sigma": 0.25}, {"classes": 7}])
def test_incompatible_members_are_refused(tmp_path: Path, change: dict[str, float]) -> None:
    runs = [make_run(tmp_path / "a", 0), make_run(tmp_path / "b", 1, **change)]  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match=r"sigma|num_classes"):
        load_members(runs)


def test_weights_are_part_of_the_state_dict() -> None:
    first = WeightedEnsemble([_member(0), _member(1)], [0.25, 0.75])
    second = WeightedEnsemble([_member(2), _member(3)])
    second.load_state_dict(first.state_dict())
    assert second.weights.tolist() == [0.25, 0.75]
    with torch.inference_mode():
        assert torch.equal(first(_images()), second(_images()))


def test_checking_weights_twice_changes_nothing() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(500):
        raw = torch.rand(3, generator=generator, dtype=torch.float64)
        once = check_weights(raw / raw.sum(), 3)
        assert torch.equal(check_weights(once, 3), once)
