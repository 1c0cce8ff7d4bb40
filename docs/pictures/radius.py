"""Draws radius.png: from a bound on p to the radius, and what n votes certify.

python docs/pictures/radius.py
"""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from shades import HERE, Shades, save_both, title

from sween.bounds.radius import radius_of_miss
from sween.report import canvas
from sween.theory import expected_radius

ALPHA = 0.001
PROBABILITIES = (0.6, 0.8, 0.9, 0.99, 0.999, 0.9999)
VOTES = np.unique(np.logspace(1, 6, 120).astype(int))


def draw(shades: Shades) -> Figure:
    figure = canvas.new_figure(10.4, 4.0)
    left, right = figure.subplots(1, 2)
    _draw_bound(left, shades)
    _draw_votes(right, shades)
    for axes in (left, right):
        axes.set_ylabel("radius in units of sigma")
        axes.grid(visible=True, axis="y")
    return figure


def _draw_bound(axes: Axes, shades: Shades) -> None:
    """Cohen's radius of a lower bound."""
    p = np.append(np.linspace(0.4, 0.99, 400), 1 - np.logspace(-2, -4, 200))
    axes.axvspan(0.4, 0.5, color=shades.fill, linewidth=0)
    axes.text(0.45, 2.2, "abstains", rotation=90, ha="center", va="center", color=shades.muted)
    axes.plot(p, radius_of_miss(1 - p, 1.0), color=shades.accent, linewidth=2.4)
    for known in (0.6, 0.8, 0.9, 0.99):
        value = float(radius_of_miss(1 - known, 1.0))
        axes.plot(known, value, "o", color=shades.accent, markersize=5)
        axes.annotate(f"p > {known}: {value:.2f}", (known, value), xytext=(-8, 4),
                      textcoords="offset points", ha="right")  # fmt: skip
    axes.set_xlim(0.4, 1.002)
    axes.set_ylim(0, 4)
    axes.set_xlabel("lower bound on the probability p of the top class")
    title(axes, "From the bound to the radius")


def _draw_votes(axes: Axes, shades: Shades) -> None:
    """The mean radius of n votes, for classes of known probability."""
    ceiling = [_expected(1.0, n) for n in VOTES]
    axes.plot(VOTES, ceiling, color=shades.muted, linestyle=(0, (4, 2)), linewidth=1.4)
    axes.annotate("all votes agree", (VOTES[60], ceiling[60]), xytext=(-6, 6),
                  textcoords="offset points", ha="right", color=shades.muted)  # fmt: skip
    for number, p in enumerate(PROBABILITIES):
        radii = [_expected(p, n) for n in VOTES]
        axes.plot(VOTES, radii, color=shades.series[number % len(shades.series)], linewidth=1.8)
        axes.annotate(f"p = {p}", (VOTES[-1], radii[-1]), xytext=(5, 0),
                      textcoords="offset points", va="center")  # fmt: skip
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda n, _: f"{n:,.0f}")
    axes.set_xlim(10, 1e6)
    axes.set_ylim(0, 4.5)
    axes.set_xlabel(f"votes n (alpha = {ALPHA})")
    title(axes, "What n votes certify on average")


def _expected(p: float, n: int) -> float:
    return expected_radius(p, int(n), alpha=ALPHA, sigma=1.0).cohen.expected


def main(folder: Path = HERE) -> None:
    save_both(draw, "radius", folder)


if __name__ == "__main__":
    main()
