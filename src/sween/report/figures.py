"""The radius-accuracy figure, one curve a model, the ensemble in front.

Each curve is exact: it steps at every certified radius.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sween.errors import BadInput, UnknownName
from sween.evaluation import (
    RadiusAccuracyCurve,
    RadiusField,
    average_certified_radius,
    envelope_curve,
    radius_accuracy_curve,
)
from sween.paths import AnyPath, as_paths
from sween.records import Certificate, format_radius
from sween.report import canvas
from sween.report.canvas import (
    COLOURS,
    DASHES,
    ENSEMBLE_COLOUR,
    HEIGHT,
    WIDTH,
    WIDTH_WITH_LEGEND_BESIDE,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ENVELOPE_COLOUR = "#E7EAED"
ENVELOPE_LABEL = "upper envelope of\nthe candidates"


def draw_curves(
    models: Mapping[str, Sequence[Certificate]],
    *,
    title: str = "",
    subtitle: str = "",
    ensemble: str | None = None,
    candidates: Sequence[str] | None = None,
    radius: RadiusField = "radius",
) -> "Figure":
    """The radius-accuracy curves of several models as a matplotlib figure.

    Each curve is exact: it steps at every certified radius, so its area is the ACR in the legend.

    Args:
        models: each model's certificates, with labels.
        title: first line above the plot.
        subtitle: second line, smaller.
        ensemble: the model to draw in front.
        candidates: the models whose envelope is shaded; with an ensemble all others by default,
            without one none.
        radius: which of the certificates' radii.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    shaded = _check_names(models, ensemble, candidates)
    curves = {model: radius_accuracy_curve(rows, radius=radius) for model, rows in models.items()}
    acrs = {model: average_certified_radius(rows, radius=radius) for model, rows in models.items()}
    with canvas.style():
        figure = canvas.new_figure()
        axes = figure.add_subplot()
        if len(shaded) > 1:
            _shade_envelope(axes, envelope_curve([curves[model] for model in shaded]))
        _draw_lines(axes, curves, acrs, ensemble)
        _dress(axes, curves)
        _legend(figure, axes, curves, ensemble)
        canvas.headings(axes, title, subtitle)
    return figure


def write_curves(
    models: Mapping[str, Sequence[Certificate]],
    paths: Sequence[AnyPath],
    *,
    title: str = "",
    subtitle: str = "",
    ensemble: str | None = None,
    candidates: Sequence[str] | None = None,
    radius: RadiusField = "radius",
) -> None:
    """Draw the curves once and write them to each path, .png or .svg, atomically."""
    paths = as_paths("paths", paths)
    canvas.check_paths(paths)
    figure = draw_curves(
        models,
        title=title,
        subtitle=subtitle,
        ensemble=ensemble,
        candidates=candidates,
        radius=radius,
    )
    canvas.save(figure, paths)


def _check_names(
    models: Mapping[str, object], ensemble: str | None, candidates: Sequence[str] | None
) -> list[str]:
    """The models to shade the envelope of."""
    if not models:
        raise BadInput("models", expected="at least one", got="none", fix="pass the rows of a run")
    for name in [*([ensemble] if ensemble is not None else []), *(candidates or [])]:
        if name not in models:
            raise UnknownName("model", name, models)
    if candidates is not None:
        return list(candidates)
    return [model for model in models if ensemble is not None and model != ensemble]


def _shade_envelope(axes: "Axes", curve: RadiusAccuracyCurve) -> None:
    radii, accuracies = curve.corners()
    axes.fill_between(
        radii,
        accuracies,
        step="pre",
        color=ENVELOPE_COLOUR,
        linewidth=0,
        zorder=1,
        label=ENVELOPE_LABEL,
    )


def _draw_lines(
    axes: "Axes",
    curves: Mapping[str, RadiusAccuracyCurve],
    acrs: Mapping[str, float],
    ensemble: str | None,
) -> None:
    """The ensemble first, for the legend, then the others from the largest ACR down."""
    others = [model for model in curves if model != ensemble]
    looks: dict[str, dict[str, Any]] = {
        model: {
            "color": COLOURS[number % len(COLOURS)],
            "dashes": DASHES[number % len(DASHES)],
            "linewidth": 1.35,
            "zorder": 3,
        }
        for number, model in enumerate(others)
    }
    order = sorted(others, key=lambda model: -acrs[model])
    if ensemble is not None:
        looks[ensemble] = {"color": ENSEMBLE_COLOUR, "linewidth": 2.8, "zorder": 4}
        order.insert(0, ensemble)
    for model in order:
        radii, accuracies = curves[model].corners()
        axes.plot(
            radii,
            accuracies,
            drawstyle="steps-pre",
            label=f"{_short(model)}  (ACR {format_radius(acrs[model])})",
            **looks[model],
        )


def _short(name: str, longest: int = 28) -> str:
    """A name that leaves room for the plot; a leading _ would drop it from the legend."""
    visible = name.lstrip("_") or "model"
    return visible if len(visible) <= longest else visible[: longest - 1] + "…"


def _dress(axes: "Axes", curves: Mapping[str, RadiusAccuracyCurve]) -> None:
    from matplotlib.ticker import PercentFormatter

    certified = [curve for curve in curves.values() if curve.radii.size]
    furthest = max((float(curve.radii[-1]) for curve in certified), default=1.0)
    highest = max((float(curve.accuracies[0]) for curve in certified), default=1.0)
    quarters = 0.25 * math.ceil(4 * furthest)
    axes.set_xlim(0, quarters if furthest > 0.5 else 1.05 * furthest or 1.0)
    axes.set_ylim(0, 0.2 * math.ceil(5 * highest))
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))
    axes.set_xlabel("l2 radius, pixels in [0,1]")
    axes.set_ylabel("certified accuracy")
    axes.grid(visible=True, axis="y")
    axes.set_axisbelow(True)
    axes.tick_params(axis="x", length=3, width=0.8, pad=4)
    axes.tick_params(axis="y", length=0, pad=6)


def _legend(
    figure: "Figure",
    axes: "Axes",
    curves: Mapping[str, RadiusAccuracyCurve],
    ensemble: str | None,
) -> None:
    """Lines first, the envelope last; beside the plot where a curve would run through it."""
    handles, labels = axes.get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda place: labels[place] == ENVELOPE_LABEL)
    fits = _leaves_corner_free(axes, curves, labels)
    if not fits:
        figure.set_figwidth(WIDTH_WITH_LEGEND_BESIDE)
    legend = (axes if fits else figure).legend(
        [handles[place] for place in order],
        [labels[place] for place in order],
        loc="upper right" if fits else "outside right upper",
        facecolor="white",
        framealpha=1.0,
        edgecolor="white",
        handlelength=3.0,
        labelspacing=0.6,
    )
    if ensemble is not None:
        legend.get_texts()[0].set_fontweight("bold")


def _leaves_corner_free(
    axes: "Axes", curves: Mapping[str, RadiusAccuracyCurve], labels: Sequence[str]
) -> bool:
    """Whether every curve passes below a legend in the upper right corner, judged in inches."""
    longest = max(len(line) for label in labels for line in label.split("\n"))
    legend_width, legend_height = 0.6 + 0.08 * longest, 0.4 + 0.22 * len(labels)
    left_edge = axes.get_xlim()[1] * max(0.0, 1 - legend_width / (WIDTH - 0.9))
    highest = max(float(curve.at([left_edge])[0]) for curve in curves.values())
    return highest / axes.get_ylim()[1] < 1 - legend_height / (HEIGHT - 1.1)
