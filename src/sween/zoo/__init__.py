"""The model zoo: trained and certified ensembles included in the package. Nothing is downloaded."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sween.ensemble import LoadedEnsemble, load_ensemble
from sween.errors import UnknownName
from sween.paths import AnyPath
from sween.run_folder import read_config

MODELS = Path(__file__).parent / "models"
"""One ensemble folder per model, with its results from results/ in measured.json."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ZooEntry:
    """One ensemble of the zoo."""

    name: str
    dataset: str
    sigma: float
    members: tuple[str, ...]
    weights: tuple[float, ...]
    bytes: int
    """Size of the checkpoints on disk."""
    measured: Mapping[str, Any]
    """Its certified accuracy and average certified radius, from results/."""


def list_zoo() -> list[ZooEntry]:
    """All ensembles of the zoo, in order of name."""
    return [_entry(folder) for folder in sorted(MODELS.iterdir()) if folder.is_dir()]


def load(source: AnyPath, *, archs: Sequence[str] = ()) -> LoadedEnsemble:
    """Load a trained ensemble: a zoo model by name, or a folder or checkpoint by path.

    Returns a `WeightedEnsemble` in evaluation mode with the metadata of its training: `sigma`,
    `num_classes`, `class_names`, `image_shape`, `member_names`.

    Args:
        source: a name listed by `sween zoo`, an ensemble folder, a run folder or a checkpoint.
        archs: custom architectures, as `package.module:factory`, that a checkpoint may import.

    Raises:
        UnknownName: neither a path nor the name of a zoo model.
    """
    path = Path(source)
    if path.exists() or path.parent != Path("."):
        return load_ensemble(path, archs=archs)
    names = [entry.name for entry in list_zoo()]
    if path.name not in names:
        raise UnknownName("folder or zoo model", str(source), names)
    return load_ensemble(MODELS / path.name)


def _entry(folder: Path) -> ZooEntry:
    config = read_config(folder)
    measured = folder / "measured.json"
    return ZooEntry(
        name=folder.name,
        dataset=config["dataset"],
        sigma=config["sigma"],
        members=tuple(config["members"]),
        weights=tuple(config["weights"]),
        bytes=sum(file.stat().st_size for file in folder.glob("members/*.safetensors")),
        measured=json.loads(measured.read_text(encoding="utf-8")) if measured.exists() else {},
    )
