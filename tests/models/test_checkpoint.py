"""Checkpoints: what was saved comes back to the bit, with what it was trained for."""

import dataclasses
import errno
import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from sween.errors import CheckpointError
from sween.models import ARCHITECTURES, load_checkpoint, read_manifest, save_checkpoint
from sween.models.checkpoint import fingerprint

from .checkpoints import MANIFEST, manifest_content, network, rewrite


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
    assert manifest == returned == read_manifest(path) == load_checkpoint(tmp_path)[1]
    assert manifest == dataclasses.replace(given, fingerprint=fingerprint(given, ours))
    assert not again.training
    images = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    assert torch.equal(model.eval()(images), again(images))


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


def test_saving_twice_gives_the_same_bytes(saved: Path) -> None:
    before = saved.read_bytes()
    save_checkpoint(network(), saved, MANIFEST)
    assert saved.read_bytes() == before


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
    with pytest.raises(CheckpointError, match=r"got digits-transformer; register it") as caught:
        load_checkpoint(saved)
    assert all(name in str(caught.value) for name in ARCHITECTURES)


def test_tensors_that_do_not_fit_are_named(saved: Path) -> None:
    tensors = network().state_dict()
    tensors["1.10.weight"] = torch.zeros(10, 500)
    content = manifest_content(saved) | {"fingerprint": fingerprint(MANIFEST, tensors)}
    rewrite(saved, manifest=content, tensors=tensors)
    with pytest.raises(CheckpointError, match=r"1\.10\.weight.*\[10, 500\].*\[10, 512\]"):
        load_checkpoint(saved)
    tensors = {f"{name}.x": tensor for name, tensor in network().state_dict().items()}
    content["fingerprint"] = fingerprint(MANIFEST, tensors)
    rewrite(saved, manifest=content, tensors=tensors)
    with pytest.raises(CheckpointError, match=r"Missing key.*0\.mean.* \.\.\.\)"):
        load_checkpoint(saved)
    tensors = network().state_dict() | {"extra": torch.zeros(1)}
    rewrite(saved, manifest=content, tensors=tensors)
    with pytest.raises(CheckpointError, match=r'Unexpected key.*"extra"'):
        load_checkpoint(saved)
