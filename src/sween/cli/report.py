"""`sween report`"""

from pathlib import Path
from typing import Annotated

import typer

from sween.cli.options import DataRoot
from sween.data import load_dataset
from sween.errors import UnknownName
from sween.report import LogFormat, write_report


def run(
    folders: Annotated[
        list[Path],
        typer.Argument(help="folders of certify, attack and train; published logs (.tsv, .mat)"),
    ],
    out: Annotated[Path, typer.Option(help="folder for the page, tables and figures")],
    radius: Annotated[
        list[float] | None,
        typer.Option(help="radius of a certified-accuracy column; repeat for several"),
    ] = None,
    different_images: Annotated[
        bool, typer.Option("--different-images", help="allow runs on different images")
    ] = False,
    data_root: DataRoot = None,
    dataset: Annotated[
        list[str] | None,
        typer.Option(
            help="package.module:factory that a run names and you trust, to show its images; may "
            "be repeated"
        ),
    ] = None,
    log_digits: Annotated[
        int | None, typer.Option(help="significant digits of a log's radii, e.g. 3 for '1.8'")
    ] = None,
    log_start: Annotated[
        int | None, typer.Option(help="index of the first image of a .mat file")
    ] = None,
    log_skip: Annotated[int, typer.Option(help="step between the images of a .mat file")] = 1,
    log_votes: Annotated[
        str, typer.Option(help="radii to read from a .mat file: hard or soft votes")
    ] = "hard",
    log_sigma: Annotated[
        float | None, typer.Option(help="noise level of a log (default: the first run's)")
    ] = None,
    log_n: Annotated[
        int | None,
        typer.Option(
            help="votes behind a log's radii (default: 1000000, or the first run's if more)"
        ),
    ] = None,
    log_alpha: Annotated[
        float | None, typer.Option(help="failure probability of a log (default: the first run's)")
    ] = None,
) -> None:
    """Write an HTML page, tables in the paper's layout, and figures."""
    if log_votes not in ("hard", "soft"):
        raise UnknownName("log votes", log_votes, ("hard", "soft"))
    log_format = LogFormat(
        significant_digits=log_digits,
        start=log_start,
        skip=log_skip,
        votes="soft" if log_votes == "soft" else "hard",
        sigma=log_sigma,
        n=log_n,
        alpha=log_alpha,
    )
    report = write_report(
        folders,
        out,
        radii=radius or None,
        different_images=different_images,
        log_format=log_format,
        data_root=data_root,
        datasets={name: load_dataset(name, data_root, test_only=True) for name in dataset or ()},
    )
    typer.echo(report.read_text(encoding="utf-8"))
    typer.echo(f"The page is {report.with_name('report.html')}")
