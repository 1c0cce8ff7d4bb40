"""The report of one or more runs: a page, report.md, tables in CSV and LaTeX, and figures."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from sween.data import Dataset
from sween.errors import BadInput, refuse_doubles
from sween.evaluation import PairedInterval, RadiusField
from sween.report import grid
from sween.report.adaptive import adaptive_table
from sween.report.attacked import attack_table
from sween.report.beside import LogComparison
from sween.report.beside_text import (
    comparison_notes,
    comparison_rows,
    comparison_section,
    comparison_title,
)
from sween.report.comparison import comparison_table
from sween.report.cost import cost_table
from sween.report.figures import write_curves
from sween.report.illustrate import figures_of, noise_figure, write_figures
from sween.report.logs import beside_logs, images_in_words
from sween.report.measured import MeasuredRun, outwards
from sween.report.page import PageTable, write_page
from sween.report.show import others_made, page_runs
from sween.report.sources import (
    LogFormat,
    Sources,
    check_same_images,
    read_datasets,
    read_sources,
)
from sween.report.tables import plain_number, to_csv, to_latex, to_markdown
from sween.runs import write_text

MEANING = """\
## What the columns mean

- **0.00, 0.25, ...**: certified accuracy in percent at that l2 radius (pixels scaled to [0,1]): the
  share of all images whose certified answer is right with at least that radius. Wrong and
  abstained images stay in the denominator.
- **ACR**: average certified radius over all images, 0 where wrong or abstained; it equals the area
  under the curve. Rounded down, since a radius rounded up was not certified.
- **abstain %**: share of images that the classifier declines to answer.
- **two-class ACR**, **Cohen ACR**: the ACR of the same votes by that bound; - where it cannot be
  had. Each bound's certificates hold on their own, not both at once.
- **AVG**, **UE**: the mean and the largest value of each column over the candidates. UE is no
  model: each of its columns may come from another candidate.
- **Bold**: the best model of a column, where the models differ.

Each certificate holds with probability at least 1 - alpha over its own noise, image by image. The
bootstrap interval speaks of the choice of test images alone, not of training or of the noise.
"""


def write_report(
    folders: Sequence[Path],
    out: Path,
    *,
    radii: Sequence[float] | None = None,
    different_images: bool = False,
    log_format: LogFormat | None = None,
    data_root: Path | None = None,
) -> Path:
    """Write a page, tables, figures and the paired comparison of runs into a folder.

    Everything is read and checked before the first file is written; each file appears whole or not
    at all, report.md last.

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
        MissingExtra: matplotlib is not installed.
    """
    _check(folders, out)
    sources = read_sources(folders, radii=radii, log_format=log_format)
    if not different_images:
        check_same_images(sources.runs)
    datasets = read_datasets(sources.runs, data_root)
    sections = [_section(run) for run in sources.runs]
    tables = _more_tables(sources)
    more = [f"## {title}\n\n{grid.markdown(table)}" for title, table in tables.items()]
    logs = beside_logs(sources, radii=radii, common_only=different_images)
    more += [comparison_section(beside.compared) for beside in logs.values()]
    pictures = {run.name: figures_of(run, sources.attacked) for run in sources.runs}
    for position, run in enumerate(sources.runs):
        for name, bound in _curves(run).items():
            _write_figure(run, out, name, bound)
        sections[position] += "\n" + write_figures(pictures[run.name], run.name, out)
    for own in _by_dataset(sources.runs, datasets):
        dataset = datasets[own[0].name]
        several = any(
            other.name == dataset.name for other in datasets.values() if other is not dataset
        )
        name = own[0].name if several else dataset.name
        lines = write_figures({"noise": noise_figure(own, dataset)}, name, out)
        more.append(f"## What the networks see\n\n{lines}")
    rows = [row for run in sources.runs for row in run.rows]
    shown = [PageTable(title, table) for title, table in tables.items()]
    shown += [_beside_table(beside.compared) for beside in logs.values()]
    write_page(
        out / "report.html",
        page_runs(sources.runs, sources.attacked, datasets),
        tables=shown,
        others=others_made(sources.runs, sources.attacked),
    )
    if rows:
        write_text(out / "table.csv", to_csv(rows))
        write_text(out / "table.tex", to_latex(rows))
        more += [_settings(sources.runs), MEANING]
    for name, beside in logs.items():
        write_text(out / f"{name}.csv", beside.images)
    for table in tables.values():
        write_text(out / f"{table.name}.csv", grid.to_csv(table))
        write_text(out / f"{table.name}.tex", grid.latex(table))
    write_text(out / "report.md", "\n".join(["# Certified robustness\n", *sections, *more]))
    return out / "report.md"


def _more_tables(sources: Sources) -> dict[str, grid.Table]:
    """The other tables that there is something for, by their title."""
    tables = {
        "Ensembles against their best candidates": comparison_table(sources.runs),
        "Network evaluations with and without an early exit": adaptive_table(sources.runs),
        "Certified and empirical accuracy": attack_table(sources.attacked, sources.runs),
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
    names = [folder.resolve().name for folder in folders]
    refuse_doubles("folders", names, fix="rename one: the name labels its figure and its rows")
    if out.exists() and not out.is_dir():
        raise BadInput(str(out), expected="a folder", got="a file", fix="choose another --out")


def _section(run: MeasuredRun) -> str:
    figure, *others = map(quote, _curves(run))
    also = "".join(f" By the other bound: [PNG]({one}.png), [SVG]({one}.svg)." for one in others)
    lines = [
        f"## {run.name}\n",
        f"{run.dataset}, {images_in_words(run.indices)}.\n",
        to_markdown(run.rows),
        f"![Radius-accuracy curves of {run.name}]({figure}.png)\n",
        f"The same figure as [SVG]({figure}.svg).{also}\n",
    ]
    if run.images_asked is not None and run.images_asked != len(run.indices):
        lines.insert(
            2,
            f"**Incomplete: {len(run.indices):,} of the {run.images_asked:,} images asked for.**\n",
        )
    if run.sample.sampling == "decide":
        lines.insert(
            -2,
            f"**Sampled to decide {_decided(run)}: what stands at other radii, and the ACR, is "
            "lower than with fixed sampling.**\n",
        )
    if run.lead is not None and run.ensemble is not None:
        lines.insert(-2, _sentence(run.ensemble, *run.lead) + "\n")
    return "\n".join(lines)


def _sentence(ensemble: str, candidate: str, interval: PairedInterval) -> str:
    """The comparison in words; the interval's ends are rounded outwards."""
    low, high = outwards(interval)
    verdict = "excludes" if interval.excludes_zero else "includes"
    return (
        f"Measured on {images_in_words(interval.indices)}, the ACR of {ensemble} minus that of "
        f"{candidate}, its best candidate by ACR, is {_signed(interval.difference)}, with a "
        f"{100 * interval.confidence:g}% paired bootstrap interval of {_signed(low)} to "
        f"{_signed(high)}, which {verdict} zero."
    )


