"""Writes the tables of README.md, docs/results.md, docs/speed.md, docs/findings.md,
docs/planning.md, docs/scaling.md and configs/README.md.

    python docs/update_readme.py [--check]

A table stands between `<!-- BUILDER NAME -->` and `<!-- end -->`; the builders are those of
docs/measured.py, and NAME is a folder of results/, a data set or a file, as the builder says.
With --check nothing is written and the exit code says whether the pages are up to date.
"""

import re
import sys
from pathlib import Path

from measured import BUILDERS

ROOT = Path(__file__).parents[1]
PAGES = tuple(
    ROOT / name
    for name in (
        *("README.md", "docs/results.md", "docs/speed.md", "docs/findings.md"),
        *("docs/planning.md", "docs/scaling.md", "configs/README.md"),
    )
)
_TABLE = re.compile(
    rf"(<!-- ({'|'.join(sorted(BUILDERS, key=len, reverse=True))}) (\S+) -->\n).*?(<!-- end -->)",
    re.DOTALL,
)


def _table(match: re.Match[str]) -> str:
    text = BUILDERS[match[2]](ROOT / "results", match[3])
    return f"{match[1]}\n{text.strip()}\n\n{match[4]}"


def updated(text: str) -> str:
    """The page with every table as results/ gives it."""
    return _TABLE.sub(_table, text)


def main() -> int:
    pages = {page: page.read_text(encoding="utf-8") for page in PAGES}
    new = {page: updated(text) for page, text in pages.items()}
    if "--check" in sys.argv[1:]:
        return int(new != pages)
    for page, text in new.items():
        page.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
