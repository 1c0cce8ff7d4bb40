"""Draws noise.png: what noise levels look like.

python docs/pictures/noise.py
"""

from pathlib import Path

from matplotlib.figure import Figure
from shades import HERE, Shades, save_both

from sween.data import load_dataset
from sween.seeding import derive_key, noisy_copies

SIGMAS = (0.12, 0.25, 0.5, 1.0)
DIGITS = (1, 2)
"""Test images."""


def draw(shades: Shades) -> Figure:
    images = load_dataset("digits").test.images(DIGITS)
    keys = [derive_key(0, "picture of noise levels", digit) for digit in DIGITS]
    figure = Figure(figsize=(9.2, 3.9))
    every = figure.subplots(len(DIGITS), 1 + len(SIGMAS))
    for column, sigma in enumerate((0.0, *SIGMAS)):
        noisy = noisy_copies(images, keys, sigma=sigma).unflatten(0, (len(DIGITS), -1))
        every[0, column].set_title(f"sigma {sigma:g}" if sigma else "the image", fontsize=10.5)
        for row in range(len(DIGITS)):
            axes = every[row, column]
            axes.imshow(noisy[row, 0, 0].numpy(), cmap="gray", vmin=-0.5, vmax=1.5)
            axes.set_axis_off()
    figure.subplots_adjust(left=0.01, right=0.99, bottom=0.02, top=0.9, wspace=0.06, hspace=0.06)
    return figure


def main(folder: Path = HERE) -> None:
    save_both(draw, "noise", folder)


if __name__ == "__main__":
    main()
