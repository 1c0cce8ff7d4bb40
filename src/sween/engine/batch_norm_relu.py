"""relu(batch norm(x + shortcut)) and x + shortcut by one kernel, where it can run.

Networks that normalise before their convolutions, such as wide ResNets, have batch norms that
cannot be folded into a convolution: the sum before them is also the next block's shortcut.
"""

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, Protocol, Self

import torch
from torch import fx, nn
from torch.nn import functional

from sween.cuda import Argument, can_compile, compile_kernel, read_source
from sween.cuda.compiler import COMPILING
from sween.engine.layer_kernels import agrees, moved
from sween.engine.operation import fake_of, operation
from sween.engine.tracing import (
    SUMS,
    SUMS_IN_PLACE,
    add_part,
    has_hooks,
    is_relu,
    may_write,
)

FILES = ("convolution.cu", "batch_norm_relu.cu")
THREADS = 256
PLANE = 8
"""Channels that a thread has."""

BLOCKS = 132 * 8
"""About so many are launched, where there is work for them."""

COMPARED = (2, 9, 7)
"""Images, and their height and width, on which the kernel is compared with torch."""


class Launch(Protocol):
    """Runs the kernel, with or without a shortcut."""

    def __call__(self, shortcut: bool, blocks: int, arguments: Sequence[Argument]) -> None: ...


class _Launcher:
    def __call__(self, shortcut: bool, blocks: int, arguments: Sequence[Argument]) -> None:
        device = next(each.device for each in arguments if isinstance(each, torch.Tensor))
        with torch.cuda.device(device):
            self._compiled(shortcut, torch.cuda.current_device())(
                grid=(blocks, 1, 1), block=(THREADS, 1, 1), args=list(arguments)
            )

    @functools.cache  # noqa: B019  # there is one launcher
    def _compiled(self, shortcut: bool, device_index: int) -> Any:
        with COMPILING:
            source = read_source("sween.engine", FILES)
            return compile_kernel(source, "batch_norm_relu", definitions(shortcut=shortcut))


launch: Launch = _Launcher()


def definitions(*, shortcut: bool) -> list[str]:
    """Compiler options."""
    return ["-DSHORTCUT"] if shortcut else []


