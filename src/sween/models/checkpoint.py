"""Checkpoints: one safetensors file whose header holds the manifest. Loading one runs no code.

Weights and manifest share a file, so they cannot be separated. A checkpoint of a custom
architecture names `package.module:factory`; importing it would run code that the file chose, so it
is imported only if the caller names the same factory.
"""

import dataclasses
import hashlib
import json
import math
import textwrap
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import nn

from sween.errors import CheckpointError, OutOfMemory, is_out_of_memory
from sween.factories import check_consent, is_factory
from sween.models.byte_weights import packed, unpacked
from sween.models.registry import ARCHITECTURES, create_model
from sween.paths import AnyPath
from sween.run_folder import atomic_path

CHECKPOINT = "model.safetensors"
"""Its name in a run folder."""

MANIFEST_VERSION = 1
_HEADER_KEY = "sween"
_IMPORT = "convert it with `sween import`"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """Everything needed to rebuild the network of a checkpoint, and what it was trained for.

    Example:
        See `save_checkpoint`.
    """

    arch: str
    num_classes: int
    image_shape: tuple[int, int, int]
    dataset: str
    class_names: tuple[str, ...]
    sigma: float
    training: Mapping[str, Any]
    fingerprint: str = ""
    version: int = MANIFEST_VERSION

    @property
    def seed(self) -> int:
        """Of the training run."""
        return int(self.training.get("seed", 0))


