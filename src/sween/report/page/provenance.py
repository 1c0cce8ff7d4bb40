"""What a number needs beside it: the settings, the images, the code and the machine."""

import json
from collections.abc import Mapping
from typing import Any

from sween.data.selection import format_indices
from sween.report.measured import MeasuredRun
from sween.report.page.run import PageRun

SHOWN = ("sigma", "n0", "n", "alpha", "bound", "sampling", "votes", "exit", "noise", "precision")
"""Fields of the certificates that say how they were made."""


def provenance_content(page: PageRun) -> list[list[Any]]:
    """Titled lists of names and values, all text."""
    sections = {
        "Certificates": _certificates(page.run),
        "config.toml": flat(page.config),
        "environment.json": flat(page.run.environment),
        **{title: flat(values) for title, values in page.attackers.items()},
    }
    return titled(sections)


def titled(sections: Mapping[str, Mapping[str, str]]) -> list[list[Any]]:
    """Titled lists of names and values, as the page reads them."""
    return [
        [title, [[name, value] for name, value in values.items()] or [["–", "not recorded"]]]
        for title, values in sections.items()
    ]


def _certificates(run: MeasuredRun) -> dict[str, str]:
    fields = {name: _range(run.distinct(name)) for name in SHOWN}
    return {
        "data set": run.dataset,
        "images": f"{len(run.indices):,}",
        "indices, ends excluded": format_indices(run.indices),
        **fields,
        "seeds": ", ".join(map(str, run.distinct("seed"))),
    }


def _range(values: list[Any]) -> str:
    """All values, or the ends of many numbers: adaptive sampling has an n for each image."""
    if len(values) > 6 and isinstance(values[0], int | float):
        return f"{_text(values[0])} to {_text(values[-1])}"
    return ", ".join(map(_text, values))


def flat(values: Mapping[str, Any]) -> dict[str, str]:
    """Names and values as text, those of inner tables by their path."""
    texts: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            texts |= {f"{name}.{inner}": text for inner, text in flat(value).items()}
        else:
            texts[str(name)] = _text(value)
    return texts


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value)) or "none"
    if value is None:
        return "none"
    # A date, which TOML knows and JSON does not, as it prints itself.
    return json.dumps(value, default=str) if isinstance(value, bool | int | float) else str(value)
