"""Radius-accuracy curves: their data, for the figures and the page, and the figures.

Each curve is exact: it steps at every certified radius, so the area under it is the ACR.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sween.errors import UnknownName
from sween.evaluation import (
    RadiusAccuracyCurve,
    RadiusField,
    average_certified_radius,
    envelope_curve,
    radius_accuracy_curve,
)
from sween.records import Certificate, format_radius
from sween.report import canvas
from sween.report.attacked import AttackedRun, attack_labels, attack_points
from sween.report.canvas import COLOURS, DASHES, ENSEMBLE_COLOUR, HEIGHT, WIDTH
from sween.report.measured import MeasuredRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ENVELOPE_COLOUR = "#E7EAED"
ENVELOPE_LABEL = "upper envelope of\nthe candidates"
MARKERS = ("o", "s", "^", "D", "v")

BOUNDS: dict[str, RadiusField] = {"cohen": "radius_cohen", "two-class": "radius_two_class"}


@dataclasses.dataclass(frozen=True)
class Curve:
    """One model's certified accuracy over the radius, and its ACR."""

    steps: RadiusAccuracyCurve
    acr: float
    images: int

    @property
    def radii(self) -> list[float]:
        """The certified radius of every correctly classified image, ascending."""
        reaching = np.rint(self.images * self.steps.accuracies).astype(int)
        own: list[float] = np.repeat(self.steps.radii, -np.diff(reaching, append=0)).tolist()
        return own


def model_curve(certificates: Sequence[Certificate], radius: RadiusField = "radius") -> Curve:
    """The curve of one model, by one of its certificates' radii."""
    return Curve(
        radius_accuracy_curve(certificates, radius=radius),
        average_certified_radius(certificates, radius=radius),
        len(certificates),
    )


def radius_field(run: MeasuredRun, bound: str) -> RadiusField:
    """The certificates' radius under a bound."""
    # `radius` is there in every row; the same bound by name may be null for some sampling.
    return "radius" if run.sample.bound == bound else BOUNDS[bound]


def known_bounds(run: MeasuredRun) -> list[str]:
    """The bounds that every certificate of a run has a radius under, the run's own first."""
    rows = [row for own in run.models.values() for row in own]
    bounds = sorted(BOUNDS, key=lambda bound: bound != run.sample.bound)
    return [
        bound
        for bound in bounds
        if all(getattr(row, radius_field(run, bound)) is not None for row in rows)
    ]


def series_numbers(models: Iterable[str], ensemble: str | None) -> dict[str, int]:
    """A number for each model but the ensemble, which picks its colour and dashes."""
    others = [model for model in models if model != ensemble]
    return {model: number for number, model in enumerate(others)}


def drawing_order(curves: Mapping[str, Curve], ensemble: str | None) -> list[str]:
    """The ensemble first, for the legend, then the others from the largest ACR down."""
    return sorted(curves, key=lambda model: (model != ensemble, -curves[model].acr))


def draw_curves(
    models: Mapping[str, Sequence[Certificate]],
    *,
    title: str = "",
    subtitle: str = "",
    ensemble: str | None = None,
    candidates: Sequence[str] = (),
    radius: RadiusField = "radius",
) -> "Figure":
    """The radius-accuracy curves of several models as a matplotlib figure.

    Args:
        models: each model's certificates, with labels.
        title: first line above the plot.
        subtitle: second line, smaller.
        ensemble: the model to draw in front.
        candidates: the models whose envelope is shaded.
        radius: which of the certificates' radii.

    Raises:
        MissingExtra: matplotlib is not installed.

    Example:
        >>> import sween
        >>> from sween.report import draw_curves
        >>> digits = sween.load_dataset("digits")
        >>> smoothed = sween.SmoothedClassifier.load("digits-sween3-gaussian-sigma0.50")
        >>> run = sween.certify_dataset(
        ...     smoothed, digits, out="run", indices=range(3), n=200, quiet=True
        ... )
        >>> figure = draw_curves({"SWEEN-3": run.certificates}, title="Digits")
        >>> figure.savefig("curves.png")
    """
    panel = Panel(models, ensemble=ensemble, candidates=candidates)
    with canvas.style():
        figure = canvas.new_figure()
        axes = figure.add_subplot()
        curves = _draw_panel(axes, panel, radius)
        _add_legend(figure, axes, curves, ensemble)
        canvas.headings(axes, title, subtitle)
    return figure


