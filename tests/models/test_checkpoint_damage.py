"""Damaged, foreign and hostile checkpoint files: refused in one line, and nothing runs."""

import json
import pickle
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import sween
from sween.errors import CheckpointError
from sween.models import load_checkpoint, read_manifest, save_checkpoint

from .checkpoints import MANIFEST, manifest_content, network, rewrite


def refused(path: Path, match: str, **options: Any) -> None:
    with pytest.raises(CheckpointError, match=match) as caught:
        load_checkpoint(path, **options)
    assert len(str(caught.value).splitlines()) == 1
    assert str(path) in str(caught.value)
    assert "; " in str(caught.value), "no fix"


def test_a_flipped_bit_is_found(saved: Path) -> None:
    whole = saved.read_bytes()
    start = 8 + int.from_bytes(whole[:8], "little")
    choose = random.Random(0)
    weights = [start, len(whole) - 1, *(choose.randrange(start, len(whole)) for _ in range(20))]
    header = [*range(8), *(choose.randrange(start) for _ in range(150))]
    for position in (*weights, *header):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << choose.randrange(8)
        saved.write_bytes(damaged)
        message = "fingerprint of weights and manifest: expected [0-9a-f]{16}, got [0-9a-f]{16}"
        with pytest.raises(CheckpointError, match=message if position in weights else None):
            load_checkpoint(saved)
    saved.write_bytes(whole)
    load_checkpoint(saved)


def test_another_kind_of_file_is_refused(saved: Path) -> None:
    whole = saved.read_bytes()
    cuts = [whole[: int(len(whole) * share)] for share in (0.0, 0.001, 0.01, 0.5, 0.9999)]
    for content in (*cuts, whole + b"x", b"{}", b"not a checkpoint" * 50, b"\xff" * 100):
        saved.write_bytes(content)
        refused(saved, "safetensors file")
    with pytest.raises(CheckpointError):
        read_manifest(saved)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    refused(tmp_path / "absent.safetensors", "got no such file")
    with pytest.raises(CheckpointError, match=r"model\.safetensors.*got no such file"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}])
def test_a_file_without_a_manifest_is_refused(
    tmp_path: Path, metadata: dict[str, str] | None
) -> None:
    path = tmp_path / "model.safetensors"
    save_file(dict(network("digits-conv").state_dict()), path, metadata=metadata)
    refused(path, "a sween manifest in the file's header, got none")


@pytest.mark.parametrize("text", ["", "{", "[]", "7", "null", '"text"', '{"version": 1}'])
def test_a_header_that_is_not_a_manifest_is_refused(saved: Path, text: str) -> None:
    rewrite(saved, manifest=text)
    refused(saved, "manifest: expected version 1")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_classes", "10"),
        ("num_classes", 11),
        ("image_shape", [1, 8]),
        ("image_shape", [1, "8", 8]),
        ("class_names", [*range(10)]),
        ("sigma", "0.25"),
        ("arch", 5),
        ("fingerprint", None),
        ("training", []),
        ("unknown", 1),
        ("version", 2),
    ],
)
def test_a_manifest_with_another_type_is_refused_by_name(
    saved: Path, field: str, value: object
) -> None:
    rewrite(saved, manifest=manifest_content(saved) | {field: value})
    refused(saved, f"manifest: .*{field}")


def test_a_strangers_factory_is_not_imported_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stranger_module.py").write_text(
        "from pathlib import Path\n"
        "from torch import nn\n"
        "Path(__file__).with_name('it-ran').touch()\n"
        "def factory():\n    return nn.Flatten()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    path, arch = tmp_path / "model.safetensors", "stranger_module:factory"
    content = MANIFEST.__dict__ | {"arch": arch}
    save_checkpoint(nn.Linear(1, 1), path, type(MANIFEST)(**content))
    assert read_manifest(path).arch == arch
    refused(path, rf"not imported without consent; .* pass `arch='{arch}'`")
    with pytest.raises(CheckpointError, match=rf"without consent; .* pass `archs=\['{arch}'\]`"):
        sween.load(path)
    refused(path, "expected digits-conv, got stranger", arch="digits-conv")
    refused(path, "expected other:factory, got stranger", arch="other:factory")
    assert not (tmp_path / "it-ran").exists()
    refused(path, "does not fit", arch=arch)
    assert (tmp_path / "it-ran").exists(), "the test would not have noticed"


class Hostile:
    """Touches a file when it is unpickled."""

    def __init__(self, flag: Path) -> None:
        self.flag = flag

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.flag,))


def test_a_pickle_is_refused_without_running_it(tmp_path: Path) -> None:
    flag, path = tmp_path / "it-ran", tmp_path / "model.safetensors"
    torch.save({"weight": torch.zeros(2), "extra": Hostile(flag)}, path)
    refused(path, "safetensors file")
    path.write_bytes(pickle.dumps(Hostile(flag)))
    refused(path, "safetensors file")
    assert not flag.exists()
    pickle.loads(path.read_bytes())  # noqa: S301
    assert flag.exists(), "the test would not have noticed"


def test_a_manifest_alone_is_read_without_the_weights(saved: Path) -> None:
    tensors = {"other": torch.zeros(1)}
    rewrite(saved, manifest=json.dumps(manifest_content(saved)), tensors=tensors)
    assert read_manifest(saved).sigma == 0.25
    refused(saved, "does not fit digits-conv")
