"""Tables and text in Markdown."""

import re
from collections.abc import Iterable, Sequence

TEXT, NUMBER = ":---", "---:"
"""How a column is aligned: left or right."""

_ESCAPES = {
    **{character: "\\" + character for character in "\\`*[]{}#|~$"},
    "&": "&amp;",
    "<": "&lt;",
    ">": "&gt;",
}


def markdown_table(
    headings: Sequence[str], alignment: Sequence[str], rows: Iterable[Sequence[str]]
) -> str:
    """A table of cells that are already Markdown; each column is TEXT or NUMBER."""
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (headings, alignment, *rows))


def markdown_text(text: str) -> str:
    """Text as Markdown shows it: names come from files, and a file may come from a stranger.

    Tags become entities, which every dialect of Markdown knows; a backslash before `<` only some
    do. What starts a list is escaped at the beginning of a line, where a name may be.
    """
    escaped = "".join(_ESCAPES.get(character, character) for character in one_line(text))
    # An underscore inside a word, as in image_folder, means nothing.
    escaped = re.sub(r"(?<![^\W_])_|_(?![^\W_])", r"\\_", escaped)
    return re.sub(r"^(\d*)(?=[-+.)]\s)", r"\1\\", escaped)


def one_line(text: str) -> str:
    """Without line breaks, control characters and what cannot be written as UTF-8."""
    spaced = " ".join(text.split())
    return "".join(character if character.isprintable() else "\ufffd" for character in spaced)
