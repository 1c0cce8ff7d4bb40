"""docs/reference/commands.md: every command with its arguments and options."""

import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from docstrings import markdown

from sween.cli.app import app
from sween.markdown import markdown_table

KINDS = {int: "INTEGER", float: "FLOAT", str: "TEXT", Path: "PATH"}

HEAD = """# The command line

Every command and option, from the code by `python docs/update_reference.py`; `sween COMMAND --help`
prints them too. `python -m sween` is another way to call it.

Exit codes: 0 done, 1 a check failed, 2 bad input (one line that says what was wrong and how to fix
it), 130 interrupted.
"""


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *_command(typer.main.get_command(app), "sween")])


def _command(command: Any, name: str) -> Iterator[str]:
    if name != "sween":
        yield f"## {name}\n"
        yield _prose(command.help) + "\n"
        yield f"```text\n{name} {' '.join(_usage(command))}\n```\n"
    rows = [(_spelled(each, command), _default(each), _meaning(each)) for each in command.params]
    if rows:
        yield markdown_table(("option", "default", "meaning"), ["---"] * 3, rows)
    for each, part in getattr(command, "commands", {}).items():
        yield from _command(part, f"{name} {each}")


def _usage(command: Any) -> Iterator[str]:
    """What a command line needs at least, in the order of `--help`."""
    for each in command.params:
        if each.param_type_name == "argument":
            name = each.metavar or each.name.upper()
            name += "..." * (each.nargs == -1 and not name.endswith("..."))
            yield name if each.required or name.startswith("[") else f"[{name}]"
        elif each.required:
            yield f"{each.opts[0]} {_kind(each, command)}"
    yield "[OPTIONS]"
    if getattr(command, "commands", None):
        yield "[COMMAND]"


def _spelled(parameter: Any, command: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{parameter.metavar or parameter.name.upper()}`"
    names = " / ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    return names if parameter.is_flag else f"{names} {_kind(parameter, command)}"


def _kind(parameter: Any, command: Any) -> str:
    """From the annotation of the function: what Typer calls it has changed between versions."""
    annotation = typing.get_type_hints(command.callback)[parameter.name]
    kinds = [kind for kind in KINDS if kind.__name__ in str(annotation)]
    return parameter.metavar or KINDS[kinds[0]]


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    value = parameter.default
    return "" if value is None or value is False or value in ((), []) else f"`{value}`"


def _meaning(parameter: Any) -> str:
    text = _prose(" ".join((parameter.help or "").split()))
    return f"{text}; may be repeated" if parameter.multiple and "repeat" not in text else text


def _prose(text: str) -> str:
    """Help as Markdown, its options as code: typographers make one dash of two."""
    parts = re.split(r"(`[^`]*`)", text)
    parts[::2] = [re.sub(r"(?<![\w-])--[a-z][\w-]*", r"`\g<0>`", part) for part in parts[::2]]
    return markdown("".join(parts))
