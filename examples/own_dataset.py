"""Certify a data set of your own into a folder that can be resumed, verified and reported.

python examples/own_dataset.py [FOLDER]
"""

import sys
from pathlib import Path

import torch
from torch.utils.data import Dataset

import sween
from sween.report import write_report
from sween.runs import verify_folder


class InvertedDigits(Dataset[tuple[torch.Tensor, int]]):
    """Any torch data set will do: items are an image and its class.

    Images are float tensors in [0, 1] or 8-bit tensors, channels first; NumPy arrays and Pillow
    images are converted. An item must be the same each time it is read.
    """

    def __init__(self) -> None:
        self.digits = sween.load_dataset("digits").test

    def __len__(self) -> int:
        return len(self.digits)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return 1 - self.digits.images([index])[0], int(self.digits.labels[index])


class Inverted(torch.nn.Module):
    """The zoo's ensemble knows white on black: turn the images before it sees them."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        probabilities: torch.Tensor = self.model(1 - images)
        return probabilities


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "own-dataset")
    model = Inverted(sween.load("digits-sween3-gaussian-sigma0.50"))
    smoothed = sween.SmoothedClassifier(model, sigma=0.5, num_classes=10, name="inverted")

    # Interrupt this and call it again: it resumes, and gives the rows of an uninterrupted run.
    run = sween.certify_dataset(
        smoothed,
        InvertedDigits(),
        out=folder / "certificates",
        indices=range(0, 360, 12),  # 30 of 360 images
        n=1_000,
        quiet=True,
    )
    print(run)
    radii = [0.0, 0.25, 0.5]
    for radius, share in zip(radii, run.certified_accuracy(radii), strict=True):
        print(f"certified accuracy at radius {radius:.2f}: {share:.1%}")
    print(f"average certified radius: {run.average_certified_radius:.3f}")

    # Every radius follows again from the votes in its row, without the model.
    checked = verify_folder(folder / "certificates")
    print(f"verified {checked.rows} rows, {checked.certified} of them certified")

    write_report([folder / "certificates"], folder / "report")
    print(f"open {folder / 'report' / 'report.html'}")


if __name__ == "__main__":
    main()
