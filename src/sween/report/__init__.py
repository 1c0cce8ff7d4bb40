"""Tables, figures and the report of measured runs."""

from sween.report.curves import draw_curves
from sween.report.measured import MeasuredRun, load_run
from sween.report.rows import DEFAULT_RADII, Row, build_rows, to_markdown
from sween.report.sources import LogFormat
from sween.report.writer import write_report

__all__ = [
    "DEFAULT_RADII",
    "LogFormat",
    "MeasuredRun",
    "Row",
    "build_rows",
    "draw_curves",
    "load_run",
    "to_markdown",
    "write_report",
]
