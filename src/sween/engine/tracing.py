"""Tracing a module, under one lock for the process-wide state that torch keeps meanwhile.

torch.fx patches `nn.Module` and sets a flag while it traces. Two simultaneous traces would undo
each other's patch, and a compiled function called from another thread while the flag is set refuses
to run. So every trace and every call of a compiled function holds this lock until the call is
queued or compiled.
"""

import collections
import operator
import threading
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional
from torch.nn.modules import module as torch_module

TRACING = threading.RLock()


def compile_locked(
    function: Callable[..., torch.Tensor], options: dict[str, Any] | None = None
) -> Callable[..., torch.Tensor]:
    """`torch.compile` for one shape; calls hold the lock."""
    compiled = torch.compile(function, dynamic=False, options=options)

    def locked(*tensors: torch.Tensor) -> torch.Tensor:
        with TRACING:
            return compiled(*tensors)

    return locked


class _OneThreadTracer(fx.Tracer):
    """Traces a module in one thread while other threads may evaluate theirs.

    Tracing patches `nn.Module` for the whole process, so forward passes of other threads come
    through here too.
    """

    def __init__(self) -> None:
        super().__init__()
        self._thread = threading.get_ident()

    @property
    def _elsewhere(self) -> bool:
        return threading.get_ident() != self._thread

    def call_module(
        self,
        m: nn.Module,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        if self._elsewhere:
            return forward(*args, **kwargs)
        return super().call_module(m, forward, args, kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        if self._elsewhere:
            return attr_val
        return super().getattr(attr, attr_val, parameter_proxy_cache)


def trace(module: nn.Module) -> fx.GraphModule:
    """The operations of a module as a graph; raises whatever its code raises when traced.

    Hooks of the module and of its containers are traced too; layers of torch keep theirs. Layers
    that pass their input on, as dropout does in evaluation mode, are left out. `view` becomes
    `reshape`: the same numbers, for tensors in channels-last layout too. The graph may be another
    function than the module, see `same_operations.py`.
    """
    if has_hooks(module):
        module = _Caller(module)
    with TRACING:
        graph = _OneThreadTracer().trace(module)
    parts = dict(module.named_modules())
    for node in list(graph.nodes):
        if node.op == "call_module" and len(node.args) == 1 and _passes_on(parts[node.target]):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
        elif node.op == "call_method" and node.target == "view" and not _views_type(node):
            node.target = "reshape"
    return fx.GraphModule(module, graph)


def _views_type(node: fx.Node) -> bool:
    """Whether `view` is asked for the same bytes as another type, not for another shape."""
    given = (*node.args[1:], *node.kwargs.values())
    return any(isinstance(own, torch.dtype) for own in given)


class _Caller(nn.Module):
    """Calls a module: torch.fx reads the code of the outermost module and leaves out its hooks."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, images: torch.Tensor) -> Any:
        return self.module(images)


def _passes_on(part: nn.Module) -> bool:
    idle = type(part) is nn.Identity or (
        isinstance(part, nn.modules.dropout._DropoutNd)
        and type(part).__module__ == nn.Dropout.__module__  # a subclass may do something else
        and not part.training
    )
    return idle and not has_hooks(part)


def has_hooks(part: nn.Module) -> bool:
    """Whether something else than the code of its class, or of torch, runs when it is called.

    torch can also register hooks for all modules of the process.
    """
    of_all = torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks
    return has_own_hooks(part) or bool(of_all) or _is_patched(type(part))


def _is_patched(kind: type[nn.Module]) -> bool:
    """Whether code of another library has been put into a class of torch, as for quantisation."""
    if not kind.__module__.startswith("torch.nn."):
        return False
    methods = (getattr(kind, name, None) for name in ("forward", "_conv_forward", "__call__"))
    return any(
        not str(getattr(own, "__module__", None)).startswith("torch.") for own in methods if own
    )


def has_own_hooks(part: nn.Module) -> bool:
    """Whether a module has hooks, or a method, such as `forward`, in the place of its class's.

    torch's older weight norm and spectral norm are such hooks.
    """
    replaced = any(callable(own) and hasattr(type(part), name) for name, own in vars(part).items())
    return bool(part._forward_hooks or part._forward_pre_hooks or replaced)


def count_uses(traced: fx.GraphModule) -> collections.Counter[str]:
    """By a module's dotted name: how often it is called or one of its tensors read by itself.

    torch.fx does not look into layers of torch, such as DataParallel: a call of one is a use of
    everything in it, which the network may also call by itself.
    """
    nodes, uses = list(traced.graph.nodes), collections.Counter[int]()
    for node in nodes:
        if node.op == "call_module":
            uses.update(map(id, traced.get_submodule(str(node.target)).modules()))
    owners = [str(node.target).rpartition(".")[0] for node in nodes if node.op == "get_attr"]
    uses.update(id(traced.get_submodule(owner)) for owner in owners)
    named = traced.named_modules(remove_duplicate=False)
    return collections.Counter({name: uses[id(part)] for name, part in named})


_RELUS = (functional.relu, torch.relu, torch.relu_, functional.relu_, "relu", "relu_")


def is_relu(node: fx.Node, parts: Mapping[str, nn.Module]) -> bool:
    """Whether a node of a traced graph is a relu of another node."""
    if not node.args or not isinstance(node.args[0], fx.Node):
        return False
    if node.op == "call_module":
        part = parts[str(node.target)]
        return type(part) is nn.ReLU and not has_hooks(part)
    known: tuple[Callable[..., Any] | str, ...] = _RELUS
    return node.op in ("call_function", "call_method") and node.target in known


_IN_PLACE = ("setitem", "iadd", "isub", "imul", "itruediv")
"""Functions of `operator` that change their first argument."""


def may_write(node: fx.Node, parts: Mapping[str, nn.Module]) -> bool:
    """Whether a node of a traced graph may write to its inputs.

    Args:
        node: of the graph.
        parts: the graph's modules by name; those of torch and of sween write only where they say.
    """
    if node.op == "call_module":
        part = parts[str(node.target)]
        known = type(part).__module__.startswith(("torch.nn.", "sween."))
        return not known or bool(getattr(part, "inplace", False))
    if node.op not in ("call_function", "call_method"):
        return False
    name = node.target if isinstance(node.target, str) else node.target.__name__
    # `inplace` may be given by its position, as in relu(x, True).
    flagged = any(own is True for own in (*node.args, node.kwargs.get("inplace")))
    return name.endswith("_") or name in _IN_PLACE or flagged or "out" in node.kwargs


def may_change_between(
    first: fx.Node, last: fx.Node, parts: Mapping[str, nn.Module], *, besides: fx.Node | None = None
) -> bool:
    """Whether a node between two others may write in place, so that the first cannot move there.

    Args:
        first: of the graph.
        last: after it.
        parts: see `may_write`.
        besides: a node between them that does not count.
    """
    node = first.next
    while node is not last:
        if node is not besides and may_write(node, parts):
            return True
        node = node.next
    return False


SUMS = (operator.add, torch.add, "add")
SUMS_IN_PLACE = (operator.iadd, "add_")


def summands(node: fx.Node) -> list[tuple[fx.Node, fx.Node]]:
    """The two tensors that a node adds, in each order in which the first may be replaced.

    A sum in place has one order: in the other it would change what others may read.
    """
    if node.op not in ("call_function", "call_method") or node.kwargs or len(node.args) != 2:
        return []
    one, other = node.args
    if not isinstance(one, fx.Node) or not isinstance(other, fx.Node) or one is other:
        return []
    if node.target in SUMS:
        return [(one, other), (other, one)]
    return [(one, other)] if node.target in SUMS_IN_PLACE else []


def add_part(
    traced: fx.GraphModule, parts: dict[str, nn.Module], name: str, part: nn.Module
) -> str:
    """Add a module to a traced network, and to `parts`, its modules by name.

    Returns:
        Where it is: by that name, or a longer one if the network has something of that name.
    """
    while hasattr(traced, name):
        name += "_"
    traced.add_submodule(name, part)
    parts[name] = part
    return name


def constant_of(traced: fx.GraphModule, node: object) -> torch.Tensor | None:
    """The tensor of the network that a node reads; None for other nodes."""
    if not isinstance(node, fx.Node) or node.op != "get_attr":
        return None
    path, _, name = str(node.target).rpartition(".")
    value = getattr(traced.get_submodule(path), name)
    return value.detach() if isinstance(value, torch.Tensor) else None


def only_called(traced: fx.GraphModule) -> list[str]:
    """Dotted names of the modules that are called with one input, and nothing else is done with."""
    calls = [node for node in traced.graph.nodes if node.op == "call_module"]
    plain = collections.Counter(
        str(node.target) for node in calls if len(node.args) == 1 and not node.kwargs
    )
    uses = count_uses(traced)
    return [name for name, count in plain.items() if uses[name] == count]


def replace_part(traced: fx.GraphModule, name: str, part: nn.Module) -> None:
    """Put a module in the place of the one of this dotted name."""
    parent, _, own = name.rpartition(".")
    setattr(traced.get_submodule(parent), own, part)
