"""Which figures a report has, and how those other than accuracy curves are drawn."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from sween.data.dataset import Dataset
from sween.records import Certificate
from sween.report import canvas
from sween.report.attacked import AttackedRun, attacks_on
from sween.report.curves import draw_attacked, draw_curves, known_bounds, radius_field
from sween.report.measured import MeasuredRun
from sween.report.run_tables import votes_in_words
from sween.report.tables import plain_number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EXAMPLES = 4
"""Images in the figure of noise."""


def curve_figures(run: MeasuredRun) -> dict[str, "Figure"]:
    """The radius-accuracy curves under the run's bound and, where known, the other, by file."""
    own, figures = run.sample.bound, {}
    for bound in known_bounds(run):
        n, images = votes_in_words(run), f"{len(run.indices):,} images"
        shown = [f"n = {n}", f"α = {run.sample.alpha:g}", images]
        figures[f"curve-{run.name}" if bound == own else f"curve-{bound}-{run.name}"] = draw_curves(
            run.models,
            title=_title(run),
            subtitle=" · ".join(shown if bound == own else [*shown, f"{bound} bound"]),
            ensemble=run.ensemble,
            candidates=run.candidates,
            radius=radius_field(run, bound),
        )
    return figures


def more_figures(run: MeasuredRun, attacked: Sequence[AttackedRun]) -> dict[str, "Figure"]:
    """The other figures, where there is data for them, by the beginning of their file name."""
    figures: dict[str, Figure] = {}
    title = _title(run)
    for number, own in enumerate(_on_the_same_images(attacks_on(run, attacked)), start=1):
        wanted = set(own[0].indices)
        rows = {
            model: [row for row in run.models[model] if row.index in wanted]
            for model in sorted(
                {attack.model for attack in own}, key=lambda name: (name != run.ensemble, name)
            )
        }
        own.sort(key=lambda attack: list(rows).index(attack.model))
        heading = title if len(rows) > 1 else f"{next(iter(rows))} on {title}"
        name = f"attacked-{number}" if number > 1 else "attacked"
        figures[name] = draw_attacked(rows, own, title=heading)
    members = run.config.candidates
    if len(members) > 1:
        figures["weights"] = draw_weights(run.config.weightings, members, title=title)
    exits = {model: rows for model, rows in run.models.items() if run.kinds[model] != "candidate"}
    if any(rows[0].exit != "none" for rows in exits.values()):
        figures["evaluations"] = draw_evaluations(exits, title=title)
    return figures


def _title(run: MeasuredRun) -> str:
    return f"{run.dataset}, σ = {plain_number(run.sample.sigma)}"


def _on_the_same_images(attacked: Sequence[AttackedRun]) -> list[list[AttackedRun]]:
    """Attacks that belong in one figure, those on the most images first."""
    groups = dict[tuple[int, ...], list[AttackedRun]]()
    for attack in attacked:
        groups.setdefault(tuple(attack.indices), []).append(attack)
    return sorted(groups.values(), key=lambda group: -len(group[0].indices))


def draw_weights(
    weightings: Mapping[str, Sequence[float]], members: Sequence[str], *, title: str = ""
) -> "Figure":
    """The weights of the members, a bar each, grouped by weighting."""
    with canvas.style():
        figure = canvas.new_figure(height=1.5 + 0.28 * len(members) * len(weightings))
        axes = figure.add_subplot()
        height = 0.8 / len(weightings)
        for number, (name, weights) in enumerate(weightings.items()):
            places = np.arange(len(members)) + (number - (len(weightings) - 1) / 2) * height
            colour = canvas.COLOURS[number % len(canvas.COLOURS)]
            bars = axes.barh(places, weights, height=0.9 * height, color=colour, label=name)
            axes.bar_label(bars, [f"{weight:.3f}" for weight in weights], padding=4)
        axes.set_yticks(np.arange(len(members)), members)
        axes.invert_yaxis()
        axes.set_xlim(0, 1.12 * max(max(weights) for weights in weightings.values()))
        axes.set_xlabel("weight")
        axes.tick_params(axis="y", length=0)
        if len(weightings) > 1:
            figure.legend(frameon=False, loc="outside lower center", ncols=len(weightings))
        canvas.headings(axes, title)
    return figure


def draw_evaluations(models: Mapping[str, Sequence[Certificate]], *, title: str = "") -> "Figure":
    """How many networks a noisy image needs, image by image, for each exit."""
    with canvas.style():
        figure = canvas.new_figure()
        axes = figure.add_subplot()
        for number, (model, rows) in enumerate(models.items()):
            needed = np.sort([row.member_evaluations / row.samples for row in rows])
            axes.plot(
                np.linspace(0, 100, len(needed)),
                needed,
                drawstyle="steps-mid",
                color=canvas.COLOURS[number % len(canvas.COLOURS)],
                dashes=canvas.DASHES[number % len(canvas.DASHES)],
                label=f"{model}  (mean {needed.mean():.2f})",
            )
        axes.set_xlim(0, 100)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("percentile of the images, from easiest to hardest")
        axes.set_ylabel("networks evaluated per noisy image")
        axes.grid(visible=True, axis="y")
        axes.legend(frameon=False)
        canvas.headings(axes, title)
    return figure


def draw_noise(runs: Sequence[MeasuredRun], dataset: Dataset) -> "Figure":
    """Some of the certified images as the networks see them: clean and at each run's sigma."""
    indices = runs[0].indices
    chosen = indices[:: max(1, len(indices) // EXAMPLES)][:EXAMPLES]
    images = dataset.test.images(chosen).permute(0, 2, 3, 1).numpy().astype(np.float64)
    levels = [0.0, *sorted({run.sample.sigma for run in runs} - {0.0})]
    generator = np.random.default_rng(0)
    with canvas.style():
        figure = canvas.new_figure(1.15 * len(levels) + 0.9, 1.15 * len(images) + 0.5)
        panes = figure.subplots(len(images), len(levels), squeeze=False)
        for row, image in zip(panes, images, strict=True):
            for axes, sigma in zip(row, levels, strict=True):
                noisy = np.clip(image + sigma * generator.standard_normal(image.shape), 0, 1)
                shown = noisy[..., 0] if image.shape[-1] == 1 else noisy
                axes.imshow(shown, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
                axes.set_xticks([])
                axes.set_yticks([])
                for side in axes.spines.values():
                    side.set_visible(False)
        for axes, sigma in zip(panes[0], levels, strict=True):
            axes.set_title(f"σ = {plain_number(sigma)}" if sigma else "no noise", fontsize=9)
        for axes, index in zip(panes[:, 0], chosen, strict=True):
            axes.set_ylabel(dataset.class_names[int(dataset.test.labels[index])], fontsize=9)
    return figure