@dataclasses.dataclass(frozen=True)
class Panel:
    """One of several plots next to each other; see `draw_curves`."""

    models: Mapping[str, Sequence[Certificate]]
    title: str = ""
    subtitle: str = ""
    ensemble: str | None = None
    candidates: Sequence[str] = ()


def draw_panels(panels: Sequence[Panel]) -> "Figure":
    """Radius-accuracy curves next to each other, with the same scale of accuracy."""
    with canvas.style():
        figure = canvas.new_figure(5.2 * len(panels), canvas.HEIGHT)
        every = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axes, panel in zip(every, panels, strict=True):
            _draw_panel(axes, panel, "radius")
            _put_legend(axes, axes, panel.ensemble, loc="upper right", fontsize=8.5)
            canvas.headings(axes, panel.title, panel.subtitle)
        for axes in every[1:]:
            axes.set_ylabel("")
    return figure


def _draw_panel(axes: "Axes", panel: Panel, radius: RadiusField) -> dict[str, Curve]:
    models, ensemble = panel.models, panel.ensemble
    for name in [*panel.candidates, *([] if ensemble is None else [ensemble])]:
        if name not in models:
            raise UnknownName("model", name, models)
    curves = {model: model_curve(rows, radius) for model, rows in models.items()}
    if len(panel.candidates) > 1:
        highest = envelope_curve([curves[model].steps for model in panel.candidates])
        radii, accuracies = highest.corners()
        look: dict[str, Any] = {"color": ENVELOPE_COLOUR, "linewidth": 0, "zorder": 1}
        axes.fill_between(radii, accuracies, step="pre", label=ENVELOPE_LABEL, **look)
    looks = _looks(models, ensemble)
    for model in drawing_order(curves, ensemble):
        label = f"{_short(model)}  (ACR {format_radius(curves[model].acr)})"
        _plot(axes, curves[model], label, looks[model])
    _label_axes(axes, curves.values(), "certified accuracy")
    return curves


def draw_attacked(
    certificates: Mapping[str, Sequence[Certificate]],
    attacked: Sequence[AttackedRun],
    *,
    title: str = "",
) -> "Figure":
    """Certified accuracy as curves, and accuracy under attack as points above them.

    All are on the same images; the first model is drawn as the ensemble.
    """
    curves = {model: model_curve(rows) for model, rows in certificates.items()}
    looks = _looks(certificates, next(iter(certificates)))
    labels = attack_labels(attacked)
    kinds = sorted(set(labels))
    with canvas.style():
        figure = canvas.new_figure()
        axes = figure.add_subplot()
        for model, curve in curves.items():
            # Solid is what was certified, dashed what an attack left.
            _plot(axes, curve, f"{model}, certified", {**looks[model], "dashes": (1, 0)})
        for run, label in zip(attacked, labels, strict=True):
            points = attack_points(run, [])
            axes.plot(
                [point.radius for point in points],
                [point.robust.value for point in points],
                color=looks[run.model]["color"],
                marker=MARKERS[kinds.index(label) % len(MARKERS)],
                linewidth=1.2,
                dashes=DASHES[1:][kinds.index(label) % (len(DASHES) - 1)],
                clip_on=False,  # the first points lie on the axis
                zorder=5,
                label=f"{run.model}, under {label}",
            )
        furthest = max(run.radii[-1] for run in attacked)
        _label_axes(axes, curves.values(), "accuracy", furthest, 1.0)
        axes.legend(frameon=False, ncols=2 if len(certificates) > 1 else 1)
        images = f"{len(attacked[0].indices):,} images"
        canvas.headings(
            axes, title, f"certified: lower bound · under attack: upper bound · {images}"
        )
    return figure


