"""Layer norm over the last axis by one kernel, where it can run.

torch's kernel takes four to twelve times as long as reading and writing the rows would: the rows of
vision transformers and of ConvNeXt are short.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Self

import torch
from torch import fx, nn
from torch.nn import functional

from sween.cuda import can_compile
from sween.engine.layer_kernels import FormLauncher, agrees, moved
from sween.engine.operation import fake_of, operation
from sween.engine.tracing import add_part, constant_of, has_hooks, only_called, replace_part

FILES = ("convolution.cu", "layer_norm.cu")
THREADS, WARPS = 256, 8
LANES, VECTOR = 32, 4
MOST_CHANNELS = 1536
NUMBERS = 32
"""Of the rows of a warp that a lane has, about."""

ROWS_COMPARED = 70


class Form(NamedTuple):
    """Compile-time parameters of the kernel.

    Attributes:
        channels: of a row.
        per_lane: vectors of a row that a lane has.
        rows: of a warp.
    """

    channels: int
    per_lane: int
    rows: int

    def definitions(self) -> list[str]:
        """Compiler options."""
        numbers = {"CHANNELS": self.channels, "PER_LANE": self.per_lane, "ROWS": self.rows}
        return [f"-D{name}={number}" for name, number in numbers.items()]


def form_for(channels: int) -> Form:
    per_lane = -(-channels // (LANES * VECTOR))
    return Form(channels, per_lane, max(1, min(4, NUMBERS // (VECTOR * per_lane))))


launch = FormLauncher(FILES, "layer_norm", THREADS)


class KernelLayerNorm(nn.Module):
    """norm(x).

    Args:
        norm: one that `suits`; not changed.

    Attributes:
        by_kernel: whether the kernel computes it where it can; see `let_run`.
    """

    def __init__(self, norm: nn.LayerNorm) -> None:
        super().__init__()
        self.norm, self.by_kernel = norm, False
        (channels,) = norm.normalized_shape
        like = torch.ones(channels) if norm.weight is None else norm.weight.detach().float()
        bias = torch.zeros_like(like) if norm.bias is None else norm.bias.detach().float()
        # No buffers, which a network in float16 would round.
        self.affine = torch.stack([like, bias])
        self.epsilon = torch.full((1,), norm.eps, device=like.device)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.by_kernel and _fits(x, self.affine.shape[1]):
            return self._by_kernel(x)
        out: torch.Tensor = self.norm(x)
        return out

    def _by_kernel(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = layer_norm(x, self.affine, self.epsilon)
        return out

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        self.affine, self.epsilon = moved(self.affine, fn), moved(self.epsilon, fn)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def let_run(self, images: torch.Tensor, dtype: torch.dtype) -> None:
        """Let the kernel compute it if it can; if it is wrong, with a warning.

        Args:
            images: on the network's device.
            dtype: of the network, which is still in float32.
        """
        if dtype != torch.float16 or not can_compile(images.device):
            return
        generator = torch.Generator().manual_seed(0)
        some = torch.randn(ROWS_COMPARED, self.affine.shape[1], generator=generator) + 0.5
        x = some.to(images.device).half()
        # Without parameters the layer is on no device.
        self.affine, self.epsilon = (own.to(x.device) for own in (self.affine, self.epsilon))
        self.by_kernel = agrees(
            lambda: self._by_kernel(x), lambda: self.norm(x.float()), "layer norm"
        )


def _fits(x: torch.Tensor, channels: int) -> bool:
    """Whether the kernel can read a batch."""
    return (
        x.dtype == torch.float16
        and x.shape[-1] == channels
        and 0 < x.numel() < 2**31
        and x.is_contiguous()
    )


@operation
def layer_norm(x: torch.Tensor, affine: torch.Tensor, epsilon: torch.Tensor) -> torch.Tensor:
    """Layer norm over the last axis.

    Args:
        x: float16 (..., C), contiguous.
        affine: float32 (2, C), factors and summands.
        epsilon: float32 (1,), added to the variance.
    """
    channels = affine.shape[-1]
    if channels % VECTOR or channels > MOST_CHANNELS or not _fits(x, channels):
        raise ValueError(f"not float16 rows of {channels} numbers: {x.shape}")
    if affine.shape != (2, channels) or affine.dtype != torch.float32 or len(epsilon) != 1:
        raise ValueError(f"not float32 numbers of {channels} channels: {affine.shape}")
    if x.data_ptr() % (2 * VECTOR):  # a view that begins in between
        x = x.clone()
    form, out = form_for(channels), torch.empty_like(x)
    rows = x.numel() // channels
    launch(form, -(-rows // (WARPS * form.rows)), [x, affine.contiguous(), epsilon, out, rows])
    return out


@fake_of(layer_norm)
def _like(x: torch.Tensor, affine: torch.Tensor, epsilon: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def suits(part: nn.Module | None) -> bool:
    """Whether the kernel can compute a module."""
    # The exact type: a subclass may do something else with its weight.
    if type(part) is not nn.LayerNorm or has_hooks(part) or len(part.normalized_shape) != 1:
        return False
    (channels,) = part.normalized_shape
    return channels % VECTOR == 0 and channels <= MOST_CHANNELS


def fuse_layer_norms(traced: fx.GraphModule) -> int:
    """Replace layer norms of a traced network; returns how many.

    Also those that a subclass computes by torch's function of its parameters.
    """
    parts, replaced = dict(traced.named_modules()), 0
    for name in only_called(traced):
        norm = parts[name]
        if suits(norm):
            assert isinstance(norm, nn.LayerNorm)
            replace_part(traced, name, KernelLayerNorm(norm))
            replaced += 1
    for node in list(traced.graph.nodes):
        own = _by_function(traced, node)
        if own is None:
            continue
        name = add_part(traced, parts, f"layer_norm_{replaced}", KernelLayerNorm(own))
        replaced += 1
        inputs = node.all_input_nodes
        with traced.graph.inserting_after(node):
            call = traced.graph.call_module(name, (inputs[0],))
        node.replace_all_uses_with(call)
        traced.graph.erase_node(node)
        for constant in inputs[1:]:
            if not constant.users:
                traced.graph.erase_node(constant)
    return replaced


def _by_function(traced: fx.GraphModule, node: fx.Node) -> nn.LayerNorm | None:
    """The layer norm that a call of torch's function computes, if the kernel can."""
    if node.op != "call_function" or node.target is not functional.layer_norm:
        return None
    names = ("input", "normalized_shape", "weight", "bias", "eps")
    given: dict[str, Any] = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    shape, eps = given.get("normalized_shape"), given.get("eps", 1e-5)
    if not isinstance(shape, list | tuple) or len(shape) != 1 or type(shape[0]) is not int:
        return None
    of = given.get("input")
    if not isinstance(of, fx.Node) or of.op == "get_attr" or not isinstance(eps, float):
        return None
    norm = nn.LayerNorm(shape[0], eps=eps, elementwise_affine=False)
    for name in ("weight", "bias"):
        if given.get(name) is None:
            continue
        value = constant_of(traced, given[name])
        if value is None or value.shape != (shape[0],):
            return None
        setattr(norm, name, nn.Parameter(value.clone(), requires_grad=False))
    return norm.eval() if suits(norm) else None
