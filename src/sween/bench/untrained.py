"""Networks without trained weights, made fit to be measured."""

import torch
from torch import nn

from sween.models.activation_ranges import measure_ranges

CALIBRATION_BATCH = 16
"""Noisy images from which the batch norm statistics of an untrained network are estimated."""

SEED = 0


@torch.no_grad()
def calibrate_batch_norm(model: nn.Module, shape: tuple[int, int, int]) -> nn.Module:
    """Estimate an untrained model's batch norm statistics on noisy images; set evaluation mode.

    Without this the activations of a deep network grow from block to block and overflow float16.
    A CIFAR ResNet's activation ranges are measured on the same images.

    Example:
        >>> import sween
        >>> from sween.bench import calibrate_batch_norm
        >>> network = sween.create_model("resnet20", num_classes=10, image_shape=(3, 32, 32))
        >>> calibrate_batch_norm(network, (3, 32, 32)).training
        False
    """
    norms = [part for part in model.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]
    if not norms:
        return model.eval()
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the plain mean over passes
    generator = torch.Generator().manual_seed(SEED)
    images = 0.5 + 0.5 * torch.randn(CALIBRATION_BATCH, *shape, generator=generator)
    model.train()(images)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    measure_ranges(model.eval(), [images])
    return model
