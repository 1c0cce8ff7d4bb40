"""Recipes: training options in a TOML file, for one candidate or a list of them.

epochs = 100                 # options of `sween train`, with underscores
learning_rate = 0.2

[[candidate]]                # optional: one table a candidate, on top of the options above
arch = "resnet20"
"""

import itertools
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sween.errors import BadInput, refuse_doubles
from sween.paths import AnyPath
from sween.training.config import TrainConfig


def read_recipe(path: AnyPath) -> list[dict[str, Any]]:
    """The options of each candidate of a recipe file; one without a list is one candidate."""
    path = Path(path)
    if not path.is_file():
        raise BadInput(
            str(path), expected="a recipe file", got="no such file", fix="check --config"
        )
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(str(path), expected="TOML", got=error, fix="see configs/") from None
    candidates = content.pop("candidate", [{}])
    if not isinstance(candidates, list) or not all(isinstance(one, dict) for one in candidates):
        raise BadInput(
            str(path),
            expected="candidates as [[candidate]] tables",
            got=type(candidates).__name__,
            fix="see configs/fast/",
        )
    return [content | one for one in candidates]


def make_configs(
    recipe: Sequence[Mapping[str, Any]],
    options: Mapping[str, Any],
    *,
    archs: Sequence[str] = (),
    seeds: Sequence[int] = (),
) -> list[TrainConfig]:
    """Every recipe candidate with every architecture and every seed; options given win.

    Args:
        recipe: from `read_recipe`, or one empty mapping.
        options: of the command line; None means not given.
        archs: in place of the recipe's.
        seeds: in place of the recipe's.
    """
    given = {name: value for name, value in options.items() if value is not None}
    configs = []
    for base, arch, seed in itertools.product(recipe, archs or (None,), seeds or (None,)):
        fields = {**base, **given}
        fields |= {} if arch is None else {"arch": arch}
        fields |= {} if seed is None else {"seed": seed}
        for name in ("dataset", "arch", "sigma"):
            if name not in fields:
                raise BadInput(
                    f"--{name}",
                    expected="a value, on the command line or in the recipe",
                    got="none",
                    fix=f"pass --{name}",
                )
        configs.append(TrainConfig.from_dict(fields))
    return configs


def run_folders(configs: Sequence[TrainConfig], out: AnyPath) -> list[Path]:
    """`out` itself for one candidate; a folder below it for each of several."""
    out = Path(out)
    if len(configs) == 1:
        return [out]
    folders = [out / f"{config.arch.rpartition(':')[2]}-seed{config.seed}" for config in configs]
    refuse_doubles(
        "candidates",
        [folder.name for folder in folders],
        expected="another architecture or seed for each",
        fix="give them different seeds",
    )
    return folders
