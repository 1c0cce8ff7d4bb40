"""Comparing the rows of two certification runs."""

import json
from pathlib import Path
from typing import Any


def rows_of(folder: Path, file: str = "certificates.jsonl") -> list[dict[str, Any]]:
    """Every row without what differs from run to run: its time, and the checksum over it."""
    lines = (folder / file).read_text().splitlines(keepends=True)
    assert all(line.endswith("\n") for line in lines), "a torn row"
    rows = [json.loads(line) for line in lines]
    return [
        {name: value for name, value in row.items() if name not in {"seconds", "checksum"}}
        for row in rows
    ]
