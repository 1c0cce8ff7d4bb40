"""The page as one file: template, styles, scripts and content combined.

The page opens from disk and loads nothing: no network, no other file. What comes from files, such
as class names, may be chosen by a stranger. It is embedded as JSON that cannot end its own block,
the script inserts it as text only, and the Content-Security-Policy allows the page's own script and
style by their hashes and nothing else.
"""

import base64
import hashlib
import html
import importlib.resources
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from sween.data import Dataset
from sween.report.attacked import AttackedRun
from sween.report.measured import MeasuredRun
from sween.report.page.content import page_content
from sween.report.tables import Table

STYLES = ("page.css", "table.css", "curves.css", "gallery.css")
SCRIPTS = (
    *("dom.js", "table.js", "chart.js", "plot.js", "legend.js", "curves.js"),
    *("card.js", "filters.js", "gallery.js", "page.js"),
)
"""Joined in this order into the scope of one function; page.js starts the rest."""


def render_page(
    runs: Sequence[MeasuredRun],
    *,
    tables: Sequence[Table] = (),
    attacked: Sequence[AttackedRun] = (),
    datasets: Mapping[str, Dataset] | None = None,
) -> str:
    """One self-contained HTML page of runs.

    Args:
        runs: in the order of the page, with different names.
        tables: shown in addition to the table of all models.
        attacked: attacks, shown with the runs that certified their models.
        datasets: by run, the data set with its images; without it the gallery has placeholders.
    """
    style, script = _join(STYLES), f'(() => {{\n"use strict";\n{_join(SCRIPTS)}}})();\n'
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    parts = {
        "policy": html.escape(policy),
        "alpha": " or ".join(f"{alpha:g}" for alpha in sorted({run.sample.alpha for run in runs})),
        "style": style,
        "content": to_json_block(page_content(runs, tables, attacked, datasets or {})),
        "script": script,
    }
    template = _join(["template.html"])
    # One pass: a part that contains the placeholder of another part stays as it is.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


def to_json_block(content: Any) -> str:
    r"""JSON for a script element: ASCII, and with `<` as \u003c, so that nothing in it ends it."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c")


def _join(names: Sequence[str]) -> str:
    folder = importlib.resources.files("sween.report.page")
    return "\n".join(folder.joinpath(name).read_text(encoding="utf-8") for name in names)


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
