"""What the builders of measured tables share."""

import re
from collections.abc import Sequence
from pathlib import Path

_RUN = re.compile(r"(?P<dataset>[a-z0-9]+)-sween\d+-(?P<training>[a-z]+)-sigma(?P<sigma>[0-9.]+)")


def markdown(head: Sequence[str], texts: int, rows: Sequence[Sequence[str]]) -> str:
    """A table whose first columns are text."""
    rule = [":---"] * texts + ["---:"] * (len(head) - texts)
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *rows)) + "\n"


def runs(results: Path, dataset: str) -> list[tuple[Path, str, float]]:
    """The folders with their training and sigma: the paper's plain training first."""
    names = [_RUN.fullmatch(folder.name) for folder in results.glob(f"{dataset}-sween*")]
    runs = [(results / name[0], name["training"], float(name["sigma"])) for name in names if name]
    return sorted(runs, key=lambda run: (run[1] != "gaussian", run[1], run[2]))
