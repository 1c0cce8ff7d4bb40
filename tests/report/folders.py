"""Run folders for the report's tests."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sween.records import Certificate, RowWriter, to_row
from sween.run_folder import to_toml, write_json, write_text
from tests.evaluation.certificates import abstained, certificate, wrong

CANDIDATES = ("ant", "bee")


def ensemble_rows(first: int = 10, **fields: Any) -> list[Certificate]:
    """Two candidates and the ensemble "sween" on four images: ACR .375, .3 and .65."""
    second, third, fourth = first + 1, first + 2, first + 3
    return [
        certificate(first, 0.5, model="ant", **fields),
        certificate(second, 1.0, model="ant", **fields),
        wrong(third, model="ant", **fields),
        abstained(fourth, model="ant", **fields),
        certificate(first, 0.4, model="bee", **fields),
        certificate(second, 0.4, model="bee", **fields),
        certificate(third, 0.4, model="bee", **fields),
        wrong(fourth, model="bee", **fields),
        certificate(first, 0.9, model="sween", **fields),
        certificate(second, 1.2, model="sween", **fields),
        certificate(third, 0.5, model="sween", **fields),
        abstained(fourth, model="sween", **fields),
    ]


def write_run(
    folder: Path,
    certificates: Sequence[Certificate],
    *,
    environment: dict[str, Any] | None = None,
    **config: Any,
) -> Path:
    """A run folder as `sween certify` leaves it."""
    folder.mkdir(parents=True)
    write_text(folder / "config.toml", to_toml(config))
    if environment is not None:
        write_json(folder / "environment.json", environment)
    with RowWriter(folder / "certificates.jsonl") as writer:
        writer.append(to_row(row) for row in certificates)
    return folder
