"""Draws idea.png from the demo's certificates.

Noisy copies of one digit, the votes of the ensemble on ten thousand of them, and what they prove.

python docs/pictures/idea.py
"""

import functools
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch
from shades import HERE, RESULTS, Shades, save_both

from sween.data import load_dataset
from sween.records import Certificate, format_radius, read_certificates
from sween.seeding import derive_key, noisy_copies


def _pick(certificates: list[Certificate]) -> Certificate:
    """A certified, correct digit of about median radius whose votes are not unanimous."""
    good = [row for row in certificates if row.model.startswith("SWEEN") and row.correct]
    good.sort(key=lambda row: row.radius)
    return good[int(0.7 * len(good))]


def draw(row: Certificate, shades: Shades) -> Figure:
    image = load_dataset("digits").test.images([row.index])
    key = derive_key(row.seed, "estimation", row.index)
    noisy = noisy_copies(image, [key], sigma=row.sigma)
    figure = Figure(figsize=(11, 4.1))
    _draw_images(figure, image[0], noisy, shades)
    _draw_votes(figure, row, shades)
    _draw_ball(figure, row, shades)
    for x in (0.355, 0.69):
        arrow = FancyArrowPatch(
            (x, 0.47), (x + 0.035, 0.47), arrowstyle="-|>", mutation_scale=18, color=shades.muted
        )
        figure.add_artist(arrow)
    return figure


def _title(figure: Figure, x: float, number: str, text: str, shades: Shades) -> None:
    figure.text(x, 0.93, number, color=shades.accent, fontsize=14.5, weight="bold")
    figure.text(x + 0.024, 0.93, text, fontsize=12.5, weight="bold")


def _draw_images(figure: Figure, image: torch.Tensor, noisy: torch.Tensor, shades: Shades) -> None:
    _title(figure, 0.02, "1", "noisy copies of the image", shades)
    clean = figure.add_axes((0.02, 0.27, 0.15, 0.45))
    clean.imshow(image[0].numpy(), cmap="gray_r", vmin=0, vmax=1)
    clean.set_title("x", color=shades.ink, fontsize=11)
    for position in range(6):
        column, line = position % 2, position // 2
        axes = figure.add_axes((0.19 + 0.08 * column, 0.60 - 0.245 * line, 0.072, 0.215))
        axes.imshow(noisy[position, 0].numpy(), cmap="gray_r", vmin=-0.7, vmax=1.7)
        axes.set_axis_off()
    clean.set_axis_off()
    figure.text(0.02, 0.04, "x + noise, ten thousand times", color=shades.muted, fontsize=12.5)


def _draw_votes(figure: Figure, row: Certificate, shades: Shades) -> None:
    _title(figure, 0.42, "2", "the weighted ensemble votes", shades)
    axes = figure.add_axes((0.42, 0.19, 0.25, 0.62))
    counts = np.asarray(row.estimation_counts)
    colours = [shades.accent if k == row.prediction else shades.muted for k in range(len(counts))]
    axes.bar(range(len(counts)), counts, color=colours, width=0.75)
    axes.set_xticks(range(len(counts)))
    axes.set_yticks([])
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(colors=shades.muted, length=0, labelsize=12)
    winner = row.prediction
    axes.text(
        winner + 0.5 if winner < 6 else winner - 0.5,
        0.9 * counts[winner],
        f"{counts[winner]:,} of {row.n:,}",
        ha="left" if winner < 6 else "right",
        color=shades.accent,
        fontsize=13,
        weight="bold",
    )
    p = np.floor(row.lower_bound * 1000) / 1000
    text = f"so with {100 * (1 - row.alpha):g}% confidence  p > {p:.3f}"
    figure.text(0.42, 0.04, text, color=shades.muted, fontsize=12.5)


def _draw_ball(figure: Figure, row: Certificate, shades: Shades) -> None:
    _title(figure, 0.745, "3", "a proof", shades)
    axes = figure.add_axes((0.745, 0.19, 0.24, 0.7))
    axes.set_xlim(-1.25, 1.25)
    axes.set_ylim(-1.1, 1.1)
    axes.set_aspect("equal")
    axes.set_axis_off()
    boundary = np.linspace(-1.1, 1.1, 50)
    axes.plot(1.06 + 0.09 * np.sin(3 * boundary), boundary, color=shades.muted, linewidth=1.5)
    axes.fill_betweenx(boundary, 1.06 + 0.09 * np.sin(3 * boundary), 1.25, color=shades.fill)
    axes.add_patch(
        Circle((0, 0), 0.9, facecolor=shades.accent_fill, edgecolor=shades.accent, linewidth=2)
    )
    axes.plot(0, 0, "o", color=shades.ink)
    axes.text(-0.08, -0.16, "x", ha="right", color=shades.ink, fontsize=12)
    axes.annotate(
        "", (0.64, 0.63), (0, 0), arrowprops={"arrowstyle": "-|>", "color": shades.accent}
    )
    axes.text(
        -0.14,
        0.42,
        f"R = {format_radius(row.radius)}",
        color=shades.accent,
        fontsize=13,
        weight="bold",
        ha="center",
    )
    axes.text(
        0,
        -0.66,
        f"every image here\nis classified {row.prediction}",
        ha="center",
        color=shades.ink,
        fontsize=12,
    )
    caption = "no l2 change below R\nchanges the label"
    figure.text(0.745, 0.04, caption, color=shades.muted, fontsize=12.5)


def main(folder: Path = HERE) -> None:
    row = _pick(read_certificates(RESULTS / "digits-demo"))
    save_both(functools.partial(draw, row), "idea", folder)


if __name__ == "__main__":
    main()
