"""Prepares members for very many forward passes of one shape.

A member is prepared once, before it votes: batch norm is folded into the preceding convolutions,
tensors are channels-last, the arithmetic suits the device, and on a GPU the forward pass is
compiled, or its convolutions fused by cuDNN, and captured as a CUDA graph; the paper's CIFAR
networks run there on custom kernels (`sween.engine.kernels`). The certified classifier is the
prepared one, in the arithmetic named in its records; prediction, attacks and serving must prepare
it in the same way.

Here is the order of the steps. `forms.py` puts the module into its arithmetic, `backends.py` has
what may run the result, and `same_outputs.py` compares what was rewritten with the module.
"""

import copy
import dataclasses
import functools

import torch
from torch import nn

from sween.engine.arithmetic import InArithmetic
from sween.engine.backends import by_compiler, by_custom_kernels, by_libraries
from sween.engine.check_kernels import check_kernels
from sween.engine.cuda_graph import Forward
from sween.engine.differences import CHANGE_ALLOWED, relative_change
from sween.engine.fold_batch_norm import fold_batch_norm
from sween.engine.forms import fused_form, plain_form
from sween.engine.in_integers import in_integers
from sween.engine.inspection import A_COPY_DIFFERS, inspect_module, is_compiled
from sween.engine.kernels import FusedResNet
from sween.engine.leftovers import refuse_first_images, refuse_leftovers, run_on_few
from sween.engine.model_errors import explain_model_errors, refuse_broken_device
from sween.engine.module_itself import Exclusive, OneAtATime, lock_of
from sween.engine.preparation import Preparation
from sween.engine.prepared import Prepared
from sween.engine.same_operations import is_read_rightly, is_same_in_any_layout
from sween.engine.same_outputs import computes_the_same, on_few, refuse_random
from sween.errors import ContractError, warn_contract, warn_fallback
from sween.precision import WAYS

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
        got="code that reads the values of pixels, as `if x.max() > 1` or an assertion does, or "
        "that cannot be followed; so it is given its images one at a time, which is slow",
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
    few, first = (images, wanted) if mode is None else on_few(module, images, wanted)
    refuse_random(first, module(few.clone()))
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
    if traced and dtype != torch.float32 and not computes_the_same(folded, module, images):
        folded = module
    # Calls that compute several layers at once come first: where all of them run in the arithmetic,
    # nothing else has to, and libraries take seconds to find kernels for single layers.
    fuse = functools.partial(
        fused_form, module, folded, dtype, images, (few, first), any_layout, read=read
    )
    fused = fuse() if mode == "fast" else None
    plain: InArithmetic | None = None
    if fused is None:
        plain, folded = plain_form(module, folded, dtype, few, first, any_layout)
    rewritten = folded is not module
    if mode is None:
        assert plain is not None
        arithmetic = preparation.describe(device)
        alone: Forward = Exclusive(plain, module) if plain.shared else plain
        return Prepared(alone, False, arithmetic, plain.shared, rewritten, plain)
    if mode == "fast":
        ready = fused or fuse(autocast=True)
        assert ready is not None
        backends = by_libraries(ready, images)
    else:
        assert plain is not None
        ready, backends = plain, by_compiler(plain, images)
    kernels = by_custom_kernels(module, folded, dtype, images, any_layout, read=read)
    for how, make in {**kernels, **backends}.items():
        try:
            run = make()
            change = relative_change(run(images), wanted)
            if not change <= allowed:
                raise RuntimeError(f"its outputs differ by {change:.2g} of their range")
            if isinstance(run, FusedResNet):
                plain = plain or plain_form(module, folded, dtype, few, first, any_layout)[0]
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
    refuse_random(wanted, module(images.clone()))
    plain = InArithmetic(module, images.device, dtype, copied=False, channels_last=False)
    arithmetic = preparation.describe(images.device)
    return Prepared(Exclusive(plain, module), False, arithmetic, shared=True, form=plain)
