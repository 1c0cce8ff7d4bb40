"""The report of one or more runs: a page, report.md, tables as CSV and LaTeX, and figures."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

from sween.data import DATASETS, Dataset
from sween.errors import BadInput
from sween.paths import AnyPath, as_paths
from sween.report import canvas
from sween.report.attacked import alarm_table, attack_table
from sween.report.cost import cost_table
from sween.report.figures import curve_figures, draw_noise, more_figures
from sween.report.files import ReportFiles
from sween.report.log_comparison import compare_logs, log_table
from sween.report.measured import MeasuredRun
from sween.report.page import render_page
from sween.report.rows import certified_table
from sween.report.run_tables import comparison_table, early_exit_table, settings_table
from sween.report.sections import curve_lines, figure_line, meaning_section, run_section
from sween.report.sources import (
    LogFormat,
    Sources,
    check_same_images,
    read_datasets,
    read_sources,
)
from sween.report.tables import Table, latex, markdown_section, to_csv


def write_report(
    folders: Sequence[AnyPath],
    out: AnyPath,
    *,
    radii: Sequence[float] | None = None,
    different_images: bool = False,
    log_format: LogFormat | None = None,
    data_root: AnyPath | None = None,
    datasets: Mapping[str, object] | None = None,
) -> Path:
    """Write a page, tables, figures and paired comparisons of runs into a folder.

    Everything is read and checked before the first file is written; each file appears whole or not
    at all, report.md last. Files of an earlier report in the folder are removed. Without matplotlib
    the figures are left out, with a warning and a line in report.md.

    Args:
        folders: folders of `sween certify`, `sween attack` and `sween train`, and published logs
            (tab-separated files, MACER's .mat files), in any combination.
        out: folder for report.html, report.md, the tables as .csv and .tex and the figures as .png
            and .svg.
        radii: columns of certified accuracy; the paper's 0.00 to 2.00 by default.
        different_images: allow runs of one data set on different images in one report.
        log_format: what published logs do not say themselves.
        data_root: folder with the data set's files, to show its images.
        datasets: to show the images of data sets that are not sween's, each by the `name` that
            `certify_dataset` got, in any form that it takes.

    Returns:
        The path of report.md.

    Raises:
        BadInput: no folders, two of one name, or a folder whose rows do not belong together.

    Example:
        >>> import sween
        >>> from sween.report import write_report
        >>> digits = sween.load_dataset("digits")
        >>> smoothed = sween.SmoothedClassifier.load("digits-sween3-gaussian-sigma0.50")
        >>> run = sween.certify_dataset(
        ...     smoothed, digits, out="run", indices=range(3), n=200, quiet=True
        ... )
        >>> str(write_report(["run"], "report"))
        'report/report.md'
    """
    out, folders = Path(out), as_paths("folders", folders)
    if not folders:
        raise BadInput("folders: expected at least one run folder, got none; name some folders")
    if out.exists() and not out.is_dir():
        raise BadInput(str(out), expected="a folder", got="a file", fix="choose another folder")
    sources = read_sources(folders, radii=radii, log_format=log_format)
    runs, attacked = sources.runs, sources.attacked
    if not different_images:
        check_same_images(runs)
    shown = read_datasets(runs, data_root, datasets)
    tables = _tables(sources)
    logs = compare_logs(runs, sources.logs, radii=radii, common_only=different_images)
    log_tables = [log_table(compared) for _, compared in logs]
    files = ReportFiles()
    page = render_page(runs, tables=[*tables, *log_tables], attacked=attacked, datasets=shown)
    files.add_text("report.html", page)
    certified = [certified_table([row for run in runs for row in run.rows])] if runs else []
    for table in [*certified, *tables]:
        files.add_text(f"{table.name}.csv", to_csv(table))
        files.add_text(f"{table.name}.tex", latex(table))
    for name, compared in logs:
        files.add_text(f"{name}.csv", compared.to_csv())
    sections = [
        "# Certified robustness\n",
        *_run_sections(sources, files),
        *map(markdown_section, [*tables, *log_tables]),
        *_noise_sections(runs, shown, files),
        *([markdown_section(settings_table(runs))] if runs else []),
        *filter(None, [meaning_section(runs, tables)]),
    ]
    files.add_text("report.md", "\n".join(sections))
    files.write(out)
    return out / "report.md"


def _tables(sources: Sources) -> list[Table]:
    """The tables other than certified accuracy, where there is data for them."""
    runs, attacked = sources.runs, sources.attacked
    tables = (
        comparison_table(runs),
        early_exit_table(runs),
        attack_table(attacked, runs),
        alarm_table(attacked, runs),
        cost_table(sources.trained),
    )
    return [table for table in tables if table is not None]


def _run_sections(sources: Sources, files: ReportFiles) -> list[str]:
    """A section for each run; adds its figures to the files."""
    if not canvas.has_matplotlib():
        if sources.runs:
            warnings.warn(canvas.LEFT_OUT, UserWarning, stacklevel=3)
        note = [f"{canvas.LEFT_OUT}\n"] if sources.runs else []
        return [*note, *map(run_section, sources.runs)]
    sections = []
    for run in sources.runs:
        curves, more = curve_figures(run), more_figures(run, sources.attacked)
        files.add_figures(curves)
        files.add_figures({f"{kind}-{run.name}": figure for kind, figure in more.items()})
        shown = [curve_lines(run, curves), *(figure_line(kind, run.name) for kind in more)]
        sections.append(run_section(run) + "".join(shown))
    return sections


def _noise_sections(
    runs: Sequence[MeasuredRun], datasets: Mapping[str, Dataset], files: ReportFiles
) -> list[str]:
    """For each available data set, some images under noise; adds the figure to the files."""
    if not canvas.has_matplotlib():
        return []
    groups = dict[int, list[MeasuredRun]]()
    for run in runs:
        if run.name in datasets:
            groups.setdefault(id(datasets[run.name]), []).append(run)
    sections = []
    for own in groups.values():
        dataset = datasets[own[0].name]
        others = {other.name for other in datasets.values() if other is not dataset}
        # Two image folders have one name, and a caller's may suit no file; the run's does.
        is_known = dataset.name in DATASETS and dataset.name not in others
        name = dataset.name if is_known else own[0].name
        files.add_figures({f"noise-{name}": draw_noise(own, dataset)})
        sections.append(f"## What the networks see\n{figure_line('noise', name)}")
    return sections
