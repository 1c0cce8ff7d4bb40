"""One self-contained HTML page of measured runs: table, curves, images, provenance."""

from sween.report.page.run import PageRun
from sween.report.page.writer import write_page

__all__ = ["PageRun", "write_page"]
