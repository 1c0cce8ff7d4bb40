"""Where the convolutions of a prepared network spend their time, and whether other ways are faster.

    python benchmarks/convolutions.py imagenet-resnet50 --image-size 224 --out FILE

Every distinct convolution of the network as `fast` prepares it (batch norm folded, relu and
shortcut fused, float16, channels-last) is timed alone on a batch of a vote's size:

- cudnn: by cuDNN;
- product: a 1x1 convolution as a matrix product, with bias, shortcut and relu in cuBLASLt's
  epilogue;
- blocks: a convolution of few channels with stride 2 as one with stride 1 of blocks of 2x2 pixels.

Of each the microseconds; of the convolution how often the network has it, its operations and the
bytes that it must move, and the least time that these take at the rates of a large matrix product
and of a large copy, measured in the same run. Random weights.

Then the groups of layers for which there are custom kernels, with these and by libraries, one
layer after the other; the latter also write and read what lies between the layers.
"""

import argparse
import copy
import dataclasses
import functools
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from sween.bench.matrix_rate import matrix_rate
from sween.bench.untrained import calibrate_batch_norm
from sween.engine.added_convolutions import AddedConvolutions
from sween.engine.cublas_lt import matmul
from sween.engine.cudnn_convolution import FusedConvolution
from sween.engine.fold_batch_norm import fold_batch_norm
from sween.engine.forward import default_forward_rows
from sween.engine.fuse_layers import fuse_layers
from sween.engine.stem import Stem
from sween.models import create_model
from sween.run_folder import describe_environment, write_json

FEW_CHANNELS = 4
"""Of a convolution that is tried on blocks of pixels."""

COPIED_NUMBERS = 2**30
"""Of the copy whose rate is the memory's."""

Call = Callable[[], torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Layer:
    """A convolution as a prepared network calls it.

    Attributes:
        conv: its weights and geometry.
        shape: of its input.
        relu: whether a relu is fused.
        shortcut: whether the addition of a shortcut is, too.
    """

    conv: nn.Conv2d
    shape: tuple[int, ...]
    relu: bool
    shortcut: bool

    @property
    def key(self) -> str:
        """The same for convolutions that take the same time."""
        conv = self.conv
        kernel = "x".join(map(str, conv.kernel_size))
        text = f"{kernel} {conv.in_channels}->{conv.out_channels} of {self.shape[-1]} px"
        text += f" /{conv.stride[0]}" if conv.stride[0] > 1 else ""
        text += f" in {conv.groups} groups" if conv.groups > 1 else ""
        return text + (" +relu" if self.relu else "") + (" +shortcut" if self.shortcut else "")

    @property
    def padding(self) -> tuple[int, int]:
        assert not isinstance(self.conv.padding, str)
        return _pair(self.conv.padding)

    @property
    def is_product(self) -> bool:
        """Whether it is a product of the pixels' channels with the weights."""
        conv = self.conv
        alone = conv.kernel_size == conv.stride == (1, 1) and conv.padding == (0, 0)
        return alone and conv.groups == 1 and conv.bias is not None

    @property
    def has_blocks(self) -> bool:
        conv = self.conv
        even = not any(size % 2 for size in self.shape[2:])
        odd = all(size % 2 and pad == size // 2 for size, pad in zip(conv.kernel_size, conv.padding,
                                                                      strict=True))  # fmt: skip
        plain = conv.stride == (2, 2) and conv.dilation == (1, 1) and conv.groups == 1
        return plain and even and odd and conv.in_channels <= FEW_CHANNELS and not self.shortcut


def layers_of(model: nn.Module, images: torch.Tensor) -> list[Layer]:
    """The convolutions of a network, fused as far as `fast` fuses them, in the order of calls."""
    fused = fuse_layers(fold_batch_norm(model))
    inside = {part.conv for part in fused.modules() if isinstance(part, FusedConvolution)}
    found = list[Layer]()

    def note(part: nn.Module, inputs: tuple[Any, ...]) -> None:
        relu = isinstance(part, FusedConvolution)
        conv = part.conv if isinstance(part, FusedConvolution) else part
        assert isinstance(conv, nn.Conv2d)
        shape = (len(images), *inputs[0].shape[1:])
        found.append(Layer(conv, shape, relu, relu and len(inputs) > 1))

    for part in fused.modules():
        if isinstance(part, FusedConvolution) or (
            isinstance(part, nn.Conv2d) and part not in inside
        ):
            part.register_forward_pre_hook(note)
    with torch.inference_mode():
        fused(images[:2])
    return found


class Tensors:
    """Inputs of a layer, in float16 (float32 on a CPU) and channels-last."""

    def __init__(self, layer: Layer, device: torch.device) -> None:
        dtype = torch.float16 if device.type == "cuda" else torch.float32
        last = torch.channels_last
        conv = layer.conv
        self.x = torch.randn(layer.shape, device=device).to(dtype).contiguous(memory_format=last)
        self.weight = conv.weight.detach().to(device, dtype).contiguous(memory_format=last)
        self.bias = None if conv.bias is None else conv.bias.detach().to(device, dtype)
        self.fused = FusedConvolution(_of(conv, self.weight, self.bias)).eval()
        self.shortcut = None
        out = self.fused.conv(self.x)
        self.out_shape = tuple(out.shape)
        if layer.shortcut:
            self.shortcut = torch.randn_like(out)


