"""`sween demo`"""

from pathlib import Path
from typing import Annotated

import typer

from sween.cli.options import Quiet, Seed
from sween.demo import RADII, SAMPLES, run_demo
from sween.report import write_report


def run(
    out: Annotated[Path, typer.Option(help="folder for all results")] = Path("demo"),
    n: Annotated[int, typer.Option(help="noisy copies per digit")] = SAMPLES,
    seed: Seed = 0,
    quiet: Quiet = False,
) -> None:
    """Train, weigh, certify and report on the bundled digits."""
    result = run_demo(out, seed=seed, samples=n, quiet=quiet)
    report = write_report([result.folder], out / "report", radii=RADII)
    typer.echo(report.read_text(encoding="utf-8"))
    typer.echo(f"Certificates, ensemble and report are in {out}")
    typer.echo(f"To check them: sween verify {result.folder}")
    typer.echo(f"Open {report.with_name('report.html')} in a browser")
