"""Checkpoints: what was saved comes back to the bit, with what it was trained for."""

import dataclasses
import errno
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from sween.errors import BadInput, CheckpointError
from sween.models import (
    ARCHITECTURES,
    Manifest,
    create_model,
    load_checkpoint,
    read_manifest,
    save_checkpoint,
)
from sween.models.checkpoint import fingerprint, state_differences

MANIFEST = Manifest(
    arch="digits-conv",
    num_classes=10,
    image_shape=(1, 8, 8),
    dataset="digits",
    class_names=tuple("0123456789"),
    sigma=0.25,
    training={"seed": 3, "learning_rate": 0.1},
)
FACTORY = "tests.models.factories:with_classes"


def network(arch: str = "digits-conv", seed: int = 3) -> nn.Module:
    model = create_model(
        arch, num_classes=10, image_shape=(1, 8, 8), mean=(0.3,), std=(0.4,), seed=seed
    )
    if isinstance(model, nn.Sequential) and len(model) == 2:
        model(torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(0)))  # batch norm
    return model


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save_checkpoint(network(), tmp_path / "model.safetensors", MANIFEST)
    return tmp_path / "model.safetensors"


def rewrite(
    path: Path,
    *,
    manifest: dict[str, Any] | str | None = None,
    tensors: dict[str, torch.Tensor] | None = None,
) -> None:
    """Replace the manifest or the tensors of a checkpoint, as nobody but a test would."""
    with safe_open(path, framework="pt") as stream:
        header = stream.metadata()["sween"]
        content = {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118
    text = manifest if isinstance(manifest, str) else json.dumps(manifest or json.loads(header))
    save_file(tensors or content, path, metadata={"sween": text})


def manifest_content(path: Path) -> dict[str, Any]:
    return json.loads(json.dumps(dataclasses.asdict(read_manifest(path))))  # type: ignore[no-any-return]


@pytest.mark.parametrize("arch", ["digits-mlp", "digits-conv", "digits-resnet"])
def test_weights_come_back_to_the_bit(tmp_path: Path, arch: str) -> None:
    path, model = tmp_path / "model.safetensors", network(arch)
    given = dataclasses.replace(MANIFEST, arch=arch)
    returned = save_checkpoint(model, path, given)
    again, manifest = load_checkpoint(path)
    ours, theirs = model.state_dict(), again.state_dict()
    assert list(ours) == list(theirs)
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name])
        assert tensor.dtype == theirs[name].dtype
    assert manifest == returned == read_manifest(path)
    assert manifest == dataclasses.replace(given, fingerprint=fingerprint(given, ours))
    assert not again.training
    images = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    assert torch.equal(model.eval()(images), again(images))


def test_the_normalisation_travels_with_the_weights(saved: Path) -> None:
    state = load_checkpoint(saved)[0].state_dict()
    assert state["0.mean"].flatten().tolist() == pytest.approx([0.3])
    assert state["0.std"].flatten().tolist() == pytest.approx([0.4])


def test_the_manifest_lies_in_the_files_header(saved: Path) -> None:
    with safe_open(saved, framework="pt") as stream:
        content = json.loads(stream.metadata()["sween"])
    assert content == {
        "arch": "digits-conv",
        "num_classes": 10,
        "image_shape": [1, 8, 8],
        "dataset": "digits",
        "class_names": list("0123456789"),
        "sigma": 0.25,
        "training": {"seed": 3, "learning_rate": 0.1},
        "fingerprint": fingerprint(MANIFEST, network().state_dict()),
        "version": 1,
    }


def test_a_run_folder_is_a_checkpoint_too(saved: Path) -> None:
    assert load_checkpoint(saved.parent)[1] == read_manifest(saved)


def test_saving_twice_gives_the_same_bytes_and_reads_no_random_numbers(saved: Path) -> None:
    state = torch.get_rng_state()
    before = saved.read_bytes()
    save_checkpoint(network(), saved, MANIFEST)
    load_checkpoint(saved)
    assert saved.read_bytes() == before
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_load_into_float32(tmp_path: Path, dtype: torch.dtype) -> None:
    path, model = tmp_path / "model.safetensors", network().to(dtype)
    manifest = save_checkpoint(model, path, MANIFEST)
    again, _ = load_checkpoint(path)
    assert manifest.fingerprint == fingerprint(MANIFEST, model.state_dict())
    assert manifest.fingerprint != fingerprint(MANIFEST, network().state_dict())
    for name, tensor in again.state_dict().items():
        if tensor.is_floating_point():
            assert tensor.dtype == torch.float32
        assert torch.equal(tensor, model.state_dict()[name].to(tensor.dtype))


