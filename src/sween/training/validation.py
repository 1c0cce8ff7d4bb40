"""Accuracy on noisy images that were not trained on."""

import torch
from torch import nn

from sween.data.dataset import Split
from sween.seeding import standard_normal


@torch.inference_mode()
def noisy_accuracy(
    model: nn.Module, split: Split, sigma: float, seed: int, *, batch_size: int = 500
) -> float:
    """Accuracy on one fixed noisy copy of each image of a held-out split; NaN if a logit is."""
    was_training = model.training
    model.eval()
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
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
        logits = model(images + sigma * noise)
        right += (logits.argmax(dim=1) == split.labels[list(positions)].to(device)).sum()
        right += 0 * logits.sum()  # hands a NaN or infinity on
    model.train(was_training)
    return float(right) / len(split)
