"""Which models the zoo has: those that ship with the package and those that were installed."""

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sween.errors import CheckpointError
from sween.run_folder import member_file, read_config

MODELS = Path(__file__).parent / "models"
"""One ensemble folder per shipped model, with its results from results/ in measured.json."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ZooEntry:
    """One ensemble of the zoo.

    Example:
        See `list_zoo`.
    """

    name: str
    dataset: str
    sigma: float
    members: tuple[str, ...]
    weights: tuple[float, ...]
    bytes: int
    """Size of the checkpoints on disk."""
    measured: Mapping[str, Any]
    """Its certified accuracy and average certified radius, from results/ or from its archive."""
    installed: bool
    """Whether `sween zoo add` installed it; otherwise it ships with the package."""


def list_zoo() -> list[ZooEntry]:
    """All ensembles of the zoo, in order of name.

    Example:
        >>> from sween.zoo import list_zoo
        >>> zoo = {entry.name: entry for entry in list_zoo()}
        >>> zoo["digits-sween3-gaussian-sigma0.50"].members
        ('digits-mlp', 'digits-conv', 'digits-resnet')
    """
    return [read_entry(folder) for folder in model_folders().values()]


def user_folder() -> Path:
    """Where models are installed: $SWEEN_ZOO, by default sween/zoo in the user's data folder.

    Example:
        >>> import os
        >>> from sween.zoo import user_folder
        >>> os.environ["SWEEN_ZOO"] = "models"
        >>> user_folder().name
        'models'
    """
    if given := os.environ.get("SWEEN_ZOO"):
        return Path(given).expanduser().absolute()
    data = os.environ.get("XDG_DATA_HOME", "")
    # The XDG specification says to ignore a relative path.
    data = data if os.path.isabs(data) else os.path.expanduser("~/.local/share")
    return Path(data) / "sween" / "zoo"


def model_folders() -> dict[str, Path]:
    """The folder of every model, in order of name; a shipped one hides an installed namesake."""
    return dict(sorted({**models_in(user_folder()), **models_in(MODELS)}.items()))


def models_in(place: Path) -> dict[str, Path]:
    """The folders of models in a folder, by name."""
    return {
        folder.name: folder
        for folder in (sorted(place.iterdir()) if place.is_dir() else ())
        if not folder.name.startswith(".") and (folder / "config.toml").is_file()
    }


def read_entry(folder: Path) -> ZooEntry:
    """What the folder of a model says about it.

    Raises:
        CheckpointError: it does not say what an entry needs.
    """
    config, measured = read_config(folder), folder / "measured.json"
    try:
        members = [member_file(folder, str(name)) for name in config["members"]]
        return ZooEntry(
            name=folder.name,
            dataset=str(config["dataset"]),
            sigma=float(config["sigma"]),
            members=tuple(map(str, config["members"])),
            weights=tuple(map(float, config["weights"])),
            bytes=sum(file.stat().st_size for file in members if file.is_file()),
            measured=_read_measured(measured) if measured.exists() else {},
            installed=folder.parent != MODELS,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            str(folder),
            expected="an ensemble with dataset, sigma, members, weights and measured numbers",
            got=f"no {error}" if isinstance(error, KeyError) else error,
            fix=f"if it was installed, run `sween zoo remove {folder.name}` and add it again",
        ) from None


def _read_measured(file: Path) -> dict[str, Any]:
    """The numbers that a list of models shows, and others; raises as JSON and numbers do."""
    content = json.loads(file.read_text(encoding="utf-8"))
    shown = ("acr", "acr_two_class", "images", "n")
    for value in (*(content[name] for name in shown), content["certified_accuracy"]["0.00"]):
        if not isinstance(value, int | float):
            raise TypeError(f"{value!r} as a number in {file.name}")
    return dict(content)