class BatchNormRelu(nn.Module):
    """x + shortcut and relu(norm(x + shortcut)), or x and relu(norm(x)).

    Args:
        norm: in evaluation mode; not changed. See `suits`.

    Attributes:
        by_kernel: whether the kernel computes it where it can; see `let_run`.
    """

    def __init__(self, norm: nn.BatchNorm2d) -> None:
        super().__init__()
        self.norm, self.by_kernel = norm, False
        assert norm.running_mean is not None
        assert norm.running_var is not None
        factor = (norm.running_var.detach().double() + norm.eps).rsqrt()
        if norm.weight is not None:
            factor = factor * norm.weight.detach()
        summand = -norm.running_mean.detach().double() * factor
        if norm.bias is not None:
            summand = summand + norm.bias.detach()
        # No buffer, which a network in float16 would round.
        self.affine = torch.stack([factor, summand]).float()

    def forward(
        self, x: torch.Tensor, shortcut: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if self.by_kernel and _fit(x, shortcut):
            return self._by_kernel(x, shortcut)
        total = x if shortcut is None else x + shortcut
        return total, functional.relu(self.norm(total))

    def _by_kernel(
        self, x: torch.Tensor, shortcut: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if shortcut is None:
            return x, batch_norm_relu(x, self.affine)
        total, out = add_batch_norm_relu(x, shortcut, self.affine)
        return total, out

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        self.affine = moved(self.affine, fn)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def let_run(self, images: torch.Tensor, dtype: torch.dtype) -> None:
        """Let the kernel compute it if it can; if it is wrong, with a warning.

        Args:
            images: on the network's device.
            dtype: of the network, which is still in float32.
        """
        channels = self.norm.num_features
        if dtype != torch.float16 or channels % PLANE or not can_compile(images.device):
            return
        count, *size = COMPARED
        generator = torch.Generator().manual_seed(0)
        # Around the mean of each channel, so that relu cuts off about half.
        mean, var = self.norm.running_mean, self.norm.running_var
        assert mean is not None
        assert var is not None
        some = torch.randn(2, count, channels, *size, generator=generator).to(images.device)
        some = some * (var[:, None, None] / 2).sqrt() + mean[:, None, None] / 2
        x, y = (own.half().contiguous(memory_format=torch.channels_last) for own in some)
        for shortcut in (None, y):
            other = None if shortcut is None else shortcut.float()

            def by_kernel(shortcut: torch.Tensor | None = shortcut) -> torch.Tensor:
                return torch.cat(self._by_kernel(x, shortcut))

            def by_torch(shortcut: torch.Tensor | None = other) -> torch.Tensor:
                return torch.cat(self(x.float(), shortcut))

            if not agrees(by_kernel, by_torch, "batch norm with relu"):
                return
        self.by_kernel = True


def _fit(x: torch.Tensor, shortcut: torch.Tensor | None) -> bool:
    """Whether the kernel can read the tensors, which are alike."""
    tensors = [x] if shortcut is None else [x, shortcut]
    return (
        x.ndim == 4
        and x.shape[1] % PLANE == 0
        and 0 < x.numel() < 2**31
        and all(own.shape == x.shape and own.dtype == torch.float16 for own in tensors)
        and all(own.is_contiguous(memory_format=torch.channels_last) for own in tensors)
    )


def _compute(
    x: torch.Tensor, shortcut: torch.Tensor | None, affine: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    if not _fit(x, shortcut) or affine.shape != (2, x.shape[1]):
        raise ValueError(f"not float16, channels-last and of 8 n channels: {x.shape}")
    total = x if shortcut is None else torch.empty_like(x)
    out = torch.empty_like(x)
    planes = x.shape[1] // PLANE
    every = x.numel() // PLANE
    # A multiple of the planes, so that a thread always has the same channels.
    blocks = planes * -(-min(BLOCKS, -(-every // THREADS)) // planes)
    others = [x if shortcut is None else shortcut, affine, total, out]
    launch(shortcut is not None, blocks, [x, *others, planes, every, blocks * THREADS])
    return total, out


@operation
def batch_norm_relu(x: torch.Tensor, affine: torch.Tensor) -> torch.Tensor:
    """relu(factor * x + summand).

    Args:
        x: float16 (N, C, H, W), channels-last, C a multiple of 8.
        affine: factors and summands of the channels, float32 (2, C).
    """
    return _compute(x, None, affine)[1]


@fake_of(batch_norm_relu)
def _like(x: torch.Tensor, affine: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@operation
def add_batch_norm_relu(
    x: torch.Tensor, shortcut: torch.Tensor, affine: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """x + shortcut and relu(factor * (x + shortcut) + summand); see `batch_norm_relu`."""
    return _compute(x, shortcut, affine)


@fake_of(add_batch_norm_relu)
def _alike(
    x: torch.Tensor, shortcut: torch.Tensor, affine: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(x), torch.empty_like(x)


def fuse_batch_norms(traced: fx.GraphModule) -> int:
    """Fuse batch norms with the sums before and the relus after them; returns how many."""
    parts, found = dict(traced.named_modules()), 0
    for norm in list(traced.graph.nodes):
        part = parts.get(str(norm.target)) if norm.op == "call_module" else None
        if type(part) is not nn.BatchNorm2d or not suits(part) or [*norm.kwargs]:
            continue
        (relu, *others), (x,) = [*norm.users] or [None], norm.args
        if relu is None or others or not is_relu(relu, parts) or not isinstance(x, fx.Node):
            continue
        addends = _addends(x, norm, parts)
        name = add_part(traced, parts, f"_batch_norm_relu_{found}", BatchNormRelu(part))
        with traced.graph.inserting_after(norm):
            both = traced.graph.call_module(name, addends or (x,))
        with traced.graph.inserting_after(both):
            out = traced.graph.call_function(operator.getitem, (both, 1))
        relu.replace_all_uses_with(out)
        traced.graph.erase_node(relu)
        traced.graph.erase_node(norm)
        if addends is not None:
            with traced.graph.inserting_after(both):
                total = traced.graph.call_function(operator.getitem, (both, 0))
            x.replace_all_uses_with(total)
            traced.graph.erase_node(x)
            if not total.users:
                traced.graph.erase_node(total)
        found += 1
    return found


def suits(norm: nn.BatchNorm2d) -> bool:
    """Whether a batch norm has fixed statistics and nothing else runs when it is called."""
    fixed = norm.running_mean is not None and norm.running_var is not None
    return fixed and not norm.training and not has_hooks(norm)


def _addends(
    total: fx.Node, norm: fx.Node, parts: dict[str, nn.Module]
) -> tuple[fx.Node, fx.Node] | None:
    """The two tensors whose sum a batch norm reads, if it can be computed in its place."""
    if total.op not in ("call_function", "call_method") or total.kwargs or len(total.args) != 2:
        return None
    one, other = total.args
    if not isinstance(one, fx.Node) or not isinstance(other, fx.Node):
        return None
    # In place, the sum would be where others read the first of them.
    in_place = total.target in SUMS_IN_PLACE and [*one.users] == [total]
    if not in_place and total.target not in SUMS:
        return None
    node = total.next
    while node is not norm:
        if node in total.users or may_write(node, parts):
            return None
        node = node.next
    return one, other
