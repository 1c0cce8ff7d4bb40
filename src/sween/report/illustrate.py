"""The report's figure files, and the lines of Markdown that show them."""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import quote

import numpy as np

from sween.data.dataset import Dataset
from sween.report import pictures
from sween.report.attacked import AttackedRun, told_by
from sween.report.files import ReportFiles
from sween.report.grid import markdown_text
from sween.report.measured import MeasuredRun
from sween.report.tables import plain_number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = 4
"""Images in the figure of noise."""


def attacks_on(run: MeasuredRun, attacked: Sequence[AttackedRun]) -> list[AttackedRun]:
    """The attacks on a run's models, on images that it certified, as the run has them."""
    if run.fingerprint is None:
        return []
    return [told for attack in attacked if (told := told_by(run, attack)) is not None]


def _on_the_same_images(attacked: Sequence[AttackedRun]) -> list[list[AttackedRun]]:
    """Attacks that can stand in one figure, those on the most images first."""
    groups = dict[tuple[int, ...], list[AttackedRun]]()
    for attack in attacked:
        groups.setdefault(tuple(attack.indices), []).append(attack)
    return sorted(groups.values(), key=lambda group: -len(group[0].indices))


def figures_of(run: MeasuredRun, attacked: Sequence[AttackedRun]) -> dict[str, "Figure"]:
    """The figures that there is something for, by the beginning of their file's name."""
    figures: dict[str, Figure] = {}
    title = f"{run.dataset}, σ = {plain_number(run.sample.sigma)}"
    for number, own in enumerate(_on_the_same_images(attacks_on(run, attacked))):
        models = {str(attack.config["model"]) for attack in own}
        rows = {
            model: [row for row in run.models[model] if row.index in set(own[0].indices)]
            for model in sorted(models, key=lambda model: (model != run.ensemble, model))
        }
        own.sort(key=lambda attack: list(rows).index(str(attack.config["model"])))
        heading = title if len(rows) > 1 else f"{next(iter(rows))} on {title}"
        file = f"attacked-{number + 1}" if number else "attacked"
        figures[file] = pictures.draw_attacked(rows, own, title=heading)
    members, weights = run.config.get("candidates"), run.config.get("weights")
    if isinstance(members, list) and isinstance(weights, list) and len(members) > 1:
        name = str(run.config.get("model", "ensemble"))
        others = run.config.get("weightings", {})
        figures["weights"] = pictures.draw_weights({name: weights, **others}, members, title=title)
    exits = {model: rows for model, rows in run.models.items() if run.kinds[model] != "candidate"}
    if any(rows[0].exit != "none" for rows in exits.values()):
        figures["evaluations"] = pictures.draw_evaluations(exits, title=title)
    return figures


def noise_figure(runs: Sequence[MeasuredRun], dataset: Dataset) -> "Figure":
    """Some of the certified images as the networks see them, at each run's noise level."""
    indices = runs[0].indices
    chosen = indices[:: max(1, len(indices) // SHOWN)][:SHOWN]
    images = dataset.test.images(chosen).permute(0, 2, 3, 1).numpy().astype(np.float64)
    labels = [dataset.class_names[int(dataset.test.labels[index])] for index in chosen]
    return pictures.draw_noisy(images, [run.sample.sigma for run in runs], labels=labels)


def add_figures(figures: Mapping[str, "Figure"], name: str, files: ReportFiles) -> str:
    """Add figures to a report; the lines of Markdown that show them."""
    lines = []
    for kind, figure in figures.items():
        file = f"{kind}-{name}"
        files.add_figure(file, figure)
        what = _DESCRIBED[kind.partition("-")[0]]
        lines.append(f"![{what} of {markdown_text(name)}]({quote(os.fsencode(file))}.png)\n")
    return "\n".join(lines)


_DESCRIBED = {
    "attacked": "Certified accuracy and accuracy under attack",
    "weights": "Weights of the candidates",
    "evaluations": "Network evaluations image by image",
    "noise": "Test images under noise",
}
