"""Figures beside the curves: attacks, weights, evaluations, and the noise itself."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from sween.attack import empirical_accuracy
from sween.errors import BadInput
from sween.evaluation import radius_accuracy_curve
from sween.records import Certificate
from sween.report import canvas
from sween.report.attacked import AttackedRun, names_of
from sween.report.tables import plain_number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARKERS = ("o", "s", "^", "D", "v")


def draw_attacked(
    certificates: Mapping[str, Sequence[Certificate]],
    attacked: Sequence[AttackedRun],
    *,
    title: str = "",
) -> "Figure":
    """Certified accuracy as curves, and what attacks left of accuracy as points above them.

    Args:
        certificates: of each attacked model; the first is drawn as the ensemble.
        attacked: attacks on these models and on the images of all certificates.
        title: above the plot.
    """
    canvas.require_matplotlib()
    from matplotlib.ticker import PercentFormatter

    others = canvas.COLOURS * len(certificates)
    colours = dict(zip(certificates, (canvas.ENSEMBLE_COLOUR, *others), strict=False))
    names = names_of(attacked)
    kinds = sorted(set(names))
    furthest = max(run.radii[-1] for run in attacked)
    with canvas.style():
        figure = canvas.new_figure()
        axes = figure.add_subplot()
        for number, (model, rows) in enumerate(certificates.items()):
            radii, accuracies = radius_accuracy_curve(rows).corners()
            furthest = max([furthest, *radii])
            axes.plot(
                radii,
                accuracies,
                drawstyle="steps-pre",
                color=colours[model],
                linewidth=1.2 if number else 2.4,
                label=f"{model}, certified",
            )
        for run, kind in zip(attacked, names, strict=True):
            model = str(run.config["model"])
            axes.plot(
                run.radii,
                [empirical_accuracy(run.at(radius)) for radius in run.radii],
                color=colours[model],
                marker=MARKERS[kinds.index(kind) % len(MARKERS)],
                linewidth=1.2,
                # Never solid, which is what was certified.
                dashes=canvas.DASHES[1:][kinds.index(kind) % (len(canvas.DASHES) - 1)],
                clip_on=False,  # the first points lie on the axis
                zorder=3,
                label=f"{model}, under {kind}",
            )
        axes.set_xlim(0, 1.03 * furthest)
        axes.set_ylim(0, 1)
        axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))
        axes.set_xlabel("l2 radius, pixels in [0,1]")
        axes.set_ylabel("accuracy")
        axes.grid(visible=True, axis="y")
        axes.legend(frameon=False, ncols=2 if len(certificates) > 1 else 1)
        images = f"{len(attacked[0].indices):,} images"
        canvas.headings(axes, title, f"proven from below, attacked from above, {images}")
    return figure


def draw_weights(
    weightings: Mapping[str, Sequence[float]], members: Sequence[str], *, title: str = ""
) -> "Figure":
    """The weights of the members, a bar each, one group for every weighting."""
    with canvas.style():
        figure = canvas.new_figure(height=1.5 + 0.28 * len(members) * len(weightings))
        axes = figure.add_subplot()
        height = 0.8 / len(weightings)
        for number, (name, weights) in enumerate(weightings.items()):
            places = np.arange(len(members)) + (number - (len(weightings) - 1) / 2) * height
            bars = axes.barh(
                places,
                weights,
                height=0.9 * height,
                color=canvas.COLOURS[number % len(canvas.COLOURS)],
                label=name,
            )
            axes.bar_label(bars, [f"{weight:.3f}" for weight in weights], padding=4)
        axes.set_yticks(np.arange(len(members)), members)
        axes.invert_yaxis()
        axes.set_xlim(0, 1.12 * max(max(weights) for weights in weightings.values()))
        axes.set_xlabel("weight")
        axes.tick_params(axis="y", length=0)
        if len(weightings) > 1:
            figure.legend(frameon=False, loc="outside lower center", ncols=len(weightings))
        canvas.headings(axes, title, "")
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
        axes.set_xlabel("share of the images, from the easiest to the hardest, in percent")
        axes.set_ylabel("networks evaluated for a noisy image")
        axes.grid(visible=True, axis="y")
        axes.legend(frameon=False)
        canvas.headings(axes, title, "")
    return figure


def draw_noisy(
    images: np.ndarray, sigmas: Sequence[float], *, labels: Sequence[str] = (), seed: int = 0
) -> "Figure":
    """What the networks see: images (N, H, W, C) in [0, 1], without noise and at each sigma."""
    if images.ndim != 4 or images.shape[-1] not in (1, 3):
        raise BadInput(
            "images",
            expected="(N, H, W, C) with 1 or 3 channels",
            got=images.shape,
            fix="pass them in that order",
        )
    levels = [0.0, *(sigma for sigma in sorted(set(sigmas)) if sigma > 0)]
    generator = np.random.default_rng(seed)
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
        for axes, label in zip(panes[:, 0], labels, strict=False):
            axes.set_ylabel(label, fontsize=9)
    return figure