def test_the_fingerprint_sees_names_types_shapes_and_bits() -> None:
    tensors = {"a": torch.arange(6.0), "b": torch.tensor(1)}
    base = fingerprint(MANIFEST, tensors)
    assert base == fingerprint(MANIFEST, dict(reversed(tensors.items())))
    others: list[dict[str, torch.Tensor]] = [
        {"a": tensors["a"], "c": tensors["b"]},
        {"a": tensors["a"].view(2, 3), "b": tensors["b"]},
        {"a": tensors["a"].view(torch.int32), "b": tensors["b"]},
        {"a": tensors["a"].clone().index_fill_(0, torch.tensor([0]), -0.0), "b": tensors["b"]},
        {"a": tensors["a"]},
    ]
    assert len({base, *(fingerprint(MANIFEST, other) for other in others)}) == 6
    strided = torch.stack([tensors["a"], tensors["a"]], dim=1)[:, 0]
    assert fingerprint(MANIFEST, {"a": strided, "b": tensors["b"]}) == base
    assert fingerprint(dataclasses.replace(MANIFEST, sigma=0.5), tensors) != base
    assert fingerprint(dataclasses.replace(MANIFEST, fingerprint=base), tensors) == base


def test_a_failed_save_keeps_the_old_file(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = saved.read_bytes()

    def fail_midway(self: Path, content: bytes) -> int:
        with self.open("wb") as stream:
            stream.write(content[: len(content) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", fail_midway)
    with pytest.raises(OSError, match="No space left"):
        save_checkpoint(network(seed=4), saved, MANIFEST)
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]


def test_the_architecture_asked_for_must_be_the_one_inside(saved: Path) -> None:
    assert load_checkpoint(saved, arch="digits-conv")[1].arch == "digits-conv"
    with pytest.raises(CheckpointError, match="expected digits-mlp, got digits-conv"):
        load_checkpoint(saved, arch="digits-mlp")


def test_an_architecture_of_a_later_version_is_named(saved: Path) -> None:
    rewrite(saved, manifest=manifest_content(saved) | {"arch": "digits-transformer"})
    with pytest.raises(CheckpointError, match=r"got digits-transformer.*upgrade") as caught:
        load_checkpoint(saved)
    assert all(name in str(caught.value) for name in ARCHITECTURES)


def test_tensors_that_do_not_fit_are_named(saved: Path) -> None:
    tensors = network().state_dict()
    tensors["1.10.weight"] = torch.zeros(10, 500)
    content = manifest_content(saved) | {"fingerprint": fingerprint(MANIFEST, tensors)}
    rewrite(saved, manifest=content, tensors=tensors)
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(saved)
    assert "1.10.weight has shape (10, 500) where (10, 512) is needed" in str(caught.value)
    tensors = {f"{name}.x": tensor for name, tensor in network().state_dict().items()}
    content["fingerprint"] = fingerprint(MANIFEST, tensors)
    rewrite(saved, manifest=content, tensors=tensors)
    with pytest.raises(
        CheckpointError, match=r"no tensor 0\.mean; no tensor 0\.std;.*and \d+ more"
    ):
        load_checkpoint(saved)


def test_other_class_counts_do_not_fit(saved: Path) -> None:
    names = {"num_classes": 11, "class_names": [*"0123456789", "ten"]}
    rewrite(saved, manifest=manifest_content(saved) | names)
    with pytest.raises(CheckpointError, match=r"1\.10\.weight has shape \(10, 512\) where \(11"):
        load_checkpoint(saved)


def test_state_differences() -> None:
    wanted = {"a": torch.zeros(2), "b": torch.zeros(3)}
    assert state_differences(wanted, dict(wanted)) == []
    assert state_differences(wanted, {"b": torch.zeros(4), "c": torch.zeros(1)}) == [
        "no tensor a",
        "unknown tensor c",
        "b has shape (4,) where (3,) is needed",
    ]


def test_a_callers_own_network_loads_when_named(tmp_path: Path) -> None:
    path, model = tmp_path / "model.safetensors", network(FACTORY)
    save_checkpoint(model, path, dataclasses.replace(MANIFEST, arch=FACTORY))
    again, _ = load_checkpoint(path, arch=FACTORY)
    images = torch.rand(3, 1, 8, 8)
    assert torch.equal(model(images), again(images))
    with pytest.raises(CheckpointError, match=f"--arch {FACTORY}"):
        load_checkpoint(path)


def test_a_vanished_factory_is_one_line(tmp_path: Path) -> None:
    path, arch = tmp_path / "model.safetensors", "gone.module:factory"
    save_checkpoint(network(FACTORY), path, dataclasses.replace(MANIFEST, arch=arch))
    with pytest.raises(BadInput, match="No module named 'gone'"):
        load_checkpoint(path, arch=arch)
