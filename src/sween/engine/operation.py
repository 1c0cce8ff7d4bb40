"""Custom operators of the engine, which torch's compiler treats as opaque calls.

`torch.library.custom_op` would do the same, but its first call imports torch's compiler. That takes
seconds, and a network whose layers all have kernels needs no compiler. They have no gradients:
asking for one is an error. Their results share no memory with their arguments.
"""

from collections.abc import Callable
from typing import Any

import torch

_LIBRARY = torch.library.Library("sween", "FRAGMENT")  # type: ignore[no-untyped-call]


def operation(function: Callable[..., Any]) -> torch._ops.OpOverload[..., Any]:
    """Register a function of tensors as `torch.ops.sween.NAME`, on every device.

    Its annotations give the operator's schema; see `fake_of` for what the compiler needs besides.
    """
    name = function.__name__
    schema = torch.library.infer_schema(function, mutates_args=())
    tags = (torch.Tag.pt2_compliant_tag,)
    _LIBRARY.define(name + schema, tags=tags)  # type: ignore[no-untyped-call]
    _LIBRARY.impl(name, function, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    torch.library.register_autograd(f"sween::{name}", _no_gradient, lib=_LIBRARY)
    found: torch._ops.OpOverload[..., Any] = getattr(torch.ops.sween, name).default
    return found


def fake_of(own: torch._ops.OpOverload[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """Decorates a function that returns empty tensors like an operator's results."""
    name = own.name()  # type: ignore[no-untyped-call]
    found: Callable[[Callable[..., Any]], Any] = torch.library.register_fake(name, lib=_LIBRARY)
    return found


def _no_gradient(*_: object) -> None:
    raise NotImplementedError("operators of sween's engine have no gradients")
