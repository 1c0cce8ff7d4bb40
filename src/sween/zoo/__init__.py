"""The zoo: trained and certified ensembles that come with the package. Nothing is downloaded."""

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
"""One ensemble folder for each, with measured.json beside it: what results/ says of it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ZooEntry:
    """One shipped ensemble.

    Attributes:
        name: to load it by.
        dataset: what its members were trained for.
        sigma: noise level.
        members: names of the members.
        weights: of the members.
        bytes: size of the weights on disk.
        measured: what was measured of it, from results/.
    """

    name: str
    dataset: str
    sigma: float
    members: tuple[str, ...]
    weights: tuple[float, ...]
    bytes: int
    measured: Mapping[str, Any]


def list_zoo() -> list[ZooEntry]:
    """Every shipped ensemble, by name."""
    return [_entry(folder) for folder in sorted(MODELS.iterdir()) if folder.is_dir()]


def load(source: AnyPath, *, archs: Sequence[str] = ()) -> LoadedEnsemble:
    """A ready ensemble: one of the zoo by its name, or a folder or checkpoint by its path.

    It is a `WeightedEnsemble` in evaluation mode that also says what it was trained for: `sigma`,
    `num_classes`, `class_names`, `image_shape`, `member_names`.

    Args:
        source: a name that `sween zoo` lists, an ensemble folder, a run folder or a checkpoint.
        archs: your own `package.module:factory` names that a checkpoint may import.

    Raises:
        UnknownName: neither a path nor a name of the zoo.
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