def fingerprint(manifest: Manifest, tensors: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 over the manifest and the name, type, shape and bytes of each tensor."""
    content = dataclasses.asdict(manifest) | {"fingerprint": ""}
    hasher = hashlib.sha256(json.dumps(content, sort_keys=True, allow_nan=False).encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        hasher.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        hasher.update(tensor.flatten().view(torch.uint8).numpy().tobytes())
    return hasher.hexdigest()


def save_checkpoint(
    model: nn.Module, path: AnyPath, manifest: Manifest, *, as_bytes: bool = False
) -> Manifest:
    """Write weights and manifest atomically; returns the manifest with its fingerprint.

    Args:
        model: the network.
        path: of the file.
        manifest: what the network is; its fingerprint is computed.
        as_bytes: store weights that `round_weights` rounded to 8 bits as such.

    Example:
        >>> import sween
        >>> from sween.models import Manifest, load_checkpoint, save_checkpoint
        >>> network = sween.create_model("digits-mlp", num_classes=10, image_shape=(1, 8, 8))
        >>> manifest = Manifest(
        ...     arch="digits-mlp", num_classes=10, image_shape=(1, 8, 8), dataset="digits",
        ...     class_names=tuple("0123456789"), sigma=0.5, training={"seed": 0},
        ... )
        >>> saved = save_checkpoint(network, "model.safetensors", manifest)
        >>> load_checkpoint("model.safetensors")[1] == saved
        True
    """
    path = Path(path)
    tensors = {
        name: tensor.detach().cpu().contiguous().clone()
        for name, tensor in model.state_dict().items()
    }
    if as_bytes:
        tensors = packed(tensors)
    manifest = dataclasses.replace(manifest, fingerprint=fingerprint(manifest, tensors))
    header = {_HEADER_KEY: json.dumps(dataclasses.asdict(manifest), allow_nan=False)}
    with atomic_path(path) as temporary:
        # Not save_file, whose error on a full disk is not an OSError.
        temporary.write_bytes(save(tensors, metadata=header))
    return manifest


def read_manifest(path: AnyPath) -> Manifest:
    """The manifest of a checkpoint file or run folder, without its weights.

    Example:
        >>> from sween.models import read_manifest
        >>> from sween.zoo import MODELS
        >>> folder = MODELS / "digits-sween3-gaussian-sigma0.50" / "members"
        >>> manifest = read_manifest(folder / "digits-mlp.safetensors")
        >>> manifest.arch, manifest.dataset, manifest.image_shape
        ('digits-mlp', 'digits', (1, 8, 8))
    """
    path = Path(path)
    return _read(_file_of(path), with_tensors=False)[0]


def load_checkpoint(path: AnyPath, *, arch: str | None = None) -> tuple[nn.Module, Manifest]:
    """Rebuild the network of a checkpoint, in evaluation mode, on the CPU.

    Args:
        path: a .safetensors file or a run folder that holds model.safetensors.
        arch: the architecture it must have; required for a custom `package.module:factory`, which
            is imported only if named here.

    Raises:
        CheckpointError: it is damaged, or does not match the architecture.

    Example:
        >>> from sween.models import load_checkpoint
        >>> from sween.zoo import MODELS
        >>> folder = MODELS / "digits-sween3-gaussian-sigma0.50" / "members"
        >>> network, manifest = load_checkpoint(folder / "digits-mlp.safetensors")
        >>> manifest.arch, manifest.sigma, network.training
        ('digits-mlp', 0.5, False)
    """
    path = Path(path)
    file = _file_of(path)
    manifest, tensors = _read(file, with_tensors=True)
    if arch is not None and arch != manifest.arch:
        raise CheckpointError(
            f"{file}: architecture", expected=arch, got=manifest.arch, fix="pass that one"
        )
    check_consent(manifest.arch, given=arch, where=str(file), kind="arch", error=CheckpointError)
    if not is_factory(manifest.arch) and manifest.arch not in ARCHITECTURES:
        raise CheckpointError(
            f"{file}: architecture: expected one of {', '.join(ARCHITECTURES)}, got "
            f"{manifest.arch}; register it first if it is a custom one, or upgrade sween"
        )
    model = create_model(
        manifest.arch, num_classes=manifest.num_classes, image_shape=manifest.image_shape
    )
    try:
        model.load_state_dict(unpacked(tensors))
    except RuntimeError as error:
        found = textwrap.shorten(str(error).partition(":")[2], 300, placeholder=" ...")
        raise CheckpointError(
            f"{file} does not fit {manifest.arch} ({found})",
            fix="load it with the architecture it was trained with",
        ) from None
    found = fingerprint(manifest, tensors)
    if found != manifest.fingerprint:
        raise CheckpointError(
            f"{file}: fingerprint of weights and manifest: expected {manifest.fingerprint[:16]}, "
            f"got {found[:16]}; the file was altered; restore it from its source"
        )
    return model.eval(), manifest


def _file_of(path: Path) -> Path:
    return path / CHECKPOINT if path.is_dir() else path


def _read(path: Path, *, with_tensors: bool) -> tuple[Manifest, dict[str, torch.Tensor]]:
    if not path.is_file():
        raise CheckpointError(
            str(path), expected="a checkpoint file", got="no such file", fix="check the path"
        )
    try:
        with safe_open(path, framework="pt") as stream:
            header = (stream.metadata() or {}).get(_HEADER_KEY)
            names = stream.keys() if with_tensors else ()
            tensors = {name: stream.get_tensor(name) for name in names}
    except (SafetensorError, OSError, RuntimeError, MemoryError) as error:
        if is_out_of_memory(error):
            raise OutOfMemory(f"while {path} was read", error) from None
        if zipfile.is_zipfile(path):
            raise CheckpointError(
                str(path),
                expected="a safetensors file of sween",
                got="a file of torch.save or another archive",
                fix=_IMPORT,
            ) from None
        raise CheckpointError(
            f"{path}: expected a whole safetensors file, got {str(error).splitlines()[0]}; it is "
            "truncated or not a checkpoint; write it again"
        ) from None
    if header is None:
        raise CheckpointError(
            f"{path}: expected a sween manifest in the file's header, got none; {_IMPORT}, or save "
            "it with sween.models.save_checkpoint"
        )
    return _parse_manifest(header, path), tensors


def _parse_manifest(header: str, path: Path) -> Manifest:
    try:
        content = json.loads(header)
        version = content.get("version")
        if version != MANIFEST_VERSION:
            raise ValueError(f"manifest version {version}")
        for name in ("image_shape", "class_names"):
            content[name] = tuple(content[name])
        manifest = Manifest(**content)
        _check_manifest(manifest)
        return manifest
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(
            f"{path}: manifest: expected version {MANIFEST_VERSION} with the fields of a manifest, "
            f"got {error}; save it again with this version of sween"
        ) from None


def _check_manifest(manifest: Manifest) -> None:
    shape = manifest.image_shape
    for name, is_right in (
        ("arch", isinstance(manifest.arch, str)),
        ("dataset", isinstance(manifest.dataset, str)),
        ("class_names", all(isinstance(name, str) for name in manifest.class_names)),
        ("num_classes", manifest.num_classes == len(manifest.class_names)),
        ("image_shape", len(shape) == 3 and all(isinstance(size, int) for size in shape)),
        ("sigma", isinstance(manifest.sigma, int | float) and math.isfinite(manifest.sigma)),
        ("training", isinstance(manifest.training, dict)),
        ("fingerprint", isinstance(manifest.fingerprint, str)),
    ):
        if not is_right:
            raise ValueError(f"{name} {getattr(manifest, name)!r}")
