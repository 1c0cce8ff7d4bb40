"""Writes the pages of docs/reference from the code: commands, names of Python, rows and configs.

    python docs/update_reference.py [--check]

With --check nothing is written and the exit code says whether the pages are up to date.
"""

import sys
from pathlib import Path

import reference_commands
import reference_python
import reference_rows

FOLDER = Path(__file__).parent / "reference"
PAGES = {
    "commands.md": reference_commands.page,
    "python.md": reference_python.python_page,
    "packages.md": reference_python.packages_page,
    "rows.md": reference_rows.page,
}


def main() -> int:
    new = {FOLDER / name: page() for name, page in PAGES.items()}
    if "--check" in sys.argv[1:]:
        return int(any(page.read_text(encoding="utf-8") != text for page, text in new.items()))
    for page, text in new.items():
        page.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
