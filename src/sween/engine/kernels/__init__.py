"""GPU kernels of our own: the forward pass of the paper's CIFAR networks, and noisy copies.

Compiled when first used, by the compiler that torch brings along; a CPU emulation in the tests runs
the same source.
"""

from sween.engine.kernels.cifar_resnet import FusedResNet, Selection, is_cifar_resnet
from sween.engine.kernels.launch import NoiseLauncher, launcher, supports
from sween.engine.kernels.noise import NoiseKernels

__all__ = [
    "FusedResNet",
    "NoiseKernels",
    "NoiseLauncher",
    "Selection",
    "is_cifar_resnet",
    "launcher",
    "supports",
]
