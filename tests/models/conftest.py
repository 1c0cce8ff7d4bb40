"""A saved checkpoint."""

from pathlib import Path

import pytest

from sween.models import save_checkpoint

from .checkpoints import MANIFEST, network


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save_checkpoint(network(), tmp_path / "model.safetensors", MANIFEST)
    return tmp_path / "model.safetensors"