def _signed(value: float) -> str:
    text = f"{value:+.3f}"
    return "0.000" if float(text) == 0 else text


def _write_figure(run: MeasuredRun, out: Path, name: str, bound: str) -> None:
    sample = run.sample
    fields: dict[str, RadiusField] = {"cohen": "radius_cohen", "two-class": "radius_two_class"}
    shown = f"n = {_range(run, 'n')} · α = {sample.alpha:g} · {len(run.indices):,} images"
    write_curves(
        run.models,
        [out / f"{name}.png", out / f"{name}.svg"],
        title=f"{run.dataset}, σ = {plain_number(sample.sigma)}",
        subtitle=shown if bound == sample.bound else f"{shown} · {bound} bound",
        ensemble=run.ensemble,
        candidates=run.candidates,
        radius="radius" if bound == sample.bound else fields[bound],
    )


def _curves(run: MeasuredRun) -> dict[str, str]:
    """The curves' figures by name, with their bound: the run's own, and the other where known."""
    names = {f"curve-{run.name}": run.sample.bound}
    rows = [row for own in run.models.values() for row in own]
    if all(row.radius_cohen is not None and row.radius_two_class is not None for row in rows):
        other = "two-class" if run.sample.bound == "cohen" else "cohen"
        names[f"curve-{other}-{run.name}"] = other
    return names


def _range(run: MeasuredRun, field: str) -> str:
    values = run.distinct(field)
    first, last = f"{values[0]:,}", f"{values[-1]:,}"
    return first if first == last else f"{first}..{last}"


def _decided(run: MeasuredRun) -> str:
    return "the radii " + ", ".join(run.sample.decisions or ())


def _sampling(run: MeasuredRun) -> str:
    """With what belongs to it."""
    asked = {
        "decide": ", ".join(run.sample.decisions or ()),
        "tolerance": f"{run.config.get('tolerance', '')}",
        "budget": f"{run.config.get('budget', '')}",
    }
    return f"{run.sample.sampling} {asked.get(run.sample.sampling, '')}".strip()


def _settings(runs: Sequence[MeasuredRun]) -> str:
    """One column a run: what was asked for, on which images, by which code and when."""
    described = [_describe(run) for run in runs]
    lines = [
        "## Settings\n",
        "| " + " | ".join(["setting", *(_cell(run.name) for run in runs)]) + " |",
        "| " + " | ".join([":---"] * (len(runs) + 1)) + " |",
    ]
    for name in described[0]:
        lines.append("| " + " | ".join([name, *(_cell(one[name]) for one in described)]) + " |")
    return "\n".join(lines) + "\n"


def _describe(run: MeasuredRun) -> dict[str, str]:
    sample = run.sample
    return {
        "dataset": run.dataset,
        "sigma": plain_number(sample.sigma),
        "n0": f"{sample.n0:,}",
        "n": _range(run, "n"),
        "alpha": f"{sample.alpha:g}",
        "bound": sample.bound,
        "sampling": _sampling(run),
        "noise": sample.noise,
        "votes": sample.votes,
        "precision": sample.precision,
        "seed": ", ".join(str(seed) for seed in run.distinct("seed")),
        "images": images_in_words(run.indices),
        "commit": str(run.environment.get("commit") or "unknown"),
        "date": str(run.environment.get("date") or "unknown"),
    }


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