def _of(conv: nn.Conv2d, weight: torch.Tensor, bias: torch.Tensor | None) -> nn.Conv2d:
    """A convolution of the same geometry with these tensors."""
    assert not isinstance(conv.padding, str)
    own = nn.Conv2d(conv.in_channels, conv.out_channels, _pair(conv.kernel_size),
                    _pair(conv.stride), _pair(conv.padding), _pair(conv.dilation), conv.groups,
                    bias=bias is not None, device="meta")  # fmt: skip
    own.weight = nn.Parameter(weight, requires_grad=False)
    own.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
    return own


def _pair(value: tuple[int, ...]) -> tuple[int, int]:
    high, wide = value
    return high, wide


def ways(layer: Layer, tensors: Tensors) -> Iterator[tuple[str, Call]]:
    """Each way to compute a layer that applies to it; all return (N, C, H, W)."""
    x, fused, bias = tensors.x, tensors.fused, tensors.bias
    own = fused.conv
    geometry = (_pair(own.stride), layer.padding, _pair(own.dilation), own.groups)
    if not layer.relu or not x.is_cuda:
        yield "cudnn", lambda: fused(x, tensors.shortcut) if layer.relu else fused.conv(x)
    elif tensors.shortcut is None:
        yield "cudnn", lambda: torch.cudnn_convolution_relu(x, tensors.weight, bias, *geometry)
    else:
        added = tensors.shortcut
        yield (
            "cudnn",
            lambda: torch.cudnn_convolution_add_relu(
                x, tensors.weight, added, 1.0, bias, *geometry
            ),
        )
    if layer.is_product and layer.relu and x.is_cuda and bias is not None:
        rows = None if tensors.shortcut is None else _as_rows(tensors.shortcut)
        yield (
            "product",
            lambda: _as_images(
                matmul(_as_rows(x), tensors.weight.flatten(1), bias, rows, relu=True),
                tensors.out_shape,
            ),
        )
    if layer.has_blocks:
        weight, padding = weights_of_blocks(layer.conv, tensors.weight)

        def on_blocks() -> torch.Tensor:
            return blocks(x, weight, tensors.bias, padding, relu=layer.relu)

        yield "blocks", on_blocks


def _as_rows(images: torch.Tensor) -> torch.Tensor:
    """(N, C, H, W) in channels-last layout as a matrix with a row for each pixel."""
    return images.permute(0, 2, 3, 1).reshape(-1, images.shape[1])


