"""A network captured as a CUDA graph but for the kernel that reads its images.

A graph reads its input at a fixed address. The first kernel, launched by itself, writes its output
there, which spares a copy of the images.
"""

import copy
from typing import Protocol

import torch
from torch import fx, nn

from sween.engine.arithmetic import InArithmetic
from sween.engine.cuda_graph import CudaGraph, Forward
from sween.engine.fuse_first_layers import FIRST_LAYERS
from sween.engine.tracing import add_part


class Writer(Protocol):
    """Computes the first layers of a network."""

    def like(self, images: torch.Tensor) -> torch.Tensor:
        """A tensor that `write` can fill."""
        ...

    def write(self, images: torch.Tensor, out: torch.Tensor) -> None:
        """Write the outputs of these layers to `out`."""
        ...


class AfterImages:
    """A network of which `first` computes the first layers and a CUDA graph the others.

    Args:
        first: reads the images.
        rest: the other layers, of its outputs.
        images: a batch, of the shape that it will be called with.
    """

    def __init__(self, first: Writer, rest: Forward, images: torch.Tensor) -> None:
        self.first, self.shape = first, images.shape
        example = first.like(images)
        first.write(images.contiguous(), example)
        self.graph = CudaGraph(rest, example)

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        if images.shape != self.shape:
            raise ValueError(f"captured for images of shape {self.shape}, got {images.shape}")
        with self.graph.writing():
            self.first.write(images.contiguous(), self.graph.inputs[0])
        return self.graph.replay()


@torch.inference_mode()
def captured_after_images(ready: InArithmetic, images: torch.Tensor) -> Forward | None:
    """The network captured behind its first kernel; None if it is not made like that."""
    if images.device.type != "cuda" or not ready.whole:
        return None
    found = split(ready.module)
    if found is None:
        return None
    first, rest = found
    return AfterImages(first, _InFloat32(rest), images)


class _InFloat32:
    """The outputs of a network in float32."""

    def __init__(self, network: nn.Module) -> None:
        self._network = network

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self._network(inputs)
        return outputs.float()


def split(network: nn.Module) -> tuple[Writer, nn.Module] | None:
    """The kernel that reads a network's images, and a network of the rest; None: there is none."""
    if not isinstance(network, fx.GraphModule):
        return None
    parts = dict(network.named_modules())
    for node in network.graph.nodes:
        part = parts.get(str(node.target)) if node.op == "call_module" else None
        if not isinstance(part, FIRST_LAYERS) or not part.by_kernel:
            continue
        (images,) = node.args
        assert isinstance(images, fx.Node)
        if images.op != "placeholder" or [*images.users] != [node]:
            return None
        return part.reader, _without(network, node.name, part.rest)
    return None


def _without(network: fx.GraphModule, name: str, rest: nn.Module | None) -> nn.Module:
    """The network with `rest`, or nothing, in the place of a node."""
    own = fx.GraphModule(network, copy.deepcopy(network.graph))
    (node,) = (node for node in own.graph.nodes if node.name == name)
    if rest is None:
        node.replace_all_uses_with(node.args[0])
        own.graph.erase_node(node)
    else:
        node.target = add_part(own, {}, "_behind_first_kernel", rest)
    own.delete_all_unused_submodules()
    own.recompile()
    return own
