"""Certified accuracy against the radius, drawn into the axes of a picture."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter
from shades import Shades

from sween.evaluation import envelope_curve
from sween.records import Certificate, format_radius
from sween.report import MeasuredRun
from sween.report.canvas import DASHES
from sween.report.curves import model_curve


def draw_run(axes: Axes, run: MeasuredRun, shades: Shades) -> None:
    """A run's ensemble, its candidates and their envelope."""
    assert run.ensemble is not None
    steps = [model_curve(run.models[name]).steps for name in run.candidates]
    radii, accuracies = envelope_curve(steps).corners()
    axes.fill_between(radii, accuracies, step="pre", color=shades.fill, linewidth=0,
                      label="envelope of the candidates")  # fmt: skip
    draw_models(axes, {run.ensemble: run.models[run.ensemble]}, shades, [shades.accent], 2.6)
    candidates = {name: run.models[name] for name in run.candidates}
    draw_models(axes, candidates, shades, shades.series, 1.4)


def draw_models(
    axes: Axes,
    models: Mapping[str, Sequence[Certificate]],
    shades: Shades,
    colours: Sequence[str],
    width: float,
) -> None:
    """One curve per model, which the legend names with its ACR."""
    for number, (name, rows) in enumerate(models.items()):
        curve = model_curve(rows)
        axes.plot(
            *curve.steps.corners(),
            drawstyle="steps-pre",
            color=colours[number % len(colours)],
            dashes=DASHES[number % len(DASHES)],
            linewidth=width,
            label=f"{name} (ACR {format_radius(curve.acr)})",
        )
    axes.set_xlim(left=0)
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))
    axes.set_xlabel("l2 radius, pixels in [0,1]")
    axes.set_ylabel("certified accuracy")
    axes.grid(visible=True, axis="y")
    axes.legend(frameon=False, fontsize=9.5)
