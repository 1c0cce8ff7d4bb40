"""What tensors of a CIFAR ResNet are, written as expressions of the images.

The kinds are those of the network that the custom kernels run; anything else is `NotRecognised`.
"""

import dataclasses

import torch


class NotRecognised(Exception):
    """Some operation has no place in a CIFAR ResNet."""


@dataclasses.dataclass(frozen=True, eq=False)
class Image:
    """The input, or an affine map of it: scale * x + shift, (3,) each."""

    scale: torch.Tensor
    shift: torch.Tensor


@dataclasses.dataclass(frozen=True, eq=False)
class Convolution:
    """A convolution with its batch norm, if any, folded in."""

    of: "Expression"
    weight: torch.Tensor
    bias: torch.Tensor
    stride: int
    padding: int


@dataclasses.dataclass(frozen=True, eq=False)
class Subsampled:
    """Every `steps`-th row and column; `before` and `after` are channels of zeros around it."""

    of: "Expression"
    steps: tuple[int, int] = (1, 1)
    before: int = 0
    after: int = 0


@dataclasses.dataclass(frozen=True, eq=False)
class Relu:
    of: "Expression"


@dataclasses.dataclass(frozen=True, eq=False)
class Sum:
    one: "Expression"
    other: "Expression"


@dataclasses.dataclass(frozen=True, eq=False)
class Zero:
    """Zeros of the shape of something else."""

    like: "Expression"


@dataclasses.dataclass(frozen=True, eq=False)
class Line:
    """Pixels or means of pixels along one axis, all the others pooled or of size 1.

    Attributes:
        of: the activations.
        axis: the one that is left.
        axes: how many there are.
    """

    of: "Expression"
    axis: int
    axes: int


@dataclasses.dataclass(frozen=True, eq=False)
class Pooled:
    """Means over all pixels, (N, C) or (N, C, 1, 1)."""

    of: "Expression"


@dataclasses.dataclass(frozen=True, eq=False)
class Logits:
    """Those of a linear layer, (N, M) or (N, M, 1, 1)."""

    of: "Expression"
    weight: torch.Tensor
    bias: torch.Tensor


Expression = Image | Convolution | Subsampled | Relu | Sum | Zero | Line | Pooled | Logits


def channels_of(x: Expression) -> int:
    """How many channels activations have, by the convolution that they come from."""
    while not isinstance(x, Convolution):
        if isinstance(x, Subsampled):
            return channels_of(x.of) + x.before + x.after
        if not isinstance(x, Relu | Sum):
            raise NotRecognised("zeros of an unknown shape")
        x = x.of if isinstance(x, Relu) else x.one
    return len(x.weight)
