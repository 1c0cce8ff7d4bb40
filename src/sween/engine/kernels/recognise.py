"""Recognises CIFAR ResNets by what they compute, whoever wrote their code.

A module is run on two images and followed down to torch's own operations. If these are an affine
map of the pixels (or none), a convolution, 3n residual blocks of 3x3 convolutions with 16, 32 and
64 channels, or two or three times as many, mean pooling and a linear layer (or a 1x1 convolution of
the means), the network is rebuilt as a `CifarResNet` with the same weights, which the custom
kernels run. Batch norm, biases, and shortcuts by a 1x1 convolution or by dropping pixels and
padding channels (option A) all become convolutions with a bias; a batch norm of the pixels becomes
their normalisation.
"""

import dataclasses
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree
from torch.utils.weak import WeakTensorKeyDictionary

from sween.engine.dispatch_mode import WatchingMode
from sween.engine.in_place import Sharing, place_of
from sween.engine.kernels.cifar_resnet import WIDTHS
from sween.engine.tracing import TRACING, has_hooks
from sween.models.cifar_resnet import BasicBlock, CifarResNet
from sween.models.normalize import Normalize

IMAGE_SHAPE = (3, 32, 32)
STAGES = 3
FIRST_CHANNELS, LAST_CHANNELS = 16, 64
"""Of the first and the last stage, for each unit of width."""

PIXELS_BEFORE_POOLING = 8

aten = torch.ops.aten


class NotRecognised(Exception):
    """Some operation has no place in a CIFAR ResNet."""


_BESIDES = "the statistics of a batch, or the places of pixels"
"""What batch norm and max pooling return besides their output."""


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


@torch.no_grad()
def as_cifar_resnet(module: nn.Module, images: torch.Tensor) -> nn.Sequential | None:
    """A `Normalize` and a `CifarResNet` that compute what the module does, or None.

    The caller has to compare their outputs: tracing sees one path through the module's code.

    Args:
        module: in evaluation mode.
        images: at least two, float32, on its device.
    """
    while type(module) is nn.DataParallel and not has_hooks(module):
        module = module.module
    if tuple(images.shape[1:]) != IMAGE_SHAPE or not _may_be(module):
        return None
    some = images[:2].clone()  # the module may work in place
    try:
        interpreter = _Interpreter(some)
        with interpreter:
            output = module(some)
        if interpreter.lost:
            return None
        if interpreter.entangled or interpreter.was_changed(output):
            found = _of_graph(_without_writes(module, images[:2].clone()), images.device)
        else:
            found = interpreter.values.get(output)  # type: ignore[no-untyped-call]
        return _rebuilt(_logits(found)).to(images.device)
    except Exception:  # the module's own code may raise anything
        return None


def _may_be(module: nn.Module) -> bool:
    """A cheap test that spares most networks the tracing: few features, and most at the end."""
    shapes = [tuple(own.shape) for own in module.parameters()]
    kernels = [shape for shape in shapes if len(shape) == 4]
    # A linear layer by its module or by its function, or a 1x1 convolution of the means.
    heads = [shape for shape in shapes if len(shape) == 2 or shape[2:] == (1, 1)]
    return any(
        all(
            inside <= most and (outside <= most or (high, wide) == (1, 1))
            for outside, inside, high, wide in kernels
        )
        and any(most in shape[:2] for shape in heads)
        for most in (LAST_CHANNELS * width for width in WIDTHS)
    )


