"""Draws docs/pictures/idea.png from the demo's certificates: python docs/pictures/idea.py

Noisy copies of one digit, the votes of the ensemble on ten thousand of them, and what they prove.
"""

import sys
from pathlib import Path

import matplotlib
import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch

from sween.data import load_dataset
from sween.records import ABSTAIN, Certificate, format_radius, read_certificates
from sween.seeding import noisy_copies

HERE = Path(__file__).parent
RESULTS = HERE.parents[1] / "results" / "digits-demo"
INK, MUTED, ACCENT, PALE = "#1f2933", "#616e7c", "#b42318", "#d9dfe4"


def _pick(certificates: list[Certificate]) -> Certificate:
    """A certified, correct digit of about median radius whose votes are not unanimous."""
    good = [row for row in certificates if row.model.startswith("SWEEN") and row.correct]
    good.sort(key=lambda row: row.radius)
    return good[int(0.7 * len(good))]


def draw(row: Certificate) -> Figure:
    image = load_dataset("digits").test.images([row.index])[0]
    noisy = noisy_copies(
        image, sigma=row.sigma, seed=row.seed, purpose="estimation", example=row.index, block=0
    )
    figure = Figure(figsize=(11, 3.7), dpi=160, facecolor="white")
    _draw_images(figure, image, noisy)
    _draw_votes(figure, row)
    _draw_ball(figure, row)
    for x in (0.355, 0.69):
        arrow = FancyArrowPatch(
            (x, 0.47), (x + 0.035, 0.47), arrowstyle="-|>", mutation_scale=18, color=MUTED
        )
        figure.add_artist(arrow)
    return figure


def _title(figure: Figure, x: float, number: str, text: str) -> None:
    figure.text(x, 0.93, number, color=ACCENT, fontsize=13, weight="bold")
    figure.text(x + 0.02, 0.93, text, color=INK, fontsize=12, weight="bold")


def _draw_images(figure: Figure, image: torch.Tensor, noisy: torch.Tensor) -> None:
    _title(figure, 0.02, "1", "noisy copies of the image")
    clean = figure.add_axes((0.02, 0.27, 0.15, 0.45))
    clean.imshow(image[0].numpy(), cmap="gray_r", vmin=0, vmax=1)
    clean.set_title("x", color=INK, fontsize=11)
    for position in range(6):
        column, line = position % 2, position // 2
        axes = figure.add_axes((0.19 + 0.08 * column, 0.60 - 0.245 * line, 0.072, 0.215))
        axes.imshow(noisy[position, 0].numpy(), cmap="gray_r", vmin=-0.7, vmax=1.7)
        axes.set_axis_off()
    clean.set_axis_off()
    figure.text(0.19, 0.04, "x + noise, ten thousand times", color=MUTED, fontsize=9)


def _draw_votes(figure: Figure, row: Certificate) -> None:
    _title(figure, 0.42, "2", "the weighted ensemble votes")
    axes = figure.add_axes((0.42, 0.19, 0.25, 0.62))
    counts = np.asarray(row.estimation_counts)
    colours = [ACCENT if k == row.prediction else "#9aa5b1" for k in range(len(counts))]
    axes.bar(range(len(counts)), counts, color=colours, width=0.75)
    axes.set_xticks(range(len(counts)))
    axes.set_yticks([])
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(colors=MUTED, length=0)
    winner = row.prediction
    axes.text(
        winner + 0.5 if winner < 6 else winner - 0.5,
        0.9 * counts[winner],
        f"{counts[winner]:,} of {row.n:,}",
        ha="left" if winner < 6 else "right",
        color=ACCENT,
        fontsize=11,
        weight="bold",
    )
    p = np.floor(row.lower_bound * 1000) / 1000
    text = f"so with {100 * (1 - row.alpha):g}% confidence  p > {p:.3f}"
    figure.text(0.42, 0.04, text, color=MUTED, fontsize=9)


def _draw_ball(figure: Figure, row: Certificate) -> None:
    _title(figure, 0.745, "3", "a proof")
    axes = figure.add_axes((0.745, 0.15, 0.24, 0.7))
    axes.set_xlim(-1.25, 1.25)
    axes.set_ylim(-1.1, 1.1)
    axes.set_aspect("equal")
    axes.set_axis_off()
    boundary = np.linspace(-1.1, 1.1, 50)
    axes.plot(1.06 + 0.09 * np.sin(3 * boundary), boundary, color=MUTED, linewidth=1.5)
    axes.fill_betweenx(boundary, 1.06 + 0.09 * np.sin(3 * boundary), 1.25, color=PALE)
    axes.add_patch(Circle((0, 0), 0.9, facecolor="#fbe9e7", edgecolor=ACCENT, linewidth=2))
    axes.plot(0, 0, "o", color=INK)
    axes.text(-0.08, -0.16, "x", ha="right", color=INK, fontsize=12)
    axes.annotate("", (0.64, 0.63), (0, 0), arrowprops={"arrowstyle": "-|>", "color": ACCENT})
    axes.text(
        -0.14,
        0.42,
        f"R = {format_radius(row.radius)}",
        color=ACCENT,
        fontsize=13,
        weight="bold",
        ha="center",
    )
    axes.text(
        0,
        -0.52,
        f"every image here\nis classified {row.prediction}",
        ha="center",
        color=INK,
        fontsize=10,
    )
    figure.text(0.745, 0.04, "no l2 change below R changes the label", color=MUTED, fontsize=9)


def main() -> int:
    matplotlib.rcParams["font.family"] = "DejaVu Sans"
    row = _pick(read_certificates(RESULTS))
    assert row.prediction != ABSTAIN
    draw(row).savefig(HERE / "idea.png", metadata={"Software": None})
    sys.stdout.write(f"digit {row.index}, a {row.label}: radius {format_radius(row.radius)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
