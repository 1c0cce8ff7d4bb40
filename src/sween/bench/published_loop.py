"""The reference: the loop of the published code."""

import numpy as np
import torch
from torch import nn

from sween.models.evaluation_mode import evaluating

REFERENCE_BATCH = 1000
"""Batch size of the published code for CIFAR-10."""

LARGE_IMAGE = 3 * 64 * 64
"""Values of an image above which a batch has fewer copies, as in the published ImageNet runs."""

LARGE_BATCH = {"cuda": 400, "cpu": 50}
"""Of large images. A CPU is as fast with 50, and a batch of 400 would take it minutes."""


def reference_batch(image: torch.Tensor) -> int:
    """Noisy copies of an image per batch."""
    return REFERENCE_BATCH if image.numel() <= LARGE_IMAGE else LARGE_BATCH[image.device.type]


@torch.no_grad()
def reference_votes(
    model: nn.Module, image: torch.Tensor, *, sigma: float, num_classes: int, batches: int
) -> np.ndarray:
    """The published loop: float32, eager, counted on the host after each batch.

    Example:
        >>> import sween
        >>> from sween.bench import reference_votes
        >>> image = sween.load_dataset("digits").test.images([0])[0]
        >>> ensemble = sween.load("digits-sween3-gaussian-sigma0.50")
        >>> votes = reference_votes(ensemble, image, sigma=0.5, num_classes=10, batches=1)
        >>> int(votes.sum())
        1000
    """
    counts, rows = np.zeros(num_classes, dtype=np.int64), reference_batch(image)
    with evaluating(model):
        for _ in range(batches):
            batch = image.repeat(rows, 1, 1, 1)
            noise = torch.randn_like(batch) * sigma
            labels = model(batch + noise).argmax(1).cpu().numpy()
            counts += np.bincount(labels, minlength=num_classes)
    return counts
