"""A checkpoint to save, and ways to alter it."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from sween.models import Manifest, create_model, read_manifest

MANIFEST = Manifest(
    arch="digits-conv",
    num_classes=10,
    image_shape=(1, 8, 8),
    dataset="digits",
    class_names=tuple("0123456789"),
    sigma=0.25,
    training={"seed": 3, "learning_rate": 0.1},
)


def network(arch: str = "digits-conv", seed: int = 3) -> nn.Module:
    model = create_model(
        arch, num_classes=10, image_shape=(1, 8, 8), mean=(0.3,), std=(0.4,), seed=seed
    )
    if isinstance(model, nn.Sequential) and len(model) == 2:
        model(torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(0)))  # batch norm
    return model


def rewrite(
    path: Path,
    *,
    manifest: dict[str, Any] | str | None = None,
    tensors: dict[str, torch.Tensor] | None = None,
) -> None:
    """Replace the manifest or the tensors of a checkpoint, keeping the rest."""
    with safe_open(path, framework="pt") as stream:
        header = stream.metadata()["sween"]
        content = {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118
    text = manifest if isinstance(manifest, str) else json.dumps(manifest or json.loads(header))
    save_file(tensors or content, path, metadata={"sween": text})


def manifest_content(path: Path) -> dict[str, Any]:
    return json.loads(json.dumps(dataclasses.asdict(read_manifest(path))))  # type: ignore[no-any-return]
