"""`sween reproduce`"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from sween.cli.completion import complete_from
from sween.cli.option_names import spell_options
from sween.cli.options import DataRoot, Device, Quiet, choose_devices
from sween.paths import as_folder
from sween.progress import format_seconds
from sween.report.canvas import LEFT_OUT, has_matplotlib, save
from sween.report.tables import latex, markdown_section, to_csv
from sween.reproduce import (
    Rates,
    Step,
    Workspace,
    carry_out,
    list_targets,
    make_figures,
    make_tables,
    open_target,
    parse_duration,
    seconds_left,
    steps_of_all,
)
from sween.reproduce.rates import Kind
from sween.run_folder import write_text


def run(
    context: typer.Context,
    target: Annotated[
        str,
        typer.Argument(
            help=f"{', '.join(list_targets())}, or a plan file",
            autocompletion=complete_from(list_targets),
        ),
    ],
    out: Annotated[Path, typer.Option(help="output folder, shared by all targets")],
    recipe: Annotated[
        str, typer.Option(help="training recipe: fast, or paper for the paper's settings")
    ] = "fast",
    sigma: Annotated[
        list[float] | None, typer.Option(help="only this noise level; may be repeated")
    ] = None,
    data_root: DataRoot = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="list the steps and how long each should take")
    ] = False,
    time_limit: Annotated[
        str | None, typer.Option(help="stop within this time, e.g. 25m; the same command resumes")
    ] = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Reproduce a table of the paper from scratch.

    Trains, weighs, certifies and attacks what the table needs, and prints the paper's numbers next
    to the new ones.
    """
    limit = None if time_limit is None else parse_duration(time_limit)
    devices = choose_devices(device)
    opened = open_target(
        target,
        recipe=recipe,
        sigmas=sigma or (),
        out=as_folder("--out", out),
        data_root=data_root,
        devices=devices,
        quiet=quiet,
    )
    for line in opened.left_out:
        typer.echo(spell_options(line, context.command))
    steps = steps_of_all(opened.spaces)
    if dry_run:
        _list(steps, devices[0].type)
        return
    outcome = carry_out(steps, device=devices[0].type, time_limit=limit, say=typer.echo)
    for space in opened.spaces:
        space.unfinished |= {path for step in outcome.left for path in step.makes}
        _write(space, out / "tables")
    if outcome.left:
        typer.echo(f"{len(outcome.left)} of {len(steps)} steps are left:")
        _list(outcome.left, devices[0].type)
    elif not outcome.new:
        typer.echo("nothing was left to do")


def _write(space: Workspace, folder: Path) -> None:
    """Tables as Markdown, CSV and LaTeX, and figures if matplotlib is installed."""
    for table in make_tables(space):
        name = f"{table.name}-{space.recipe}"
        write_text(folder / f"{name}.md", markdown_section(table))
        write_text(folder / f"{name}.csv", to_csv(table))
        write_text(folder / f"{name}.tex", latex(table))
        typer.echo(markdown_section(table))
    if not has_matplotlib():
        typer.echo(LEFT_OUT)
        return
    for name, figure in make_figures(space).items():
        save(figure, folder / f"{name}.png")
        save(figure, folder / f"{name}.svg")


def _list(steps: Sequence[Step], device: str) -> None:
    rates, total, kinds = Rates(device), 0.0, set[Kind]()
    for step in steps:
        work = step.work()
        rates.learn(work)
        kinds.add(work.kind)
    for step in steps:
        seconds = seconds_left(step, rates)
        total += seconds
        typer.echo(f"{format_seconds(seconds) if seconds else 'done':>8}  {step.name}")
    typer.echo(f"{format_seconds(total):>8}  in all, at rates measured {rates.describe(kinds)}")