class _Interpreter(WatchingMode):
    """Follows the images through a run of a module.

    Attributes:
        values: what tensors that are made of the images are, or why that is not known.
        entangled: whether something was changed in place that may show elsewhere, such as a weight.
        lost: whether the values are not those of the run: a weight was changed after its use, or an
            operation gave Python numbers or shapes that depend on pixels.
    """

    def __init__(self, images: torch.Tensor) -> None:
        super().__init__()
        self.values, self.entangled, self.lost = WeakTensorKeyDictionary(), False, False
        self._sharing, self._held = Sharing(), dict[int, torch.Tensor]()
        ones = torch.ones(IMAGE_SHAPE[0], device=images.device)
        self._note(images, Image(ones, 0 * ones))

    def _note(
        self, tensor: torch.Tensor, value: Expression | NotRecognised, *, written: bool = False
    ) -> None:
        self._sharing.add(tensor, written=written)
        self.values[tensor] = value

    def was_changed(self, tensor: Any) -> bool:
        """Whether something changed it that was not seen."""
        return _is_tensor(tensor) and self._sharing.was_changed(tensor)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        tensors = [own for own in _pytree.tree_leaves((args, kwargs)) if _is_tensor(own)]
        # Of what shows the images' memory nothing is known, as of a Parameter made of them.
        self.entangled |= any(
            self._sharing.was_changed(own) or (own not in self.values and self._sharing.shows(own))
            for own in tensors
        )
        written = func._schema.is_mutable
        written_as = self._sharing.without_writes(func, tensors) if written else func
        self.entangled |= written_as is None
        self.lost |= written and any(place_of(own) in self._held for own in tensors)
        if not any(own in self.values for own in tensors):
            return func(*args, **kwargs)
        value = self._value(written_as, args, kwargs)
        # Expressions keep weights, not copies of them.
        self._held |= {place_of(own): own for own in tensors if own not in self.values}
        found = func(*args, **kwargs)
        self.lost |= torch.Tag.dynamic_output_shape in func.tags or any(
            isinstance(own, bool | int | float) for own in _pytree.tree_leaves(found)
        )
        if not isinstance(value, torch.Tensor):  # or zeros of a given shape, which are a constant
            for position, own in enumerate(_pytree.tree_leaves(found)):
                if isinstance(own, torch.Tensor):
                    self._note(own, NotRecognised(_BESIDES) if position else value, written=written)
        return found

    def _value(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        def known(own: torch.Tensor) -> Any:
            return self.values.get(own, own)  # type: ignore[no-untyped-call]

        given = _pytree.tree_map_only(torch.Tensor, known, (args, kwargs))
        for own in _flat(given):
            if isinstance(own, NotRecognised):
                return own
        try:
            return _apply(func, *given)
        except Exception as error:  # of arguments that no rule expects; the module's code goes on
            return NotRecognised(f"{func}: {error}")


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _logits(value: Any) -> Logits:
    if isinstance(value, Logits):
        return value
    raise NotRecognised("its output is not that of a linear layer")


def _without_writes(module: nn.Module, images: torch.Tensor) -> fx.GraphModule:
    """A graph without operations in place, which may change what other nodes are a view of."""
    # Imported where it is used: tracing in this way brings torch's compiler, which takes seconds.
    from torch.fx.experimental.proxy_tensor import make_fx

    with TRACING:
        traced = make_fx(torch.func.functionalize(module))(images)
    traced.graph.eliminate_dead_code()
    return traced


def _of_graph(traced: fx.GraphModule, device: torch.device) -> Any:
    """The output as an expression of the input."""
    ones = torch.ones(IMAGE_SHAPE[0], device=device)
    values: dict[fx.Node, Any] = {}
    for node in traced.graph.nodes:
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
        if node.op == "placeholder":
            values[node] = Image(ones, 0 * ones)
        elif node.op == "get_attr":
            values[node] = getattr(traced, node.target)
        elif node.op == "output":
            return args[0]
        elif not any(isinstance(each, Expression) for each in _flat((args, kwargs))):
            values[node] = node.target(*args, **kwargs)  # of constants alone
        else:
            values[node] = _apply(node.target, args, kwargs)
    raise NotRecognised("no output")


def _flat(value: Any) -> list[Any]:
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, list | tuple):
        return [each for part in value for each in _flat(part)]
    return [value]


