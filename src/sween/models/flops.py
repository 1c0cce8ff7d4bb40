"""Parameters and multiply-adds as in the paper's Table 2, and the matrix products of any module."""

import math
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from sween.models.device import device_of
from sween.models.evaluation_mode import evaluating


def count_parameters(model: nn.Module) -> int:
    """Trainable parameters.

    Example:
        >>> import sween
        >>> from sween.models import count_parameters
        >>> network = sween.create_model("resnet20", num_classes=10, image_shape=(3, 32, 32))
        >>> count_parameters(network)
        272474
    """
    return sum(parameter.numel() for parameter in model.parameters())


def count_flops(model: nn.Module, image_shape: tuple[int, int, int]) -> int:
    """Multiply-adds of convolutions and linear layers, plus two per batch-norm output element.

    This convention reproduces the paper's figures; activations, shortcut additions, pooling and
    input normalisation are not counted.

    Example:
        >>> import sween
        >>> from sween.models import count_flops, count_matrix_flops
        >>> network = sween.create_model("resnet20", num_classes=10, image_shape=(3, 32, 32))
        >>> count_flops(network, (3, 32, 32)), count_matrix_flops(network, (3, 32, 32))
        (41214592, 81626368)
    """
    total = 0

    def add(module: nn.Module, _inputs: Any, output: torch.Tensor) -> None:
        nonlocal total
        if isinstance(module, nn.Conv2d):
            per_output = module.in_channels // module.groups * math.prod(module.kernel_size)
            total += output.numel() * per_output
        elif isinstance(module, nn.Linear):
            total += output.numel() * module.in_features
        elif isinstance(module, nn.BatchNorm2d):
            total += 2 * output.numel()

    handles = [module.register_forward_hook(add) for module in model.modules()]
    try:
        with torch.inference_mode(), evaluating(model):
            model(torch.zeros(1, *image_shape, device=device_of(model)))
    finally:
        for handle in handles:
            handle.remove()
    return total


def count_matrix_flops(model: nn.Module, image_shape: tuple[int, int, int]) -> int:
    """Floating-point operations of all matrix products and convolutions on one image.

    Of any module, attention included; a multiply-add is two operations. Everything else is not
    counted, since it does not run on a device's matrix units.

    Example:
        See `count_flops`.
    """
    fast_path = torch.backends.mha.get_fastpath_enabled()
    # As single operations, attention would be counted on some devices only.
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with (
            torch.inference_mode(),
            evaluating(model),
            sdpa_kernel(SDPBackend.MATH),
            FlopCounterMode(display=False) as counter,
        ):
            # Two images: with one, a module that squeezes its activations may do something else.
            model(torch.zeros(2, *image_shape, device=device_of(model)))
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
    return int(counter.get_total_flops()) // 2
