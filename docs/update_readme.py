"""Writes README.md's measured tables from results/: python docs/update_readme.py [--check]

A table stands between `<!-- table NAME -->` and `<!-- end -->`, where NAME is a folder of results/;
`<!-- beside-paper DATASET -->` sets every SWEEN-K run of a data set beside the paper's own rows.
With --check nothing is written and the exit code says whether the README is up to date.
"""

import re
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sween.demo import RADII
from sween.records import format_radius
from sween.report import load_run, to_markdown
from sween.report.rows import DEFAULT_RADII, Row

ROOT = Path(__file__).parents[1]
_TABLE = re.compile(r"(<!-- (table|beside-paper) (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
_RUN = re.compile(r"(?P<dataset>[a-z0-9]+)-sween\d+-(?P<training>[a-z]+)-sigma(?P<sigma>[0-9.]+)")


def _table(match: re.Match[str]) -> str:
    if match[2] == "table":
        text = to_markdown(load_run(ROOT / "results" / match[3], radii=RADII).rows)
    else:
        text = beside_paper(ROOT / "results", match[3])
    return f"{match[1]}\n{text.strip()}\n\n{match[4]}"


def beside_paper(results: Path, dataset: str) -> str:
    """Every run of results/ named DATASET-sweenK-TRAINING-sigmaS beside the published rows."""
    published = tomllib.loads((results / "published" / f"{dataset}.toml").read_text())["row"]
    head = ["σ", "training", "model", *(f"{radius:.2f}" for radius in DEFAULT_RADII), "ACR"]
    lines = [[*head, "two-class ACR"], [*("---:", ":---", ":---"), *("---:",) * 11]]
    for folder in sorted(results.glob(f"{dataset}-sween*")):
        name = _RUN.fullmatch(folder.name)
        if name is None:
            continue
        sigma, training = float(name["sigma"]), name["training"]
        lines += [
            _published_line(row)
            for row in published
            if row["sigma"] == sigma and row["training"] == _counterpart(training)
        ]
        lines += [
            _measured_line(row, training)
            for row in load_run(folder, radii=DEFAULT_RADII).rows
            if row.kind in ("envelope", "ensemble")
        ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _counterpart(training: str) -> str:
    """What the paper's rows are set against: its MACER rows, for objectives it does not have."""
    return "gaussian" if training == "gaussian" else "macer"


def _published_line(row: dict[str, Any]) -> list[str]:
    accuracies = [f"{value:.1f}" for value in row["accuracies"]]
    model = f"paper: {row['model']}"
    return [f"{row['sigma']:.2f}", row["training"], model, *accuracies, f"{row['acr']:.3f}", "-"]


def _measured_line(row: Row, training: str) -> list[str]:
    accuracies = [f"{100 * value:.1f}" for value in row.scores.accuracies]
    radii: Sequence[float | None] = (row.scores.acr, row.acr_two_class)
    cells = [
        f"{row.sigma:.2f}",
        training,
        f"ours: {row.model}",
        *accuracies,
        *("-" if radius is None else format_radius(radius) for radius in radii),
    ]
    return [f"**{cell}**" for cell in cells] if row.kind == "ensemble" else cells


def updated(text: str) -> str:
    """The README with every table as results/ gives it."""
    return _TABLE.sub(_table, text)


def main() -> int:
    readme = ROOT / "README.md"
    text = readme.read_text(encoding="utf-8")
    if "--check" in sys.argv[1:]:
        return int(updated(text) != text)
    readme.write_text(updated(text), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