def _apply(target: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    if target is operator.getitem:
        value, place = args
        if place:
            raise NotRecognised(_BESIDES)
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
    if start or (end is not None and end < IMAGE_SHAPE[-1]):
        raise NotRecognised("a part of the pixels or channels")
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
        return _channels(part.like)
    if not isinstance(part, torch.Tensor) or bool(part.any()):
        raise NotRecognised("a concatenation with something else than zeros")
    return part.shape[1]


def _new_zeros(x: Expression, size: Sequence[int], **options: Any) -> torch.Tensor:
    """Zeros of a given shape, on the device of the activations."""
    return torch.zeros(tuple(size), dtype=options.get("dtype") or torch.float32)


def _zeros_like(x: Expression, **options: Any) -> Zero:
    _same(x, **options)
    return Zero(x)


def _channels(x: Expression) -> int:
    while not isinstance(x, Convolution):
        if isinstance(x, Subsampled):
            return _channels(x.of) + x.before + x.after
        if not isinstance(x, Relu | Sum):
            raise NotRecognised("zeros of an unknown shape")
        x = x.of if isinstance(x, Relu) else x.one
    return len(x.weight)


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
        features = _channels(x.of) if isinstance(x, Pooled) else len(x.weight)
        if rest in ([features], [-1], [features, 1, 1]):
            return x
    elif len(rest) == 2 and rest[0] == _channels(x):  # all pixels of a channel in one row
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


@dataclasses.dataclass(frozen=True)
class _Block:
    first: Convolution
    second: Convolution
    shortcut: Convolution | None


def _rebuilt(logits: Expression) -> nn.Sequential:
    assert isinstance(logits, Logits)
    blocks, rest = list[_Block](), logits.of
    while isinstance(rest, Relu) and isinstance(rest.of, Sum):
        block = _block(rest.of)
        blocks.insert(0, block)
        rest = block.first.of
    per_stage, uneven = divmod(len(blocks), STAGES)
    if not blocks or uneven or not isinstance(rest, Relu):
        raise NotRecognised(f"{len(blocks)} blocks after something else than a convolution")
    image = rest.of.of if isinstance(rest.of, Convolution) else None
    if not isinstance(image, Image):
        raise NotRecognised("no convolution of the image")
    width, uneven = divmod(_channels(rest), FIRST_CHANNELS)
    if uneven or width not in WIDTHS:
        raise NotRecognised(f"{_channels(rest)} channels of the first convolution")
    model = CifarResNet(6 * per_stage + 2, len(logits.weight), width=width).eval()
    _put(rest.of, model.conv1, model.bn1)
    for block, own in zip(blocks, [*model.stage1, *model.stage2, *model.stage3], strict=True):
        assert isinstance(own, BasicBlock)
        _put(block.first, own.conv1, own.bn1)
        _put(block.second, own.conv2, own.bn2)
        if isinstance(own.shortcut, nn.Sequential):
            _put(block.shortcut, *own.shortcut)
        elif block.shortcut is not None:
            raise NotRecognised("a convolution where the shortcut of the paper is the identity")
    _copy(model.fc.weight, logits.weight)
    _copy(model.fc.bias, logits.bias)
    if not bool((image.scale != 0).all()):
        raise NotRecognised("a channel that is not used")
    mean, std = -image.shift / image.scale, 1 / image.scale
    return nn.Sequential(Normalize(mean.tolist(), std.tolist()), model).eval()


def _block(total: Sum) -> _Block:
    """Two convolutions with a relu between them, added to a shortcut of their input."""
    for second, around in ((total.one, total.other), (total.other, total.one)):
        if not isinstance(second, Convolution) or not isinstance(second.of, Relu):
            continue
        first = second.of.of
        if isinstance(first, Convolution) and first.weight.shape[-1] == 3:
            return _Block(first, second, _shortcut(around, first.of))
    raise NotRecognised("a sum that is not a residual block")


def _shortcut(around: Expression, start: Expression) -> Convolution | None:
    """As a 1x1 convolution of the block's input, or None for the input itself."""
    if around is start:
        return None
    if isinstance(around, Convolution) and around.of is start:
        return around
    if not isinstance(around, Subsampled) or around.of is not start:
        raise NotRecognised("a shortcut from elsewhere")
    if around.steps[0] != around.steps[1]:
        raise NotRecognised("another step along rows than along columns")
    inside = _channels(start)
    total = around.before + inside + around.after
    like = _first_weight(start)
    weight = like.new_zeros(total, inside, 1, 1)
    weight[around.before : around.before + inside, :, 0, 0] = torch.eye(
        inside, dtype=like.dtype, device=like.device
    )
    return Convolution(start, weight, like.new_zeros(total), around.steps[0], 0)


def _first_weight(x: Expression) -> torch.Tensor:
    while not isinstance(x, Convolution):
        if not isinstance(x, Relu | Sum):
            raise NotRecognised("activations of no convolution")
        x = x.of if isinstance(x, Relu) else x.one
    return x.weight


def _put(found: Expression | None, conv: nn.Module, norm: nn.Module) -> None:
    """Give a layer of the rebuilt network the found weights; its batch norm only adds the bias."""
    assert isinstance(conv, nn.Conv2d)
    assert isinstance(norm, nn.BatchNorm2d)
    if not isinstance(found, Convolution):
        raise NotRecognised("no convolution where the paper's network has one")
    if (found.stride, found.padding) != (conv.stride[0], conv.padding[0]):
        raise NotRecognised("another stride or padding")
    _copy(conv.weight, found.weight)
    assert norm.running_var is not None
    norm.running_var.fill_(1 - norm.eps)  # the weight is 1, the running mean 0
    _copy(norm.bias, found.bias)


def _copy(own: torch.Tensor, found: torch.Tensor) -> None:
    if own.shape != found.shape or not math.isfinite(float(found.abs().sum())):
        raise NotRecognised(f"weights of shape {tuple(found.shape)}, not {tuple(own.shape)}")
    own.copy_(found)
