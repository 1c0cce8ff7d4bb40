"""`sween report`"""

from pathlib import Path
from typing import Annotated

import typer

from sween.cli.options import DataRoot
from sween.errors import UnknownName
from sween.report import LogFormat, write_report
from sween.report.published_logs import Votes


def run(
    folders: Annotated[
        list[Path],
        typer.Argument(help="folders of certify, attack and train; published logs (.tsv, .mat)"),
    ],
    out: Annotated[Path, typer.Option(help="folder for the page, tables and figures")],
    radius: Annotated[
        list[float] | None, typer.Option(help="a column's radius; give it several times")
    ] = None,
    different_images: Annotated[
        bool, typer.Option("--different-images", help="allow runs on different images together")
    ] = False,
    data_root: DataRoot = None,
    log_digits: Annotated[
        int | None, typer.Option(help="significant digits of a log's radii, e.g. 3 for '1.8'")
    ] = None,
    log_start: Annotated[int | None, typer.Option(help="first image of a .mat file")] = None,
    log_skip: Annotated[int, typer.Option(help="step between the images of a .mat file")] = 1,
    log_votes: Annotated[
        str, typer.Option(help="which radii of a .mat file: those of hard or of soft votes")
    ] = "hard",
    log_sigma: Annotated[
        float | None, typer.Option(help="noise level of a log [the first run's]")
    ] = None,
    log_n: Annotated[
        int | None, typer.Option(help="votes of a log's radii [1000000, or the first run's]")
    ] = None,
    log_alpha: Annotated[
        float | None, typer.Option(help="alpha of a log [the first run's]")
    ] = None,
) -> None:
    """A page to read, tables in the paper's layout, and figures."""
    report = write_report(
        folders,
        out,
        radii=radius or None,
        different_images=different_images,
        log_format=LogFormat(
            significant_digits=log_digits,
            start=log_start,
            skip=log_skip,
            votes=_votes(log_votes),
            sigma=log_sigma,
            n=log_n,
            alpha=log_alpha,
        ),
        data_root=data_root,
    )
    typer.echo(report.read_text(encoding="utf-8"))
    page = report.with_name("report.html")
    if page.exists():
        typer.echo(f"The page is {page}")


def _votes(name: str) -> Votes:
    if name == "hard":
        return "hard"
    if name == "soft":
        return "soft"
    raise UnknownName("log votes", name, ("hard", "soft"))
