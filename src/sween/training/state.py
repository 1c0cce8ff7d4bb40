"""Everything a stopped run needs to go on: weights, momentum, average, epoch. No code in it.

Order, augmentation and noise are keyed by seed and epoch, so the epoch is the whole state of the
generators: a run that goes on from the end of an epoch draws what it would have drawn.
"""

import dataclasses
import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import nn

from sween.errors import CheckpointError
from sween.runs import atomic_path

STATE_FILE = "state.safetensors"


@dataclasses.dataclass(frozen=True)
class TrainingState:
    """Tensors by name, and the number of epochs done."""

    epochs_done: int
    tensors: dict[str, torch.Tensor]


def save_state(folder: Path, state: TrainingState) -> None:
    """Write the state atomically: a kill leaves the old one or the new one."""
    tensors = {
        name: tensor.detach().cpu().contiguous().clone() for name, tensor in state.tensors.items()
    }
    # As bytes: a full disk is then an OSError like any other.
    content = save(tensors, metadata={"epochs_done": json.dumps(state.epochs_done)})
    with atomic_path(folder / STATE_FILE) as temporary:
        temporary.write_bytes(content)


def load_state(folder: Path) -> TrainingState | None:
    """The saved state, or None where there is none."""
    path = folder / STATE_FILE
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as stream:
            epochs_done = int(json.loads((stream.metadata() or {})["epochs_done"]))
            names = list(stream.keys())
            return TrainingState(epochs_done, {name: stream.get_tensor(name) for name in names})
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise CheckpointError(
            str(path),
            expected="a whole training state",
            got=str(error).splitlines()[0],
            fix="delete that file to train from the start",
        ) from None


def parts_of(
    state: TrainingState, model: nn.Module, *, where: Path
) -> dict[str, dict[str, torch.Tensor]]:
    """The tensors of the weights, their momentum and their average, by parameter.

    Raises:
        CheckpointError: they are another network's.
    """
    parts: dict[str, dict[str, torch.Tensor]] = {"model": {}, "momentum": {}, "average": {}}
    for name, tensor in state.tensors.items():
        part, _, rest = name.partition(".")
        parts.setdefault(part, {})[rest] = tensor
    own = {name: value.shape for name, value in model.state_dict().items()}
    found = {name: value.shape for name, value in parts["model"].items()}
    others = [*parts["momentum"].items(), *parts["average"].items()]
    fits = all(own.get(name) == value.shape for name, value in others)
    if found != own or not fits or len(parts) > 3:
        raise CheckpointError(
            str(where / STATE_FILE),
            expected="a training state of this network",
            got="the tensors of another one",
            fix="delete that file to train from the start",
        )
    return parts


def drop_state(folder: Path) -> None:
    """Remove the state once the final weights are written."""
    (folder / STATE_FILE).unlink(missing_ok=True)
