"""docs/mathematics.md names code and tests that exist."""

import ast
import re
from pathlib import Path

import pytest

from .pages import ROOT

PAGE = (ROOT / "docs" / "mathematics.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", PAGE)))


def test_every_section_names_code_and_tests() -> None:
    exempt = ("Notation", "References")
    for section in PAGE.split("\n## ")[1:]:
        if not section.startswith(exempt):
            assert "*Code:*" in section, section.splitlines()[0]
            assert "*Tests:*" in section, section.splitlines()[0]


@pytest.mark.parametrize(("file", "name"), NAMED, ids="::".join)
def test_what_the_page_names_is_there(file: str, name: str) -> None:
    path = ROOT / file if file.startswith("tests/") else ROOT / "src" / "sween" / file
    assert path.is_file()
    if name:
        assert name in _defined(path)


def _defined(path: Path) -> set[str]:
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return {node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
