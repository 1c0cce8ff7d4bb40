"""Tables of any content, for people and for machines: Markdown, LaTeX and CSV."""

import csv
import dataclasses
import io
import re
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Cell:
    """What stands in a table: the text for people, all digits for machines, whether it is best."""

    text: str
    value: str | float | None = None
    best: bool = False


@dataclasses.dataclass(frozen=True)
class Table:
    """A table: `name` for its file, columns headed by people's words and machines' names.

    `left` columns are text, the others numbers. `blocks` numbers the rows that belong together.
    """

    name: str
    headings: Sequence[str]
    fields: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    left: Sequence[int] = (0,)
    blocks: Sequence[int] | None = None

    def __post_init__(self) -> None:
        widths = {len(self.headings), len(self.fields), *(len(row) for row in self.rows)}
        if len(widths) != 1:
            raise ValueError(f"rows of different lengths: {sorted(widths)}")


def mark_best(
    rows: Sequence[Sequence[Cell]], column: int, *, among: Sequence[object], lowest: bool = False
) -> list[list[Cell]]:
    """The rows with the best cells of a column marked; cells that look the same are best together,
    and none is where all look the same.

    Args:
        rows: of a table.
        column: its place; cells without a number there are not compared.
        among: for each row a key; rows of one key are compared, if there are several.
        lowest: whether less is better.
    """
    marked = [list(row) for row in rows]
    for key in set(among):
        own = [
            row
            for row, its in zip(marked, among, strict=True)
            if its == key and isinstance(row[column].value, int | float)
        ]
        if len(own) < 2:
            continue
        cells = [row[column] for row in own]
        if len({cell.text for cell in cells}) == 1:
            continue
        best = (min if lowest else max)(cells, key=lambda cell: float(cell.value or 0))
        for row in own:
            alike = row[column].text == best.text
            row[column] = dataclasses.replace(row[column], best=alike)
    return marked


def markdown(table: Table) -> str:
    """The table in Markdown, best values bold."""
    marks = [":---" if column in table.left else "---:" for column in range(len(table.headings))]
    lines = [_line(table.headings), _line(marks)]
    for row in table.rows:
        texts = [markdown_text(cell.text) for cell in row]
        lines.append(
            _line(
                [
                    f"**{text}**" if cell.best else text
                    for text, cell in zip(texts, row, strict=True)
                ]
            )
        )
    return "\n".join(lines) + "\n"


def latex(table: Table) -> str:
    """The table in LaTeX, for the booktabs package, best values bold."""
    marks = "".join("l" if column in table.left else "r" for column in range(len(table.headings)))
    lines = [
        rf"\begin{{tabular}}{{{marks}}}",
        r"\toprule",
        " & ".join(map(latex_text, table.headings)) + r" \\",
    ]
    blocks = table.blocks or [0] * len(table.rows)
    for position, (row, block) in enumerate(zip(table.rows, blocks, strict=True)):
        if position == 0 or block != blocks[position - 1]:
            lines.append(r"\midrule")
        texts = [latex_text(cell.text) for cell in row]
        lines.append(
            " & ".join(
                rf"\textbf{{{text}}}" if cell.best else text
                for text, cell in zip(texts, row, strict=True)
            )
            + r" \\"
        )
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def to_csv(table: Table) -> str:
    """The table as CSV: all digits of every number, empty where there is none."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(table.fields)
    writer.writerows([cell.value for cell in row] for row in table.rows)
    return stream.getvalue()


def markdown_text(text: str) -> str:
    """Text as Markdown shows it: names come from files, and a file may come from a stranger.

    Tags become entities, which every dialect of Markdown knows; a backslash before `<` only some.
    What makes a list at the beginning of a line is escaped too, as a name may stand there.
    """
    escaped = "".join(_MARKDOWN.get(character, character) for character in _one_line(text))
    # An underscore inside a word, as in image_folder, means nothing.
    escaped = re.sub(r"(?<![^\W_])_|_(?![^\W_])", r"\\_", escaped)
    return re.sub(r"^(\d*)(?=[-+.)]\s)", r"\1\\", escaped)


def latex_text(text: str) -> str:
    """Text as LaTeX prints it."""
    return "".join(_LATEX.get(character, character) for character in _one_line(text))


def _one_line(text: str) -> str:
    """Without line breaks and control characters, and what cannot be written as UTF-8."""
    spaced = " ".join(text.split())
    return "".join(character if character.isprintable() else "\ufffd" for character in spaced)


_MARKDOWN = {
    **{character: "\\" + character for character in "\\`*[]{}#|~$"},
    "&": "&amp;",
    "<": "&lt;",
    ">": "&gt;",
}

_LATEX = {
    **{character: "\\" + character for character in "&%$#_{}"},
    # The line break before a row would take these, at its beginning, for an argument of its own.
    **{character: f"{{{character}}}" for character in "[]*"},
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "`": r"\textasciigrave{}",
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "σ": r"$\sigma$",
    "α": r"$\alpha$",
    "ε": r"$\varepsilon$",
}


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
