"""Custom GPU kernels: the paper's CIFAR networks and their gradients, and noisy copies.

Compiled on first use by the compiler that ships with torch; the tests run the same source in a CPU
emulation.
"""

from sween.engine.kernels.cifar_resnet import (
    INTEGER_WIDTHS,
    WIDTHS,
    FusedQuantizedResNet,
    FusedResNet,
    Selection,
    WideQuantizedResNet,
    is_cifar_resnet,
    shape_for,
)
from sween.engine.kernels.gradients import FusedGradients
from sween.engine.kernels.launch import NoiseLauncher, launcher, supports
from sween.engine.kernels.noise import NoiseKernels
from sween.engine.kernels.quantized import QuantizedResNet
from sween.engine.kernels.recognise import as_cifar_resnet
from sween.engine.kernels.shape import (
    GradientShape,
    IntegerShape,
    MaskShape,
    Shape,
    WideIntegerShape,
    WideShape,
)

__all__ = [
    "INTEGER_WIDTHS",
    "WIDTHS",
    "FusedGradients",
    "FusedQuantizedResNet",
    "FusedResNet",
    "GradientShape",
    "IntegerShape",
    "MaskShape",
    "NoiseKernels",
    "NoiseLauncher",
    "QuantizedResNet",
    "Selection",
    "Shape",
    "WideIntegerShape",
    "WideQuantizedResNet",
    "WideShape",
    "as_cifar_resnet",
    "is_cifar_resnet",
    "launcher",
    "shape_for",
    "supports",
]
