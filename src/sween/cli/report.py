"""`sween report`"""

from pathlib import Path
from typing import Annotated

import typer

from sween.report import write_report


def run(
    folders: Annotated[list[Path], typer.Argument(help="folders written by sween certify")],
    out: Annotated[Path, typer.Option(help="folder for tables and figures")],
    radius: Annotated[
        list[float] | None, typer.Option(help="a column's radius; give it several times")
    ] = None,
) -> None:
    """Tables in the paper's layout and the radius-accuracy curves."""
    report = write_report(folders, out, radii=radius or None)
    typer.echo(report.read_text(encoding="utf-8"))