def _as_images(rows: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    count, channels, high, wide = shape
    return rows.view(count, high, wide, channels).permute(0, 3, 1, 2)


def weights_of_blocks(conv: nn.Conv2d, weight: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
    """The weights of a convolution of stride 2 for blocks of 2x2 pixels, and the padding in blocks.

    A window of k pixels that begins k // 2 pixels before an even one spans whole blocks from
    ceil((k // 2) / 2) blocks before it on; pixels that the window leaves out have weight 0.
    """
    half = [size // 2 for size in conv.kernel_size]
    before = [(size + 1) // 2 for size in half]
    after = [size // 2 for size in half]
    left = [2 * blocks - size for blocks, size in zip(before, half, strict=True)]
    size = [2 * (one + other + 1) for one, other in zip(before, after, strict=True)]
    right = [whole - own - kernel for whole, own, kernel in
             zip(size, left, conv.kernel_size, strict=True)]  # fmt: skip
    padded = functional.pad(weight, (left[1], right[1], left[0], right[0]))
    deep = functional.pixel_unshuffle(padded, 2)
    padding = [before[1], after[1], before[0], after[0]]
    return deep.contiguous(memory_format=torch.channels_last), padding


def blocks(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    padding: Sequence[int],
    *,
    relu: bool,
) -> torch.Tensor:
    """A convolution of stride 2 by the weights of `weights_of_blocks`."""
    deep = functional.pad(functional.pixel_unshuffle(x, 2), list(padding))
    deep = deep.contiguous(memory_format=torch.channels_last)
    if relu and x.is_cuda:
        return torch.cudnn_convolution_relu(deep, weight, bias, [1, 1], [0, 0], [1, 1], 1)
    out = functional.conv2d(deep, weight, bias)
    return functional.relu(out) if relu else out


def microseconds(call: Call, device: torch.device, rounds: int, calls: int) -> float:
    """The median over rounds of a call's duration."""
    found = list[float]()
    for _ in range(2):
        call()
    for _ in range(rounds):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        began = time.perf_counter()
        for _ in range(calls):
            call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        found.append((time.perf_counter() - began) / calls * 1e6)
    return statistics.median(found)


def copy_rate(device: torch.device, numbers: int = COPIED_NUMBERS) -> float:
    """Bytes per second of a large copy, those read and those written."""
    source = torch.empty(numbers, dtype=torch.float16, device=device)
    target = torch.empty_like(source)
    took = microseconds(lambda: target.copy_(source), device, rounds=3, calls=5)
    return 2 * 2 * numbers / took * 1e6


def measure(
    layer: Layer, device: torch.device, rates: Mapping[str, float], options: argparse.Namespace
) -> dict[str, Any]:
    """One row; the ways whose outputs are wrong have None."""
    tensors = Tensors(layer, device)
    outputs = tensors.out_shape
    conv = layer.conv
    per_output = conv.weight[0].numel()
    numbers = [tensors.x.numel(), conv.weight.numel()]
    numbers += [torch.Size(outputs).numel()] * (2 if layer.shortcut else 1)
    flops = 2 * per_output * torch.Size(outputs).numel()
    moved = sum(numbers) * tensors.x.element_size()
    least = max(flops / rates["flops_per_second"], moved / rates["bytes_per_second"]) * 1e6
    row: dict[str, Any] = {"layer": layer.key, "flops": flops, "bytes": moved, "least": least}
    wanted: torch.Tensor | None = None
    for name, call in ways(layer, tensors):
        try:
            found = call()
            wanted = found if wanted is None else wanted
            # Other orders of sums; a wrong kernel is off by the size of the outputs.
            close = float((found - wanted).abs().max()) <= 0.02 * float(wanted.abs().max())
            if not close:
                raise RuntimeError("other outputs than cudnn's")
            took: float | None = microseconds(call, device, options.rounds, options.calls)
        except Exception as error:  # a way may not exist for a shape
            sys.stderr.write(f"{layer.key} by {name}: {str(error).splitlines()[0]}\n")
            took = None
        row[name] = took
    return row


def measure_groups(
    model: nn.Module, images: torch.Tensor, options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Rows of the groups of layers that have kernels, with them and without."""
    device, found = images.device, list[dict[str, Any]]()
    dtype = torch.float16 if device.type == "cuda" else torch.float32
    fused = fuse_layers(fold_batch_norm(model.to(device)))
    groups = {
        part: name
        for name, part in fused.named_modules()
        if isinstance(part, Stem | AddedConvolutions)
    }
    inputs = dict[nn.Module, list[torch.Tensor]]()

    def note(part: nn.Module, given: tuple[torch.Tensor, ...]) -> None:
        inputs[part] = [own.detach() for own in given]

    for part in groups:
        part.register_forward_pre_hook(note)
    fused(images[:1])
    for part, name in groups.items():
        part._forward_pre_hooks.clear()
        assert isinstance(part, Stem | AddedConvolutions)
        given = [own.expand(len(images), *own.shape[1:]) for own in inputs[part]]
        halves = [own.to(dtype, memory_format=torch.channels_last) for own in given]
        one_by_one = functools.partial(copy.deepcopy(part).to(dtype), *halves)
        part.let_run(images, dtype)
        together = functools.partial(
            part.to(dtype), *([images] if given[0].shape == images.shape else halves)
        )
        times = {
            way: microseconds(call, device, options.rounds, options.calls)
            for way, call in (("kernel", together), ("one by one", one_by_one))
            if part.by_kernel or call is one_by_one
        }
        found.append({"group": name, "kernel": None, **times})
    return found


@torch.inference_mode()
def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("network")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--rows", type=int)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--calls", type=int, default=10)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--copied", type=int, default=COPIED_NUMBERS)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    device, shape = torch.device(options.device), (3, options.image_size, options.image_size)
    model = create_model(options.network, num_classes=10, image_shape=shape)
    model = calibrate_batch_norm(model, shape).eval()
    rows = options.rows or default_forward_rows(device, torch.Size(shape).numel())
    found = layers_of(model, torch.rand(rows, *shape))
    arithmetic = "float16" if device.type == "cuda" else "float32"
    rates = {
        "flops_per_second": matrix_rate(device, arithmetic),
        "bytes_per_second": copy_rate(device, options.copied),
    }
    results = list[dict[str, Any]]()
    for key in dict.fromkeys(layer.key for layer in found):
        same = [layer for layer in found if layer.key == key]
        results.append({"times": len(same), **measure(same[0], device, rates, options)})
        row = results[-1]
        spent = {name: round(own, 1) for name, own in row.items() if isinstance(own, float)}
        sys.stdout.write(f"{row['times']} x {key}: {spent}\n")
    images = torch.rand(rows, *shape, device=device)
    groups = measure_groups(model, images, options)
    for row in groups:
        sys.stdout.write(f"{row}\n")
    content = {"network": options.network, "rows": rows, **rates, "results": results}
    content["groups"] = groups
    write_json(options.out, {"environment": describe_environment(), **content})


if __name__ == "__main__":
    main()
