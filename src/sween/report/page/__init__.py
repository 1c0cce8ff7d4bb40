"""One self-contained HTML page of measured runs: tables, curves, images, provenance."""

from sween.report.page.more import PageTable
from sween.report.page.run import PageRun
from sween.report.page.writer import page_text, write_page

__all__ = ["PageRun", "PageTable", "page_text", "write_page"]
