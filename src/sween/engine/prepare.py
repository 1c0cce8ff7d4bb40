"""Prepares members for very many forward passes of one shape.

A member is prepared once, before it votes: batch norm is folded into the preceding convolutions,
tensors are channels-last, the arithmetic suits the device, and on a GPU the forward pass is
compiled, or its convolutions fused by cuDNN, and captured as a CUDA graph; the paper's CIFAR
networks run there on custom kernels (`sween.engine.kernels`). The certified classifier is the
prepared one, in the arithmetic named in its records; prediction, attacks and serving must prepare
it in the same way.
"""

import copy
import dataclasses
import functools
from collections.abc import Callable

import torch
from torch import nn

from sween.engine.after_images import captured_after_images
from sween.engine.arithmetic import InArithmetic
from sween.engine.check_kernels import check_kernels
from sween.engine.cuda_graph import Forward, captured, compiled
from sween.engine.differences import (
    CHANGE_ALLOWED,
    SAME_OUTPUT,
    class_scales,
    largest_difference,
    refuse_change,
    relative_change,
)
from sween.engine.fold_batch_norm import fold_batch_norm
from sween.engine.fuse_layers import KERNELS, fuse_layers, is_all_fused
from sween.engine.in_integers import in_integers
from sween.engine.inspection import A_COPY_DIFFERS, OTHERS, inspect_module, is_compiled
from sween.engine.kernels import (
    WIDTHS,
    FusedResNet,
    as_cifar_resnet,
    is_cifar_resnet,
    launcher,
    shape_for,
    supports,
)
from sween.engine.leftovers import refuse_first_images, refuse_leftovers, run_on_few
from sween.engine.model_errors import explain_model_errors, refuse_broken_device
from sween.engine.module_itself import Exclusive, OneAtATime, lock_of
from sween.engine.patch_convolution import use_patches
from sween.engine.preparation import Preparation
from sween.engine.prepared import Prepared
from sween.engine.same_operations import is_read_rightly, is_same_in_any_layout
from sween.engine.tf32 import without_tf32
from sween.errors import (
    ContractError,
    describe_error,
    is_out_of_memory,
    warn_contract,
    warn_fallback,
)
from sween.precision import WAYS

ROWS_COMPARED = 256
"""Of a batch, on which the module is called twice, and forms of it are compared with it, some in
full float32, which is slow on a GPU; the outputs of the form that votes are compared on all."""

ROWS_ONE_AT_A_TIME = 32
"""Of a batch, on which a module is prepared that is given one image at a time."""


@torch.no_grad()
def prepare(module: nn.Module, preparation: Preparation, images: torch.Tensor) -> Prepared:
    """The module prepared as far as possible; each step that fails is skipped with a warning.

    Args:
        module: in evaluation mode.
        preparation: how to prepare it.
        images: a batch of the only shape that will be evaluated.
    """
    with lock_of(module):
        return _prepare(module, preparation, images)


def _prepare(module: nn.Module, preparation: Preparation, images: torch.Tensor) -> Prepared:
    new = _unused_copy(module)
    with explain_model_errors(module, images.shape[1:]):
        wanted = module(images.clone())  # it may work in place
    copies, reads_values = inspect_module(module, images)
    dtype, original = preparation.dtype(images.device), module
    if reads_values:
        _warn_of_reads()
        module, preparation = OneAtATime(module), dataclasses.replace(preparation, compile=False)
        images = images[:ROWS_ONE_AT_A_TIME]
        with explain_model_errors(module, images.shape[1:]):
            wanted = module(images.clone())
    if not copies:
        prepared: Prepared | None = _itself(module, preparation, images, wanted)
    else:
        prepared = _prepared(module, preparation, images, wanted)
        if prepared is None:  # not in an `except`, whose frames keep the memory of what failed
            plain = dataclasses.replace(preparation, compile=False)
            prepared = _prepared(module, plain, images, wanted)
    assert prepared is not None  # it is not compiled
    if dtype == torch.int8:  # a network of sween's own, another function than the module
        return prepared
    with explain_model_errors(module, images.shape[1:]):
        refuse_leftovers(
            module,
            prepared.run,
            prepared.form,
            images,
            wanted,
            dtype=dtype,
            any_number=not prepared.compiled,
        )
        if copies and new is not None:
            refuse_first_images(original, new, images)
    return dataclasses.replace(prepared, one_at_a_time=reads_values)


