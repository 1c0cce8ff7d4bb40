"""One self-contained HTML page of measured runs: tables, curves, images, provenance."""

from sween.report.page.render import render_page

__all__ = ["render_page"]