def _looks(models: Mapping[str, object], ensemble: str | None) -> dict[str, dict[str, Any]]:
    looks: dict[str, dict[str, Any]] = {
        model: {
            "color": COLOURS[number % len(COLOURS)],
            "dashes": DASHES[number % len(DASHES)],
            "linewidth": 1.35,
            "zorder": 3,
        }
        for model, number in series_numbers(models, ensemble).items()
    }
    if ensemble is not None:
        looks[ensemble] = {"color": ENSEMBLE_COLOUR, "linewidth": 2.8, "zorder": 4}
    return looks


def _plot(axes: "Axes", curve: Curve, label: str, look: Mapping[str, Any]) -> None:
    radii, accuracies = curve.steps.corners()
    axes.plot(radii, accuracies, drawstyle="steps-pre", label=label, **look)


def _short(name: str, longest: int = 28) -> str:
    """A name that leaves room for the plot; a leading _ would drop it from the legend."""
    visible = name.lstrip("_") or "model"
    return visible if len(visible) <= longest else visible[: longest - 1] + "…"


def _label_axes(
    axes: "Axes", curves: Iterable[Curve], name: str, furthest: float = 0.0, highest: float = 0.0
) -> None:
    """Limits that include all curves, and at least that radius and accuracy; labels; grid."""
    from matplotlib.ticker import PercentFormatter

    steps = [curve.steps for curve in curves if curve.steps.radii.size]
    furthest = max([furthest, *(float(one.radii[-1]) for one in steps)])
    highest = max([highest, *(float(one.accuracies[0]) for one in steps)])
    quarters = 0.25 * math.ceil(4 * furthest)
    axes.set_xlim(0, quarters if furthest > 0.5 else 1.05 * furthest or 1.0)
    axes.set_ylim(0, 0.2 * math.ceil(5 * highest) or 1.0)
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))
    axes.set_xlabel("l2 radius, pixels in [0,1]")
    axes.set_ylabel(name)
    axes.grid(visible=True, axis="y")
    axes.set_axisbelow(True)
    axes.tick_params(axis="x", length=3, width=0.8, pad=4)
    axes.tick_params(axis="y", length=0, pad=6)


def _add_legend(
    figure: "Figure", axes: "Axes", curves: Mapping[str, Curve], ensemble: str | None
) -> None:
    """Beside the plot where a curve would run through it."""
    fits = _leaves_corner_free(axes, curves, axes.get_legend_handles_labels()[1])
    if fits:
        _put_legend(axes, axes, ensemble, loc="upper right")
    else:
        figure.set_figwidth(canvas.WIDTH_WITH_LEGEND_BESIDE)
        _put_legend(figure, axes, ensemble, loc="outside right upper")


def _put_legend(place: "Figure | Axes", axes: "Axes", ensemble: str | None, **options: Any) -> None:
    """Lines first, the envelope last."""
    handles, labels = axes.get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda place: labels[place] == ENVELOPE_LABEL)
    legend = place.legend(
        [handles[number] for number in order],
        [labels[number] for number in order],
        facecolor="white",
        framealpha=1.0,
        edgecolor="white",
        handlelength=3.0,
        labelspacing=0.6,
        **options,
    )
    if ensemble is not None:
        legend.get_texts()[0].set_fontweight("bold")


def _leaves_corner_free(axes: "Axes", curves: Mapping[str, Curve], labels: Sequence[str]) -> bool:
    """Whether every curve passes below a legend in the upper right corner, judged in inches."""
    longest = max(len(line) for label in labels for line in label.split("\n"))
    legend_width, legend_height = 0.6 + 0.08 * longest, 0.4 + 0.22 * len(labels)
    left_edge = axes.get_xlim()[1] * max(0.0, 1 - legend_width / (WIDTH - 0.9))
    highest = max(float(curve.steps.at([left_edge])[0]) for curve in curves.values())
    return highest / axes.get_ylim()[1] < 1 - legend_height / (HEIGHT - 1.1)
