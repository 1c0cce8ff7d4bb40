"""The page as one file: template, style, script and content put together.

The page opens from disk and asks for nothing: no network, no other file. What comes from files,
such as class names, may be chosen by a stranger. It travels as JSON that cannot end its own block,
the script inserts it as text only, and the Content-Security-Policy allows our script and style by
their hashes and nothing else.
"""

import base64
import hashlib
import html
import importlib.resources
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sween.errors import BadInput, refuse_doubles
from sween.paths import AnyPath
from sween.report.page.content import page_content
from sween.report.page.more import PageTable
from sween.report.page.run import PageRun
from sween.run_folder import write_text

STYLES = ("page.css", "table.css", "curves.css", "gallery.css")
SCRIPTS = (
    *("dom.js", "table.js", "chart.js", "plot.js", "legend.js", "curves.js"),
    *("card.js", "filters.js", "gallery.js", "provenance.js", "page.js"),
)
"""Joined in this order into one function's scope; page.js starts the rest."""


def write_page(
    path: AnyPath,
    runs: Sequence[PageRun],
    *,
    tables: Sequence[PageTable] = (),
    others: Mapping[str, Mapping[str, Any]] | None = None,
    title: str = "Certified robustness",
) -> None:
    """Write the page that `page_text` makes, whole or not at all."""
    path = Path(path)
    write_text(path, page_text(runs, tables=tables, others=others, title=title))


def page_text(
    runs: Sequence[PageRun],
    *,
    tables: Sequence[PageTable] = (),
    others: Mapping[str, Mapping[str, Any]] | None = None,
    title: str = "Certified robustness",
) -> str:
    """One self-contained HTML page of runs.

    Args:
        runs: in the order of the page, each of another name; none where there are tables.
        tables: what the page shows beside the table of all models.
        others: by a name, how and where what belongs to no run was made.
        title: the page's heading.

    Raises:
        BadInput: nothing to show, two runs of one name, or tables at different radii.
    """
    _check(runs, tables)
    style, script = _join(STYLES), f'(() => {{\n"use strict";\n{_join(SCRIPTS)}}})();\n'
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    parts = {
        "policy": html.escape(policy),
        "title": _markup(title),
        "alpha": _markup(_alphas(runs)),
        "style": style,
        "content": to_json_block(page_content(runs, tables, others)),
        "script": script,
    }
    template = _join(["template.html"])
    # One pass: a part that holds the name of another part stays as it is.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


def to_json_block(content: Any) -> str:
    r"""JSON for a script element: ASCII, and with `<` as \u003c, so that nothing in it ends it."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c")


def _check(runs: Sequence[PageRun], tables: Sequence[PageTable]) -> None:
    if not runs and not tables:
        raise BadInput("runs", expected="at least one", got="none", fix="pass some runs")
    names = [page.run.name for page in runs]
    refuse_doubles("runs", names, fix="rename one: the name labels its rows, curves and images")


def _join(names: Sequence[str]) -> str:
    folder = importlib.resources.files("sween.report.page")
    return "\n".join(folder.joinpath(name).read_text(encoding="utf-8") for name in names)


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _markup(text: str) -> str:
    """Text as HTML in ASCII: even a folder's name that is no Unicode can be written."""
    return html.escape(text).encode("ascii", "xmlcharrefreplace").decode()


def _alphas(runs: Sequence[PageRun]) -> str:
    return " or ".join(f"{alpha:g}" for alpha in sorted({page.run.sample.alpha for page in runs}))
