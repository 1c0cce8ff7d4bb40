"""Writes README.md's measured tables from results/: python docs/update_readme.py [--check]

A table stands between `<!-- table NAME -->` and `<!-- end -->`, where NAME is a folder of results/.
With --check nothing is written and the exit code says whether the README is up to date.
"""

import re
import sys
from pathlib import Path

from sween.demo import RADII
from sween.report import load_run, to_markdown

ROOT = Path(__file__).parents[1]
_TABLE = re.compile(r"(<!-- table (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def _table(match: re.Match[str]) -> str:
    run = load_run(ROOT / "results" / match[2], radii=RADII)
    return f"{match[1]}\n{to_markdown(run.rows).strip()}\n\n{match[3]}"


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
