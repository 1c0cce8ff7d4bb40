"""docs/reference/rows.md: the fields of every row and the keys of every config."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from docstrings import entries, markdown, sections

from sween.ensemble.folder import write_ensemble
from sween.ensemble.solve import WeightSolution
from sween.markdown import markdown_table
from sween.records import Certificate
from sween.runs.attack import AttackConfig
from sween.runs.attack_outcome import AttackOutcome
from sween.runs.certification import CertificationConfig
from sween.runs.subject import SubjectConfig
from sween.runs.training import EpochMetrics, TrainingConfig
from sween.training.config import TrainConfig

JSON = {
    "int": "whole number",
    "float": "number",
    "str": "text",
    "bool": "true or false",
    "None": "null",
    "tuple[int, ...]": "list of whole numbers",
    "tuple[float, ...]": "list of numbers",
    "Mapping[str, bool]": "object of true or false",
}
"""Types of Python in words, for readers of JSON and TOML."""

HEAD = """# Rows and configs

The files of a run folder, field by field, from the code by `python docs/update_reference.py`. Rows
are JSON objects, one per line, in a `.jsonl` file, which may be compressed (`.jsonl.gz`,
`.jsonl.xz`). A row is appended whole, so that a kill can truncate the last line only; readers
ignore a truncated last line. Configs are TOML.

Lengths (`sigma`, radii, `eps`, `distance`) are l2 norms in units of pixels scaled to [0, 1]; times
are in seconds. `null` in JSON is None in Python. Every row has, before its own fields, `schema`,
the whole number given below (a reader refuses any other) and, after them, `checksum`, a BLAKE2b
digest of 8 bytes of all other fields, in hexadecimal. [Python](python.md) says how to read rows;
`sween verify` checks a folder.
"""


def page() -> str:
    """The whole page."""
    subject = _keys(SubjectConfig)
    return "\n".join(
        [
            HEAD,
            "## Certificates: `certificates.jsonl`\n",
            f"Written by `sween certify` and `certify_dataset`. Schema {Certificate.SCHEMA}.\n",
            _fields(Certificate),
            "## Attacks: `attacks.jsonl`\n",
            f"Written by `sween attack`, a row for each image and radius. Schema "
            f"{AttackOutcome.SCHEMA}.\n",
            _fields(AttackOutcome),
            "## `config.toml` of certificates\n",
            _table("key", [*_keys(CertificationConfig), *subject]),
            "## `config.toml` of attacks\n",
            _table("key", [*_keys(AttackConfig), *subject]),
            "## Training: `metrics.jsonl`\n",
            "Written by `sween train`, a row for each epoch, without schema and checksum.\n",
            _fields(EpochMetrics),
            "## `config.toml` of a training run\n",
            "Options left at `null` are absent.\n",
            _table("key", [*_described(TrainConfig), *_keys(TrainingConfig)]),
            "## `config.toml` of an ensemble\n",
            "Written by `sween weigh`.\n",
            _table("key", [*_keys(write_ensemble), *_described(WeightSolution)]),
        ]
    )


def _fields(kind: type) -> str:
    return _table("field", _described(kind))


def _described(kind: Any) -> list[tuple[str, str, str]]:
    """Name, type and meaning of the fields of a dataclass, in their order."""
    meanings = {name: text for name, _, text in entries(sections(kind.__doc__)["Attributes"])}
    fields = dataclasses.fields(kind)
    return [(field.name, _type(field.type), meanings[field.name]) for field in fields]


def _type(annotation: Any) -> str:
    text = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    text = text.replace("collections.abc.", "")
    return " or ".join(JSON[part] for part in text.split(" | "))


def _keys(thing: Any) -> list[tuple[str, str, str]]:
    return entries(sections(thing.__doc__)["Keys of config.toml"])


def _table(what: str, rows: Iterable[Sequence[str]]) -> str:
    cells = [(f"`{name}`", kind, markdown(meaning)) for name, kind, meaning in rows]
    return markdown_table((what, "type", "meaning"), ["---"] * 3, cells)
