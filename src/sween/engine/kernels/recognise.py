"""Recognises CIFAR ResNets by what they compute, whoever wrote their code.

A module is run on two images and followed down to torch's own operations. If these are an affine
map of the pixels (or none), a convolution, 3n residual blocks of 3x3 convolutions with 16, 32 and
64 channels, or two or three times as many, mean pooling and a linear layer (or a 1x1 convolution of
the means), the network is rebuilt as a `CifarResNet` with the same weights, which the custom
kernels run. Batch norm, biases, and shortcuts by a 1x1 convolution or by dropping pixels and
padding channels (option A) all become convolutions with a bias; a batch norm of the pixels becomes
their normalisation.

Here the run is followed. `aten_rules.py` has what each operation gives, as an expression of the
images (`resnet_expressions.py`); `rebuild_resnet.py` builds the network from that of the logits.
"""

from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree
from torch.utils.weak import WeakTensorKeyDictionary

from sween.engine.dispatch_mode import WatchingMode
from sween.engine.in_place import Sharing, place_of
from sween.engine.kernels.aten_rules import OTHER_RESULTS, apply_rule
from sween.engine.kernels.cifar_resnet import IMAGE_SHAPE, WIDTHS
from sween.engine.kernels.rebuild_resnet import LAST_CHANNELS, rebuilt
from sween.engine.kernels.resnet_expressions import Expression, Image, Logits, NotRecognised
from sween.engine.model_errors import refuse_broken_device
from sween.engine.tracing import TRACING, has_hooks


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
        return rebuilt(_logits(found)).to(images.device)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # the module's own code may raise anything
        refuse_broken_device(error)
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
                    self._note(
                        own, NotRecognised(OTHER_RESULTS) if position else value, written=written
                    )
        return found

    def _value(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        def known(own: torch.Tensor) -> Any:
            return self.values.get(own, own)  # type: ignore[no-untyped-call]

        given = _pytree.tree_map_only(torch.Tensor, known, (args, kwargs))
        for own in _flat(given):
            if isinstance(own, NotRecognised):
                return own
        try:
            return apply_rule(func, *given)
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
            values[node] = apply_rule(node.target, args, kwargs)
    raise NotRecognised("no output")


def _flat(value: Any) -> list[Any]:
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, list | tuple):
        return [each for part in value for each in _flat(part)]
    return [value]
