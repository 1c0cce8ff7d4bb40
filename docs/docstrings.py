"""Docstrings in Google style as Markdown, for the pages of docs/reference."""

import inspect
import re

_SECTION = re.compile(r"(Args|Attributes|Returns|Raises|Example|Keys of config\.toml):")
_ENTRY = re.compile(r"([\w, *]+?)(?: \(([^)]*)\))?: (.*)")


def sections(docstring: str | None) -> dict[str, str]:
    """The text of each section by its name; what comes before all of them has the name ""."""
    found, name = {"": list[str]()}, ""
    for line in inspect.cleandoc(docstring or "").splitlines():
        header = _SECTION.fullmatch(line)
        if header:
            name = header[1]
            found[name] = []
        else:
            found[name].append(line)
    return {name: inspect.cleandoc("\n" + "\n".join(lines)) for name, lines in found.items()}


def entries(section: str) -> list[tuple[str, str, str]]:
    """Name, type (empty where none is given) and description of each entry of a section."""
    found = list[list[str]]()
    for line in section.splitlines():
        entry = None if line.startswith(" ") else _ENTRY.fullmatch(line)
        if entry:
            found.append([entry[1], entry[2] or "", entry[3]])
        elif line.strip():
            found[-1][2] += " " + line.strip()
    return [(name, kind, text) for name, kind, text in found]


def markdown(text: str) -> str:
    """Prose with `code` in it as Markdown; indented blocks stay as they are."""
    return "\n".join(
        line if line.startswith("    ") else "".join(map(_escaped, re.split(r"(`[^`]*`)", line)))
        for line in text.splitlines()
    )


def _escaped(text: str) -> str:
    if text.startswith("`"):
        return text
    return re.sub(r"([\\*|$])", r"\\\1", text).replace("<", "&lt;")
