"""Every `sween` command on every Markdown page exists, with all of its options."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from sween.cli.app import app

from .pages import ROOT, markdown_pages

SHELLS = {"", "bash", "sh", "shell", "console"}
ELLIPSES = {"...", "…"}
APP: Any = typer.main.get_command(app)
VERBS = dict(APP.commands)
"""Looked up now, when nothing but what is built in is registered: their help lists such names."""


def blocks(text: str) -> Iterator[str]:
    """Code that a reader would type into a shell: fenced by a shell's name or none, or indented."""
    for language, code in re.findall(r"^ *```(\w*)[^\n]*\n(.*?)^ *```", text, re.DOTALL | re.M):
        if language in SHELLS:
            yield code
    rest = re.sub(r"^ *```.*?^ *```", "", text, flags=re.DOTALL | re.M)
    yield from re.findall(r"(?:^ {4}.*\n)+", re.sub(r"<!--.*?-->", "", rest, flags=re.DOTALL), re.M)


def commands(page: Path) -> Iterator[tuple[str, bool]]:
    """The command lines of a page, and whether each is complete; inline code may be a part."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for block in blocks(text):
        for line in block.replace("\\\n", " ").splitlines():
            found = re.match(r"\s*(?:\$ )?(?:[\w./-]+ .*-m )?(sween .*)", line)
            if found and not found[1].startswith("sween ="):
                yield found[1], True
    for inline in re.findall(r"(?<!`)`(sween [^`]*)`(?!`)", text):
        yield " ".join(inline.split()), False


LINES = sorted({(page, *command) for page in markdown_pages() for command in commands(page)})


def test_there_are_commands_to_check() -> None:
    assert len(LINES) > 50


@pytest.mark.parametrize("page", sorted({page for page, _, _ in LINES}), ids=str)
def test_commands_of_a_page_exist(page: Path) -> None:
    for own, line, complete in LINES:
        if own == page:
            check(line, complete=complete)


def check(line: str, *, complete: bool) -> None:
    """Refuse a line that the command line would refuse before it reads any file."""
    words = shlex.split(line, comments=True)[1:]
    for end in ("|", "&&", ">", "2>", ";"):
        words = words[: words.index(end)] if end in words else words
    command = APP
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    verb = command is not APP or (words and words[0].startswith("-"))
    assert verb or not words or words[0].isupper(), f"no such command: {line}"
    if complete and command is not APP and not ELLIPSES & {*words}:
        command.make_context("sween", words)  # raises what the command would print
        return
    known = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
    for word in words:
        if word.startswith("--"):
            assert word.partition("=")[0] in {*known, "--help"}, f"{word} in: {line}"


@pytest.mark.parametrize(
    "line",
    ["sween fly", "sween certify m --out x --color", "sween certify m", "sween plan --n many"],
)
def test_wrong_commands_would_be_found(line: str) -> None:
    with pytest.raises(Exception, match=r"[Nn]o such|Missing|valid"):
        check(line, complete=True)


def test_the_commands_at_a_glance_are_all_of_them() -> None:
    text = (ROOT / "docs" / "howto" / "index.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(\w+)` \|", text, re.M)) == set(VERBS)