def _unused_copy(module: nn.Module) -> nn.Module | None:
    """A copy from before the first run; None if there is none."""
    try:
        return None if is_compiled(module) else copy.deepcopy(module)
    except Exception:  # a user's module may hold anything, such as a lock
        return None


def _warn_of_reads() -> None:
    warn_contract(
        "model",
        expected="code that treats each image of a batch by itself",
        got="code that reads the values of pixels, as `if x.max() > 1` or an assertion does; so it "
        "is given its images one at a time, which is slow",
        fix="write it with operations on tensors, such as torch.where with a maximum over each "
        "image",
    )


def _prepared(
    module: nn.Module, preparation: Preparation, images: torch.Tensor, wanted: torch.Tensor
) -> Prepared | None:
    """See `prepare`; None if no compiled form works. `wanted` are the module's outputs."""
    device, dtype = images.device, preparation.dtype(images.device)
    mode = preparation.compile_mode(device)
    # Without a compiled form, what is compared now is what votes.
    few, first = (images, wanted) if mode is None else _on_few(module, images, wanted)
    _refuse_random(first, module(few.clone()))
    if dtype == torch.int8:
        return in_integers(module, preparation, images, wanted)
    allowed = CHANGE_ALLOWED[dtype]
    folded = fold_batch_norm(module)
    read = (folded is not module or mode == "fast") and is_read_rightly(module, few)
    folded = folded if read else module
    # Runs replace what a hook may have kept while the module was traced, which cannot be copied.
    run_on_few(module, images)

    @functools.cache
    def any_layout() -> bool:
        # What torch.fx read is the same in any layout; the module itself need not be. Only
        # convolutions are faster in channels-last layout.
        if not any(isinstance(part, nn.Conv2d) for part in module.modules()):
            return False
        same = is_same_in_any_layout(module, few)
        run_on_few(module, images)
        return same

    # In another arithmetic a network that folding changed could pass for rounding.
    traced = folded is not module
    if traced and dtype != torch.float32 and not _computes_the_same(folded, module, images):
        folded = module
    # Calls that compute several layers at once come first: where all of them run in the arithmetic,
    # nothing else has to, and libraries take seconds to find kernels for single layers.
    fuse = functools.partial(
        _fused, module, folded, dtype, images, (few, first), any_layout, read=read
    )
    fused = fuse() if mode == "fast" else None
    plain: InArithmetic | None = None
    if fused is None:
        plain, folded = _plain(module, folded, dtype, few, first, any_layout)
    rewritten = folded is not module
    if mode is None:
        assert plain is not None
        arithmetic = preparation.describe(device)
        alone: Forward = Exclusive(plain, module) if plain.shared else plain
        return Prepared(alone, False, arithmetic, plain.shared, rewritten, plain)
    if mode == "fast":
        ready = fused or fuse(autocast=True)
        assert ready is not None
        ways = _by_libraries(ready, images)
    else:
        assert plain is not None
        ready, ways = plain, {"compiled": functools.partial(compiled, plain, images)}
    if dtype == torch.float16 and supports(device):
        # Not of code that reads the values of pixels, or depends on their layout.
        resnet = _as_resnet(module, folded, images) if read or any_layout() else None
        if resnet is not None and supports(device, shape := shape_for(resnet)):
            ways = {"fused": lambda: FusedResNet(resnet, launcher(device, shape)), **ways}
    for how, make in ways.items():
        try:
            run = make()
            change = relative_change(run(images), wanted)
            if not change <= allowed:
                raise RuntimeError(f"its outputs differ by {change:.2g} of their range")
            if isinstance(run, FusedResNet):
                plain = plain or _plain(module, folded, dtype, few, first, any_layout)[0]
                check_kernels(run, plain, images)
            shared = ready.shared and how != "fused"
            form = ready if how != "fused" else None
            return Prepared(run, True, preparation.describe(device, how), shared, rewritten, form)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # compilers fail in many ways, and all of them mean: fall back
            refuse_broken_device(error)
            warn_fallback(f"the model cannot be {WAYS[how]}", error)
    return None


