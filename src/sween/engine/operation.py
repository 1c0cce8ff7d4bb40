"""Custom operators of the engine, which torch's compiler treats as opaque calls.

`torch.library.custom_op` would do the same, but its first call imports torch's compiler. That takes
seconds, and a network whose layers all have kernels needs no compiler. They have no gradients:
asking for one is an error. Their results share no memory with their arguments.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch._library.custom_ops import get_library_allowing_overwrite

_LIBRARIES = dict[str, torch.library.Library]()
"""Of each operator its own, which a module that is imported again replaces."""


def operation(function: Callable[..., Any]) -> torch._ops.OpOverload[..., Any]:
    """Register a function of tensors as `torch.ops.sween.NAME`, on every device.

    Its annotations give the operator's schema; see `fake_of` for what the compiler needs besides.
    """
    name = function.__name__
    schema = torch.library.infer_schema(function, mutates_args=())
    tags = (torch.Tag.pt2_compliant_tag,)
    library = _LIBRARIES[f"sween::{name}"] = get_library_allowing_overwrite("sween", name)
    library.define(name + schema, tags=tags)  # type: ignore[no-untyped-call]
    library.impl(name, function, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    torch.library.register_autograd(f"sween::{name}", _no_gradient, lib=library)
    found: torch._ops.OpOverload[..., Any] = getattr(torch.ops.sween, name).default
    return found


def fake_of(own: torch._ops.OpOverload[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """Decorates a function that returns empty tensors like an operator's results."""
    name = own.name()  # type: ignore[no-untyped-call]
    library = _LIBRARIES[name]
    found: Callable[[Callable[..., Any]], Any] = torch.library.register_fake(name, lib=library)
    return found


def _no_gradient(*_: object) -> None:
    raise NotImplementedError("operators of sween's engine have no gradients")
