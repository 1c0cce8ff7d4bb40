"""Accuracy under noise on held-out images."""

import torch
from torch import nn

from sween.data.dataset import Split
from sween.models.device import device_of
from sween.models.evaluation_mode import evaluating
from sween.seeding import standard_normal


@torch.inference_mode()
def noisy_accuracy(
    model: nn.Module, split: Split, sigma: float, seed: int, *, batch_size: int = 500
) -> float:
    """Accuracy on one fixed noisy copy of each image of a held-out split; NaN if a logit is."""
    device = device_of(model)
    right = torch.zeros((), device=device)
    for block, start in enumerate(range(0, len(split), batch_size)):
        positions = range(start, min(start + batch_size, len(split)))
        images = split.images(positions).to(device)
        noise = standard_normal(
            tuple(images.shape),
            seed=seed,
            purpose="validation",
            example=0,
            block=block,
            device=device,
        )
        with evaluating(model):
            logits = model(images + sigma * noise)
        right += (logits.argmax(dim=1) == split.labels[list(positions)].to(device)).sum()
        right += 0 * logits.sum()  # propagates NaN and infinity
    return float(right) / len(split)
