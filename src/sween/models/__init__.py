"""Networks from [0,1] images to logits by name, their size, and their checkpoints."""

from sween.models.checkpoint import Manifest, load_checkpoint, read_manifest, save_checkpoint
from sween.models.flops import count_flops, count_matrix_flops, count_parameters
from sween.models.normalize import Normalize
from sween.models.registry import (
    ARCHITECTURES,
    check_member,
    create_model,
    list_models,
    register_architecture,
)

__all__ = [
    "ARCHITECTURES",
    "Manifest",
    "Normalize",
    "check_member",
    "count_flops",
    "count_matrix_flops",
    "count_parameters",
    "create_model",
    "list_models",
    "load_checkpoint",
    "read_manifest",
    "register_architecture",
    "save_checkpoint",
]
