"""The library names parameters of Python, and the command line prints them as its options."""

import ast
import re
from pathlib import Path

import pytest
import typer

import sween
from sween.cli.app import app
from sween.cli.option_names import _OPTION_OF, spell_options

VERBS = typer.main.get_command(app).commands  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("verb", "message", "printed"),
    [
        ("certify", "pass it as `root`", "pass it as --data-root"),
        ("certify", "`indices`, `every=20`, `everything`", "--indices, --every 20, --all"),
        ("certify", "`compile=False` or `convert=True`", "--no-compile or --convert"),
        ("certify", "`archs=['os:system']`", "--arch os:system"),
        ("weigh", "`dataset='os:system'`", "--dataset os:system"),
        ("report", "`LogFormat.votes=soft`", "--log-votes soft"),
        ("report", "run `sween weigh`, as `targets` and `convert=True` say", None),
        (None, "`data_root`", None),
    ],
)
def test_parameters_become_options_of_the_verb_that_has_them(
    verb: str | None, message: str, printed: str | None
) -> None:
    assert spell_options(message, VERBS.get(verb)) == (printed or message)


@pytest.mark.parametrize(("parameter", "option"), _OPTION_OF.items())
def test_options_of_another_name_exist(parameter: str, option: str) -> None:
    assert any(
        spell_options(f"`{parameter}`", verb) == f"--{option.replace('_', '-')}"
        for verb in VERBS.values()
    )


def test_no_error_of_the_library_names_an_option_of_the_command_line() -> None:
    """Docstrings may, and lists, which are the arguments of other programs."""
    package = Path(sween.__file__).parent
    for path in package.rglob("*.py"):
        if path.is_relative_to(package / "cli"):
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        allowed = {
            id(part)
            for node in ast.walk(tree)
            if isinstance(node, ast.Expr | ast.List)
            for part in ast.walk(node)
            if not isinstance(node, ast.Expr) or part is node.value
        }
        texts = [
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
            if id(node) not in allowed
        ]
        assert not [text for text in texts if re.search(r"(?<![\w-])--([a-z]|$)", text)], path
