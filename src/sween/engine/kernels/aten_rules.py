"""What each of torch's operations gives, where a CIFAR ResNet may have it: a rule by operation.

A rule gets the operation's arguments, with expressions (`resnet_expressions.py`) in the place of
tensors that are made of the images, and returns that of the result. It refuses whatever the
kernels' network cannot do, by raising `NotRecognised`.
"""

import dataclasses
import operator
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from sween.engine.kernels.cifar_resnet import IMAGE_SHAPE
from sween.engine.kernels.resnet_expressions import (
    Convolution,
    Expression,
    Image,
    Line,
    Logits,
    NotRecognised,
    Pooled,
    Relu,
    Subsampled,
    Sum,
    Zero,
    channels_of,
)

PIXELS_BEFORE_POOLING = 8

aten = torch.ops.aten

OTHER_RESULTS = "the statistics of a batch, or the places of pixels"
"""What batch norm and max pooling return besides their output."""


def apply_rule(target: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """What an operation gives; raises `NotRecognised`, or whatever unexpected arguments lead to."""
    if target is operator.getitem:
        value, place = args
        if place:
            raise NotRecognised(OTHER_RESULTS)
        return value
    rule = _RULES.get(getattr(target, "overloadpacket", None))
    if rule is None:
        raise NotRecognised(f"{target}")
    return rule(*args, **kwargs)


def _affine(x: Image, scale: Any, shift: Any) -> Image:
    """scale * x + shift, for numbers or constants that are the same for all pixels of a channel."""
    scale, shift = (_per_channel(value, x.scale) for value in (scale, shift))
    return Image(scale * x.scale, scale * x.shift + shift)


def _per_channel(value: Any, like: torch.Tensor) -> torch.Tensor:
    constant = torch.as_tensor(value, dtype=like.dtype, device=like.device)
    full = constant.expand(2, *IMAGE_SHAPE)
    channels = full[0, :, 0, 0]
    if not torch.equal(full, channels[:, None, None].expand_as(full)):
        raise NotRecognised("a constant that differs from pixel to pixel")
    return channels


def _add(one: Any, other: Any, *, alpha: float = 1) -> Expression:
    if isinstance(one, Expression) and isinstance(other, Expression):
        if alpha != 1:
            raise NotRecognised("a weighted sum")
        return Sum(one, other)
    if isinstance(one, Image):
        return _affine(one, 1, alpha * other)
    if isinstance(other, Image):
        return _affine(other, alpha, one)
    raise NotRecognised("a constant added to activations")


def _subtract(one: Any, other: Any, *, alpha: float = 1) -> Expression:
    if isinstance(one, Image) and not isinstance(other, Expression):
        return _affine(one, 1, -alpha * other)
    raise NotRecognised("a difference")


def _multiply(one: Any, other: Any) -> Expression:
    x, factor = (one, other) if isinstance(one, Expression) else (other, one)
    if isinstance(x, Image) and not isinstance(factor, Expression):
        return _affine(x, factor, 0)
    if isinstance(factor, int | float) and factor == 0:
        return Zero(x)
    raise NotRecognised("a product")


def _divide(one: Any, other: Any) -> Expression:
    if isinstance(one, Image) and not isinstance(other, Expression):
        return _affine(one, 1 / other, 0)
    raise NotRecognised("a quotient")


def _convolve(
    x: Expression,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Convolution | Logits:
    square = all(len(set(own)) == 1 for own in (stride, padding, dilation))
    if transposed or groups != 1 or not square or dilation[0] != 1:
        raise NotRecognised("a grouped, dilated, transposed or uneven convolution")
    own = weight.new_zeros(len(weight)) if bias is None else bias
    if isinstance(x, Pooled):  # a linear layer as a convolution of the means
        if weight.shape[2:] != (1, 1) or padding[0]:
            raise NotRecognised("a convolution of means with their surroundings")
        return Logits(x.of, weight.flatten(1), own)
    return Convolution(x, weight, own, stride[0], padding[0])


def _normalise(
    x: Expression,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor,
    variance: torch.Tensor,
    eps: float,
) -> Convolution | Image:
    if not isinstance(x, Convolution | Image):
        raise NotRecognised("batch norm elsewhere than before or after a convolution")
    scale = torch.rsqrt(variance + eps) * (1 if weight is None else weight)
    if isinstance(x, Image):  # normalises the pixels
        own = -mean * scale + (0 if bias is None else bias)
        return _affine(x, scale[:, None, None], own[:, None, None])
    shift = (x.bias - mean) * scale + (0 if bias is None else bias)
    return dataclasses.replace(x, weight=x.weight * scale[:, None, None, None], bias=shift)


def _batch_norm(
    x: Expression, w: Any, b: Any, mean: Any, variance: Any, training: bool, _: float, eps: float
) -> Convolution | Image:
    if training:
        raise NotRecognised("batch norm in training mode")
    return _normalise(x, w, b, mean, variance, eps)


def _batch_norm_in_evaluation(
    x: Expression, w: Any, b: Any, mean: Any, variance: Any, _: float, eps: float
) -> Convolution | Image:
    return _normalise(x, w, b, mean, variance, eps)


def _relu(x: Expression, low: Any = 0, high: Any = None) -> Relu:
    """Also a clamp from below."""
    if low is None or low != 0 or high is not None:
        raise NotRecognised("other bounds than 0")
    return Relu(x)


def _slice(
    x: Expression, dim: int = 0, start: int | None = 0, end: int | None = None, step: int = 1
) -> Expression:
    """Every step-th row or column, from the first to the last."""
    # How many images, channels or pixels in a line there are is not known here: `[:]` alone is
    # certain to take all.
    all_of_them = IMAGE_SHAPE[-1] if dim in (2, 3) and not isinstance(x, Line) else sys.maxsize
    if start or (end is not None and end < all_of_them):
        raise NotRecognised("a part of the images, pixels or channels")
    if step == 1:
        return x
    if dim not in (2, 3):
        raise NotRecognised("a part of the images or channels")
    known = x if isinstance(x, Subsampled) else Subsampled(x)
    steps = list(known.steps)
    steps[dim - 2] *= step
    return dataclasses.replace(known, steps=(steps[0], steps[1]))


def _pad(x: Expression, widths: Sequence[int], value: float = 0.0) -> Subsampled:
    if value or any(widths[:4]) or len(widths) != 6 or min(widths) < 0:
        raise NotRecognised("padding other than by channels of zeros")
    known = x if isinstance(x, Subsampled) else Subsampled(x)
    before, after = known.before + widths[4], known.after + widths[5]
    return dataclasses.replace(known, before=before, after=after)


def _concatenate(parts: Sequence[Any], dim: int = 0) -> Subsampled:
    """Channels of zeros before or after."""
    if dim != 1:
        raise NotRecognised("a concatenation of images or pixels")
    before, after, found = 0, 0, list[Expression]()
    for part in parts:
        if isinstance(part, Expression) and not isinstance(part, Zero):
            found.append(part)
        elif found:
            after += _zeros(part)
        else:
            before += _zeros(part)
    if len(found) != 1:
        raise NotRecognised("a concatenation of activations")
    return _pad(found[0], [0, 0, 0, 0, before, after])


def _zeros(part: Any) -> int:
    """The number of channels of a constant that is 0, or of the zeros of a shortcut."""
    if isinstance(part, Zero):
        return channels_of(part.like)
    if not isinstance(part, torch.Tensor) or bool(part.any()):
        raise NotRecognised("a concatenation with something else than zeros")
    return part.shape[1]


def _new_zeros(x: Expression, size: Sequence[int], **options: Any) -> torch.Tensor:
    """Zeros of a given shape, of which other rules use nothing else."""
    return torch.zeros(tuple(size), dtype=options.get("dtype") or torch.float32)


def _zeros_like(x: Expression, **options: Any) -> Zero:
    _same(x, **options)
    return Zero(x)


def _average(
    x: Expression,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0, 0),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Expression:
    if any(padding) or ceil_mode or divisor_override is not None:
        raise NotRecognised("pooling with padding")
    if set(kernel) == {PIXELS_BEFORE_POOLING}:
        return Pooled(x)
    if set(kernel) == {1} and len(set(stride)) == 1:
        return Subsampled(x, (stride[0], stride[0]))
    raise NotRecognised("pooling of some pixels")


def _largest(
    x: Expression,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0, 0),
    dilation: Sequence[int] = (1, 1),
    ceil_mode: bool = False,
) -> Subsampled:
    """Max pooling of single pixels, which only leaves out others."""
    if set(kernel) != {1} or any(padding) or ceil_mode or len(set(stride)) != 1:
        raise NotRecognised("the largest of several pixels")
    return Subsampled(x, (stride[0], stride[0]))


def _mean(
    x: Expression, dims: Sequence[int] | None, keepdim: bool = False, **options: Any
) -> Pooled | Line:
    _same(x, **options)
    axes = x.axes if isinstance(x, Line) else 4
    over = sorted(dim % axes for dim in dims or ())
    if isinstance(x, Line) and x.axis in over and min(over) >= 2:
        return Pooled(
            x.of
        )  # lines have equally many pixels: the mean of their means is that of all
    if not isinstance(x, Line) and over == [2, 3]:
        return Pooled(x)
    if not isinstance(x, Line) and over in ([2], [3]):
        return Line(x, axis=5 - over[0], axes=4) if keepdim else Line(x, axis=2, axes=3)
    raise NotRecognised("a mean over something else than the pixels")


def _adaptive(x: Expression, size: Sequence[int]) -> Pooled:
    if set(size) != {1}:
        raise NotRecognised("pooling to several pixels")
    return Pooled(x)


def _reshape(x: Expression, shape: Sequence[int]) -> Pooled | Logits | Line:
    images, *rest = shape
    if images not in (2, -1):
        raise NotRecognised("another number of images")
    if isinstance(x, Pooled | Logits):
        features = channels_of(x.of) if isinstance(x, Pooled) else len(x.weight)
        if rest in ([features], [-1], [features, 1, 1]):
            return x
    elif len(rest) == 2 and rest[0] == channels_of(x):  # all pixels of a channel in one row
        return Line(x, axis=2, axes=3)
    raise NotRecognised("another shape")


def _squeeze(x: Expression, *dims: Any) -> Pooled | Logits:
    if not isinstance(x, Pooled | Logits):
        raise NotRecognised("another shape")
    return x


def _linear(bias: Any, x: Any, weight: Any, *, beta: float = 1, alpha: float = 1) -> Logits:
    if not isinstance(x, Pooled) or isinstance(weight, Expression) or beta != 1 or alpha != 1:
        raise NotRecognised("a linear layer elsewhere than after pooling")
    return Logits(x.of, weight.t(), bias)


def _linear_without_bias(x: Any, weight: Any) -> Logits:
    return _linear(weight.new_zeros(weight.shape[1]), x, weight)


def _same(x: Expression, **options: Any) -> Expression:
    kinds = {options.get("dtype"), torch.float32, None}
    if kinds != {torch.float32, None}:
        raise NotRecognised("another type of numbers")
    return x


_RULES: dict[Any, Callable[..., Any]] = {
    aten.add: _add,
    aten.add_: _add,
    aten.sub: _subtract,
    aten.sub_: _subtract,
    aten.mul: _multiply,
    aten.mul_: _multiply,
    aten.div: _divide,
    aten.div_: _divide,
    aten.convolution: _convolve,
    aten.native_batch_norm: _batch_norm,
    aten.cudnn_batch_norm: _batch_norm,
    aten._native_batch_norm_legit_no_training: _batch_norm_in_evaluation,
    aten.relu: _relu,
    aten.relu_: _relu,
    aten.clamp_min: _relu,
    aten.clamp_min_: _relu,
    aten.clamp: _relu,
    aten.clamp_: _relu,
    aten.slice: _slice,
    aten.constant_pad_nd: _pad,
    aten.cat: _concatenate,
    aten.new_zeros: _new_zeros,
    aten.zeros_like: _zeros_like,
    aten.avg_pool2d: _average,
    aten.max_pool2d_with_indices: _largest,
    aten.mean: _mean,
    aten._adaptive_avg_pool2d: _adaptive,
    aten.view: _reshape,
    aten._unsafe_view: _reshape,
    aten.reshape: _reshape,
    aten.squeeze: _squeeze,
    aten.addmm: _linear,
    aten.mm: _linear_without_bias,
    aten.alias: _same,
    aten.clone: _same,
    aten.detach: _same,
    aten._to_copy: _same,
}
