"""The report of one or more runs: a page, report.md, tables in CSV and LaTeX, and figures."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

from sween.data import Dataset
from sween.errors import BadInput
from sween.paths import AnyPath, as_paths
from sween.report import canvas, grid
from sween.report.adaptive import adaptive_table
from sween.report.alarms import alarm_table
from sween.report.attacked import attack_notes, attack_table
from sween.report.comparison import comparison_table
from sween.report.cost import cost_table
from sween.report.files import ReportFiles
from sween.report.illustrate import add_figures, figures_of, noise_figure
from sween.report.log_comparison import (
    LogComparison,
    compare_logs,
    comparison_notes,
    comparison_rows,
    comparison_section,
    comparison_title,
)
from sween.report.meaning import meaning_section
from sween.report.measured import MeasuredRun
from sween.report.page import PageTable, page_text
from sween.report.sections import curve_files, draw_run, run_section, settings_section
from sween.report.show import others_made, page_runs
from sween.report.sources import (
    LogFormat,
    Sources,
    check_same_images,
    read_datasets,
    read_sources,
)
from sween.report.tables import to_csv, to_latex

ATTACKS = "Certified and empirical accuracy"
"""The title of the table of attacks."""

ABOUT = {
    ATTACKS: [
        "Resist % counts images that are classified correctly when clean and stay correct, or "
        "abstain, under attack. It is an upper bound: an attack that fails proves nothing. "
        "Certified accuracy is a lower bound. An alarm is an answer that changed inside its "
        "certified radius."
    ]
}
"""What the page says about a table; report.md has it with the meaning of the columns."""


def write_report(
    folders: Sequence[AnyPath],
    out: AnyPath,
    *,
    radii: Sequence[float] | None = None,
    different_images: bool = False,
    log_format: LogFormat | None = None,
    data_root: AnyPath | None = None,
) -> Path:
    """Write a page, tables, figures and the paired comparison of runs into a folder.

    Everything is read, checked and put together before the first file is written; each file appears
    whole or not at all, report.md last. Files of an earlier report in the folder go. Without
    matplotlib the figures are left out, with a warning and a line in report.md.

    Args:
        folders: folders of `sween certify`, `sween attack` and `sween train`, and published logs
            (tab-separated files, MACER's .mat files), in any mixture.
        out: where report.html, report.md, the tables as .csv and .tex and figures as .png and .svg
            go.
        radii: columns of certified accuracy; the paper's 0.00 to 2.00 by default.
        different_images: allow runs of one data set on different images beside each other.
        log_format: what published logs do not say themselves.
        data_root: folder with the data set's files, where images are to be shown.

    Returns:
        The path of report.md.

    Raises:
        BadInput: no folders, two of one name, or a folder whose rows do not belong together.
    """
    out = Path(out)
    folders = as_paths("folders", folders)
    _check(folders, out)
    sources = read_sources(folders, radii=radii, log_format=log_format)
    if not different_images:
        check_same_images(sources.runs)
    datasets = read_datasets(sources.runs, data_root)
    files = ReportFiles()
    figures = canvas.has_matplotlib()
    sections = [
        f"{run_section(run, figures=figures)}\n{_draw(run, sources, files) if figures else ''}"
        for run in sources.runs
    ]
    if sources.runs and not figures:
        warnings.warn(canvas.LEFT_OUT, UserWarning, stacklevel=2)
        sections.insert(0, f"{canvas.LEFT_OUT}\n")
    tables = _more_tables(sources)
    notes = {ATTACKS: attack_notes(sources.attacked, tables[ATTACKS])} if ATTACKS in tables else {}
    more = [_section(title, table, notes.get(title, ())) for title, table in tables.items()]
    logs = compare_logs(sources.runs, sources.logs, radii=radii, common_only=different_images)
    more += [comparison_section(compared) for _, compared in logs]
    for own in _by_dataset(sources.runs, datasets) if figures else ():
        noise = {"noise": noise_figure(own, datasets[own[0].name])}
        lines = add_figures(noise, _name_of_images(own[0], datasets), files)
        more.append(f"## What the networks see\n\n{lines}")
    shown = [
        PageTable(title, table, [*ABOUT.get(title, ()), *notes.get(title, ())])
        for title, table in tables.items()
    ]
    shown += [_beside_table(compared) for _, compared in logs]
    page = page_text(
        page_runs(sources.runs, sources.attacked, datasets),
        tables=shown,
        others=others_made(sources.runs, sources.attacked),
    )
    files.add_text("report.html", page)
    rows = [row for run in sources.runs for row in run.rows]
    if rows:
        files.add_text("table.csv", to_csv(rows))
        files.add_text("table.tex", to_latex(rows))
        more.append(settings_section(sources.runs))
    if meaning := meaning_section(sources.runs, list(tables.values()), logs=bool(logs)):
        more.append(meaning)
    for name, compared in logs:
        files.add_text(f"{name}.csv", compared.to_csv())
    for table in tables.values():
        files.add_text(f"{table.name}.csv", grid.to_csv(table))
        files.add_text(f"{table.name}.tex", grid.latex(table))
    files.add_text("report.md", "\n".join(["# Certified robustness\n", *sections, *more]))
    files.write(out)
    return out / "report.md"


def _section(title: str, table: grid.Table, notes: Sequence[str]) -> str:
    said = "".join(f"\n{grid.markdown_text(note)}\n" for note in notes)
    return f"## {title}\n\n{grid.markdown(table)}{said}"


def _draw(run: MeasuredRun, sources: Sources, files: ReportFiles) -> str:
    """Adds a run's figures; the lines of Markdown that show those beside its curves."""
    for name, bound in curve_files(run).items():
        files.add_figure(name, draw_run(run, bound))
    return add_figures(figures_of(run, sources.attacked), run.name, files)


def _name_of_images(run: MeasuredRun, datasets: Mapping[str, Dataset]) -> str:
    """The data set's name; the run's, where another run has other images of a set so named."""
    own = datasets[run.name]
    others = {other.name for other in datasets.values() if other is not own}
    return run.name if own.name in others else own.name


def _more_tables(sources: Sources) -> dict[str, grid.Table]:
    """The other tables that there is something for, by their title."""
    tables = {
        "Ensembles against their best candidates": comparison_table(sources.runs),
        "Network evaluations with and without an early exit": adaptive_table(sources.runs),
        ATTACKS: attack_table(sources.attacked, sources.runs),
        "Alarms": alarm_table(sources.attacked, sources.runs),
        "Size and training time": cost_table(sources.trained),
    }
    return {title: table for title, table in tables.items() if table is not None}


def _by_dataset(
    runs: Sequence[MeasuredRun], datasets: Mapping[str, Dataset]
) -> list[list[MeasuredRun]]:
    """The runs whose images are at hand, those of one data set together."""
    groups = dict[int, list[MeasuredRun]]()
    for run in runs:
        if run.name in datasets:
            groups.setdefault(id(datasets[run.name]), []).append(run)
    return list(groups.values())


def _beside_table(compared: LogComparison) -> PageTable:
    return PageTable(
        comparison_title(compared), comparison_rows(compared), comparison_notes(compared)
    )


def _check(folders: Sequence[Path], out: Path) -> None:
    if not folders:
        raise BadInput(
            "folders", expected="at least one run folder", got="none", fix="name some folders"
        )
    if out.exists() and not out.is_dir():
        raise BadInput(str(out), expected="a folder", got="a file", fix="choose another --out")
