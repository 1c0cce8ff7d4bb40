"""The ranges of a network's activations, which 8-bit integers divide into 255 steps."""

import contextlib
from collections.abc import Iterable

import torch
from torch import nn

from sween.models.cifar_resnet import BasicBlock, CifarResNet

SMALLEST = 1e-3
"""Range of inputs that are next to always 0: its inverse must fit into float16."""


@torch.no_grad()
def measure_ranges(module: nn.Module, batches: Iterable[torch.Tensor]) -> None:
    """Set the `activation_ranges` of each CIFAR ResNet in a module to the largest values seen.

    The largest values and no quantile of them: on noisy CIFAR images, clipping even the largest
    0.001% of activations costs more than the finer steps gain.

    Args:
        module: in evaluation mode.
        batches: images such as the network will see, with noise.
    """
    networks = [part for part in module.modules() if isinstance(part, CifarResNet)]
    found = {conv: 0.0 for network in networks for conv in _convolutions(network)}

    def see(conv: nn.Module, inputs: tuple[torch.Tensor]) -> None:
        found[conv] = max(found[conv], float(inputs[0].abs().max()))

    with contextlib.ExitStack() as hooks:
        for conv in found:
            hooks.enter_context(conv.register_forward_pre_hook(see))
        for batch in batches:
            module(batch)
    for network in networks:
        ranges = [max(found[conv], SMALLEST) for conv in _convolutions(network)]
        device = network.conv1.weight.device
        network.activation_ranges = torch.tensor(ranges, dtype=torch.float32, device=device)


def _convolutions(network: CifarResNet) -> list[nn.Module]:
    """The first, and the 3x3 convolutions of the blocks, in order."""
    convs: list[nn.Module] = [network.conv1]
    for block in (*network.stage1, *network.stage2, *network.stage3):
        assert isinstance(block, BasicBlock)
        convs += [block.conv1, block.conv2]
    return convs
