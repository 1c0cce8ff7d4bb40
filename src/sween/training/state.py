"""What an interrupted run needs to resume: weights, momentum, average, epoch, tensors per image.

The last are weights of images, the memory of earlier predictions, and the teacher's targets.

Loading runs no code.

Order, augmentation and noise are keyed by seed and epoch, so the epoch is the complete state of the
generators: a run resumed after an epoch draws the same numbers as an uninterrupted one.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import nn

from sween.errors import CheckpointError
from sween.run_folder import atomic_path
from sween.runs.training import STATE_FILE

_FIX = "delete that file to train from the start"


@dataclasses.dataclass(frozen=True)
class TrainingState:
    """Tensors by name, and the number of epochs done."""

    epochs_done: int
    tensors: dict[str, torch.Tensor]


def save_state(folder: Path, state: TrainingState, *, run: str = "") -> None:
    """Write the state atomically: a kill leaves either the old state or the new one.

    `run` is the tag of the run's config, for `load_state`.
    """
    tensors = {
        name: tensor.detach().cpu().contiguous().clone() for name, tensor in state.tensors.items()
    }
    epochs = json.dumps(state.epochs_done)
    metadata = {"epochs_done": epochs, "checksum": _checksum(epochs, run, tensors)}
    metadata |= {"run": run} if run else {}
    # Written as bytes, so that a full disk raises an OSError.
    content = save(tensors, metadata=metadata)
    with atomic_path(folder / STATE_FILE) as temporary:
        temporary.write_bytes(content)


def _checksum(epochs_done: str, run: str, tensors: Mapping[str, torch.Tensor]) -> str:
    """BLAKE2b over the epochs, the run, and the name, type, shape and bytes of each tensor."""
    hasher = hashlib.blake2b(f"{epochs_done}|{run}".encode(), digest_size=32)
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        hasher.update(f"{name!r}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        hasher.update(tensor.flatten().view(torch.uint8).numpy().tobytes())
    return hasher.hexdigest()


def load_state(folder: Path, *, run: str = "") -> TrainingState | None:
    """The saved state, or None if there is none.

    Refuses one whose checksum does not match, and one of another run, by the tags of both (states
    of older versions have none).
    """
    path = folder / STATE_FILE
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as stream:
            metadata = stream.metadata() or {}
            tensors = {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118
        known = metadata.get("run", "")
        found = _checksum(metadata["epochs_done"], known, tensors)
        if found != metadata["checksum"]:
            raise ValueError(f"checksum {found[:16]} instead of {metadata['checksum'][:16]}")
        saved = TrainingState(int(json.loads(metadata["epochs_done"])), tensors)
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        got = f"no {error}" if isinstance(error, KeyError) else str(error).splitlines()[0]
        raise CheckpointError(
            str(path), expected="a complete training state", got=got, fix=_FIX
        ) from None
    if known and run and known != run:
        raise CheckpointError(
            str(path),
            expected="a training state of this run",
            got="that of a run with another config",
            fix=_FIX,
        )
    return saved


def parts_of(
    state: TrainingState, model: nn.Module, *, images: int, where: Path
) -> dict[str, dict[str, torch.Tensor]]:
    """The tensors of the weights, their momentum and their average, by parameter.

    And those with a row for each of `images` training images, by name.

    Raises:
        CheckpointError: they belong to a different network.
    """
    names = ("model", "momentum", "average", "images")
    parts: dict[str, dict[str, torch.Tensor]] = {name: {} for name in names}
    for name, tensor in state.tensors.items():
        part, _, rest = name.partition(".")
        parts.setdefault(part, {})[rest] = tensor
    own = {name: value.shape for name, value in model.state_dict().items()}
    found = {name: value.shape for name, value in parts["model"].items()}
    others = [*parts["momentum"].items(), *parts["average"].items()]
    fits = all(own.get(name) == value.shape for name, value in others)
    fits = fits and all(len(value) == images for value in parts["images"].values())
    if found != own or not fits or len(parts) > len(names):
        raise CheckpointError(
            str(where / STATE_FILE),
            expected="a training state of this network",
            got="tensors of a different one",
            fix=_FIX,
        )
    return parts


def drop_state(folder: Path) -> None:
    """Remove the state once the final weights are written."""
    (folder / STATE_FILE).unlink(missing_ok=True)
