"""One self-contained HTML page of measured runs: tables, curves, images, provenance."""

from sween.report.page.more import PageTable
from sween.report.page.run import PageRun
from sween.report.page.writer import write_page

__all__ = ["PageRun", "PageTable", "write_page"]
