"""Recipes: training options in a TOML file, for one candidate or several.

The recipes that ship with sween have names, such as fast/gaussian.

epochs = 100                 # options of `sween train`, with underscores
learning_rate = 0.2

[[candidate]]                # optional: one table per candidate, overriding the options above
arch = "resnet20"
"""

import itertools
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sween.errors import BadInput, UnknownName, describe_type, refuse_duplicates
from sween.factories import check_consent
from sween.paths import AnyPath
from sween.training.config import TrainConfig

OTHER_CONFIGS = ("published", "reproduce")
"""Folders next to those of the recipes."""


def configs_folder() -> Path:
    """The recipes, plans and published numbers that ship with sween."""
    package = Path(__file__).resolve().parents[1]
    # Inside the package in a wheel, at the root of a checkout.
    places = (package / "configs", package.parents[1] / "configs")
    return next((place for place in places if place.is_dir()), places[0])


def list_recipes() -> dict[str, Path]:
    """The recipes that ship with sween, by name."""
    folder = configs_folder()
    return {
        path.relative_to(folder).with_suffix("").as_posix(): path
        for path in sorted(folder.glob("*/*.toml"))
        if path.parent.name not in OTHER_CONFIGS
    }


def find_recipe(path: AnyPath) -> Path:
    """The recipe file at this path, or the shipped recipe of this name, with or without .toml."""
    path = Path(path)
    if path.is_file():
        return path
    name, known = path.as_posix().removesuffix(".toml"), list_recipes()
    if name in known:
        return known[name]
    raise UnknownName("recipe", str(path), known)


def read_recipe(path: AnyPath) -> list[dict[str, Any]]:
    """The options of each candidate in a recipe; without [[candidate]] tables there is one.

    Args:
        path: a file, or the name of a recipe that ships with sween.

    Example:
        >>> from sween.training import read_recipe
        >>> [options["arch"] for options in read_recipe("fast/gaussian")]
        ['resnet20', 'resnet26', 'resnet32']
    """
    path = find_recipe(path)
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(str(path), expected="TOML", got=error, fix="see configs/") from None
    candidates = content.pop("candidate", [{}])
    if not isinstance(candidates, list) or not all(isinstance(one, dict) for one in candidates):
        raise BadInput(
            str(path),
            expected="candidates as [[candidate]] tables",
            got=describe_type(candidates),
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
    """Every candidate of the recipe with every architecture and seed; options override it.

    Args:
        recipe: from `read_recipe`, or one empty mapping.
        options: from the command line; None means not given.
        archs: replace the recipe's.
        seeds: replace the recipe's.

    Example:
        >>> from sween.training import make_configs, read_recipe
        >>> configs = make_configs(read_recipe("fast/gaussian"), {"sigma": 0.5}, seeds=[0, 1])
        >>> [(config.arch, config.seed) for config in configs][:3], configs[0].sigma
        ([('resnet20', 0), ('resnet20', 1), ('resnet26', 0)], 0.5)
    """
    given = {name: value for name, value in options.items() if value is not None}
    configs = []
    if archs:  # the recipe's candidates are replaced, not repeated
        bases = [{key: value for key, value in base.items() if key != "arch"} for base in recipe]
        recipe = [base for place, base in enumerate(bases) if base not in bases[:place]]
    for base, arch, seed in itertools.product(recipe, archs or (None,), seeds or (None,)):
        fields = {**base, **given}
        fields |= {} if arch is None else {"arch": arch}
        fields |= {} if seed is None else {"seed": seed}
        for name in ("dataset", "arch", "sigma"):
            if name not in fields:
                raise BadInput(
                    name,
                    expected="a value, as an option or in the recipe",
                    got="none",
                    fix=f"pass `{name}`",
                )
        for name, named in (("dataset", given.get("dataset")), ("arch", arch)):
            several = name == "arch"
            check_consent(
                str(fields[name]), given=named, where="the recipe", kind=name, several=several
            )
        configs.append(TrainConfig.from_dict(fields))
    return configs


def run_folders(configs: Sequence[TrainConfig], out: AnyPath) -> list[Path]:
    """`out` itself for one candidate; one subfolder each for several."""
    out = Path(out)
    if len(configs) == 1:
        return [out]
    folders = [out / f"{config.arch.rpartition(':')[2]}-seed{config.seed}" for config in configs]
    refuse_duplicates(
        "candidates",
        [folder.name for folder in folders],
        expected="a different architecture or seed for each",
        fix="give them different seeds",
    )
    return folders
