"""The backends that may run a member: custom kernels, libraries, torch's compiler.

Each is offered under the name that records have for it, one of `sween.precision.WAYS`, as a
function that sets it up, which may fail. `prepare` compares its outputs with the module's.
"""

import functools
from collections.abc import Callable

import torch
from torch import nn

from sween.engine.after_images import captured_after_images
from sween.engine.arithmetic import InArithmetic
from sween.engine.cuda_graph import Forward, captured, compiled
from sween.engine.fuse_layers import is_all_fused
from sween.engine.inspection import OTHERS
from sween.engine.kernels import (
    WIDTHS,
    FusedResNet,
    as_cifar_resnet,
    is_cifar_resnet,
    launcher,
    shape_for,
    supports,
)
from sween.engine.model_errors import refuse_broken_device
from sween.engine.same_outputs import ROWS_COMPARED, computes_the_same

Backends = dict[str, Callable[[], Forward]]


def by_custom_kernels(
    module: nn.Module,
    folded: nn.Module,
    dtype: torch.dtype,
    images: torch.Tensor,
    any_layout: Callable[[], bool],
    *,
    read: bool,
) -> Backends:
    """Custom kernels, for CIFAR ResNets; none for others.

    Args:
        module: the original.
        folded: the same with batch norm folded, or the original.
        dtype: of the arithmetic.
        images: a batch of the shape that votes.
        any_layout: whether the module itself may be given channels-last images.
        read: whether torch.fx reads the module rightly.
    """
    device = images.device
    if dtype != torch.float16 or not supports(device):
        return {}
    # Not of code that reads the values of pixels, or depends on their layout.
    resnet = _as_resnet(module, folded, images) if read or any_layout() else None
    if resnet is None or not supports(device, shape := shape_for(resnet)):
        return {}
    return {"fused": lambda: FusedResNet(resnet, launcher(device, shape))}


def _as_resnet(module: nn.Module, folded: nn.Module, images: torch.Tensor) -> nn.Module | None:
    """The module, or a network that computes the same, if the custom kernels can run it."""
    if is_cifar_resnet(module, images.shape[1:], widths=WIDTHS):
        return module
    # Folded, since tracing takes time for every tensor.
    found = as_cifar_resnet(folded, images.clone())
    if found is None or not computes_the_same(found, module, images):
        return None
    # Recognising follows one run: darker and brighter images may go another way.
    for change in (OTHERS[0], OTHERS[-1]):
        try:
            if not computes_the_same(found, module, change(images[:ROWS_COMPARED])):
                return None
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # the module's code may refuse such images
            refuse_broken_device(error)
    return found


def by_libraries(ready: InArithmetic, images: torch.Tensor) -> Backends:
    """Ways to run a module with fused layers: the rest compiled, or not."""

    def capture() -> Forward:
        return captured_after_images(ready, images) or captured(ready, images)

    ways: Backends = {"cudnn": capture}
    # Otherwise kernels do not read some tensors, in float32 or in another order, and torch's run.
    convolves = any(isinstance(part, nn.Conv2d) for part in ready.modules())
    by_kernels = ready.whole and ready.channels_last == convolves
    if images.device.type == "cuda" and not (by_kernels and is_all_fused(ready.module)):
        compile = functools.partial(compiled, search=False)
        ways = {"cudnn+compiled": lambda: compile(ready, images), **ways}
    return ways


def by_compiler(ready: InArithmetic, images: torch.Tensor) -> Backends:
    """All layers compiled, with a search for kernels."""
    return {"compiled": functools.partial(compiled, ready, images)}