def _itself(
    module: nn.Module, preparation: Preparation, images: torch.Tensor, wanted: torch.Tensor
) -> Prepared:
    """A module of which a copy computes something else, in its own arithmetic alone."""
    dtype = preparation.dtype(images.device)
    if dtype != torch.float32:
        raise ContractError(
            "model",
            expected="a module that can be copied, to vote in another arithmetic than its own",
            got=A_COPY_DIFFERS,
            fix="keep what layers share in their arguments, or use float32 precision",
        )
    _refuse_random(wanted, module(images.clone()))
    plain = InArithmetic(module, images.device, dtype, copied=False, channels_last=False)
    arithmetic = preparation.describe(images.device)
    return Prepared(Exclusive(plain, module), False, arithmetic, shared=True, form=plain)


def _plain(
    module: nn.Module,
    folded: nn.Module,
    dtype: torch.dtype,
    images: torch.Tensor,
    wanted: torch.Tensor,
    any_layout: Callable[[], bool],
) -> tuple[InArithmetic, nn.Module]:
    """The folded module in this arithmetic, or the module itself where folding changes too much.

    Also which of the two it is. A module that cannot run in this arithmetic is refused.
    `any_layout` is whether the module itself may be given channels-last images.
    """
    make = functools.partial(_in_arithmetic, dtype=dtype, images=images, wanted=wanted)
    ready, change = make(folded, channels_last=folded is not module or any_layout())
    if not change <= CHANGE_ALLOWED[dtype]:
        folded = module
        ready, change = make(folded, channels_last=any_layout())
        if dtype != torch.float32:
            refuse_change(change, dtype)
    return ready, folded


def _in_arithmetic(
    module: nn.Module,
    dtype: torch.dtype,
    images: torch.Tensor,
    wanted: torch.Tensor,
    *,
    channels_last: bool,
) -> tuple[InArithmetic, float]:
    """The module in this arithmetic, and how far that changes its outputs."""
    try:
        ready = InArithmetic(module, images.device, dtype, channels_last=channels_last)
        change = relative_change(ready.settle(images), wanted)
        if not change <= CHANGE_ALLOWED[dtype] and ready.channels_last:
            # Code that reads memory in its own order, as `as_strided` does, raises no error.
            ready.channels_last = False
            change = relative_change(ready(images), wanted)
        return ready, change
    except Exception as error:  # a user's module may raise anything
        if dtype == torch.float32 or is_out_of_memory(error):
            raise
        refuse_broken_device(error)
        raise ContractError(
            "model",
            expected=f"a forward pass in {str(dtype).removeprefix('torch.')}",
            got=describe_error(error),
            fix="use float32 precision",
        ) from error


def _computes_the_same(form: nn.Module, module: nn.Module, images: torch.Tensor) -> bool:
    """Whether a network written differently computes what the module does, on some of the images.

    In float32, where the change allowed is small: by default torch lets GPUs round the products of
    a convolution to TF32, which is as coarse as float16.
    """
    with without_tf32():
        few, wanted = _on_few(module, images)
        try:
            found = form(few.clone())
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # what was traced may not run
            refuse_broken_device(error)
            return False
    return relative_change(found, wanted) <= CHANGE_ALLOWED[torch.float32]


def _on_few(
    module: nn.Module, images: torch.Tensor, wanted: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The first images and the module's outputs for them; all if its code fixes their number.

    `wanted` are the outputs for all images, if they are known.
    """
    few = images[:ROWS_COMPARED]
    if wanted is not None and len(few) == len(images):
        return images, wanted
    try:
        return few, module(few.clone())
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # a user's module may raise anything
        refuse_broken_device(error)
        return images, module(images.clone()) if wanted is None else wanted


def _fused(
    module: nn.Module,
    folded: nn.Module,
    dtype: torch.dtype,
    images: torch.Tensor,
    compared: tuple[torch.Tensor, torch.Tensor],
    any_layout: Callable[[], bool],
    *,
    read: bool,
    autocast: bool = False,
) -> InArithmetic | None:
    """The module with fused layers in its arithmetic.

    Args:
        module: the original.
        folded: what is fused.
        dtype: of the arithmetic.
        images: a batch of the shape that votes.
        compared: a few images and the module's outputs for them.
        any_layout: whether the module itself may be given channels-last images.
        read: whether torch.fx reads the module rightly; otherwise nothing is fused.
        autocast: where some layers do not run in this arithmetic, leave that to autocast; otherwise
            None is returned.
    """
    fused = fuse_layers(folded) if read else module
    if fused is not module and not _computes_the_same(fused, module, images):
        fused = folded
    for part in fused.modules():
        if isinstance(part, KERNELS):
            part.let_run(images, dtype)
    channels_last = fused is not module or any_layout()
    ready = _without_autocast(fused, dtype, *compared, channels_last=channels_last)
    if ready is None:
        if not autocast:
            return None
        ready = InArithmetic(fused, images.device, dtype, channels_last=channels_last)
        ready.settle(compared[0])
    if not ready.shared and ready.channels_last:
        use_patches(ready)
        for part in ready.modules():
            if isinstance(part, nn.Conv2d):
                weight = part.weight.contiguous(memory_format=torch.channels_last)
                part.weight.data = weight
    return ready


def _by_libraries(ready: InArithmetic, images: torch.Tensor) -> dict[str, Callable[[], Forward]]:
    """Ways to run a module with fused layers: the rest compiled, or not."""

    def capture() -> Forward:
        return captured_after_images(ready, images) or captured(ready, images)

    ways: dict[str, Callable[[], Forward]] = {"cudnn": capture}
    # Otherwise kernels do not read some tensors, in float32 or in another order, and torch's run.
    convolves = any(isinstance(part, nn.Conv2d) for part in ready.modules())
    by_kernels = ready.whole and ready.channels_last == convolves
    if images.device.type == "cuda" and not (by_kernels and is_all_fused(ready.module)):
        compile = functools.partial(compiled, search=False)
        ways = {"cudnn+compiled": lambda: compile(ready, images), **ways}
    return ways


def _without_autocast(
    module: nn.Module,
    dtype: torch.dtype,
    images: torch.Tensor,
    wanted: torch.Tensor,
    *,
    channels_last: bool = True,
) -> "InArithmetic | None":
    """All layers in this arithmetic, so that none of them moves float32; None if that fails."""
    try:
        ready = InArithmetic(module, images.device, dtype, whole=True, channels_last=channels_last)
        change = relative_change(ready.settle(images), wanted)
        return ready if change <= CHANGE_ALLOWED[dtype] else None
    except Exception as error:  # its code may make tensors of another type
        if is_out_of_memory(error):
            raise
        refuse_broken_device(error)
        return None


def _as_resnet(module: nn.Module, folded: nn.Module, images: torch.Tensor) -> nn.Module | None:
    """The module, or a network that computes the same, if the custom kernels can run it."""
    if is_cifar_resnet(module, images.shape[1:], widths=WIDTHS):
        return module
    # Folded, since tracing takes time for every tensor.
    found = as_cifar_resnet(folded, images.clone())
    if found is None or not _computes_the_same(found, module, images):
        return None
    # Recognising follows one run: darker and brighter images may go another way.
    for change in (OTHERS[0], OTHERS[-1]):
        try:
            if not _computes_the_same(found, module, change(images[:ROWS_COMPARED])):
                return None
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # the module's code may refuse such images
            refuse_broken_device(error)
    return found


def _refuse_random(first: object, second: object) -> None:
    """Refuse a module whose outputs for one batch change from call to call.

    Tracing would freeze its random draws and make it look deterministic.
    """
    if not isinstance(first, torch.Tensor) or not isinstance(second, torch.Tensor):
        return  # refused later, with a better message
    if first.ndim != 2 or first.shape != second.shape or not torch.isfinite(first).all():
        return
    difference = largest_difference(second, first, class_scales(first))
    if not difference <= SAME_OUTPUT:
        raise ContractError(
            "model",
            expected="the same outputs each time it sees a batch",
            got=f"outputs that change by {difference:.2g} of their range",
            fix="put dropout in evaluation mode and turn off anything else that is random",
        )
