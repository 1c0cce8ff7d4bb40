"""Prepares members for very many forward passes of one shape.

A member is prepared once, before it votes: batch norm is folded into the preceding convolutions,
tensors are channels-last, the arithmetic suits the device, and on a GPU the forward pass is
compiled, or its convolutions fused by cuDNN, and captured as a CUDA graph; the paper's CIFAR
networks run there on custom kernels (`sween.engine.kernels`). The certified classifier is the
prepared one, in the arithmetic named in its records; prediction, attacks and serving must prepare
it in the same way.
"""

import contextlib
import copy
import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Self

import torch
from torch import nn

from sween.engine.cuda_graph import Forward, captured, compiled
from sween.engine.fold_batch_norm import fold_batch_norm
from sween.engine.fuse_convolutions import fuse_convolutions
from sween.engine.kernels import (
    FusedQuantizedResNet,
    FusedResNet,
    IntegerShape,
    QuantizedResNet,
    Selection,
    WideQuantizedResNet,
    WideShape,
    as_cifar_resnet,
    is_cifar_resnet,
    launcher,
    supports,
)
from sween.engine.patch_convolution import use_patches
from sween.errors import (
    ContractError,
    SweenError,
    UnknownName,
    describe_error,
    first_line,
    is_out_of_memory,
    warn_fallback,
)
from sween.models.evaluation_mode import parts_of

PRECISIONS = ("auto", "float32", "float16", "bfloat16", "int8")

COMPILE_MODES = ("fast", "max")
"""How members are compiled: `fast` starts in seconds, by cuDNN's fused convolutions, what stands
between them compiled, and no search; `max` lets torch's compiler search for the fastest kernels of
all layers, for minutes."""

DEFAULT_COMPILE_MODE = "fast"
"""On a GPU; results/certification-speed has its throughput."""

KERNEL_TOLERANCE = 0.02
"""How far outputs of the custom kernels may be from torch's in float16, relative to their range."""

SAME_OUTPUT = 1e-4
"""Rounding changes outputs by far less, in units of `class_scales`; randomness, or a module that
mixes its batch, by far more."""

_CHANGE_WITH_PLACE = {
    "float32": SAME_OUTPUT,
    "tf32": 2.5e-3,
    "float16": 2.5e-3,
    "bfloat16": 2e-2,
    "int8": 0.0,
}
"""How far an output may change with the place of its row in the batch, in units of `class_scales`:
about twice the most that was seen of float16 on an H200 (0.0012); bfloat16 has three bits less.
Sums of integers are exact."""

_CHANGE_ALLOWED = {torch.float32: 1e-2, torch.float16: 0.1, torch.bfloat16: 0.3, torch.int8: 0.3}
"""How far preparation may change outputs, relative to their range: more is not just rounding."""

ROWS_SIMULATED = 8
"""Of a batch, on which kernels in integers are compared with the exact simulation on the CPU."""


_DONE = {
    "fused": "run by custom kernels",
    "compiled": "compiled",
    "cudnn+compiled": "compiled around cuDNN's fused convolutions",
    "cudnn": "captured with cuDNN's fused convolutions",
}
"""What each way to prepare a member on a GPU does, by its name in records."""


@dataclasses.dataclass(frozen=True)
class Preparation:
    """How members are prepared.

    Attributes:
        precision: float32, float16 or bfloat16; auto is float16 on a GPU and float32 on a CPU.
            int8 is for CIFAR ResNets whose activation ranges were measured (`sween quantize`).
        compile: whether to compile, by default only on a GPU; or how, see `COMPILE_MODES`. True
            is `max` on a CPU, where there is nothing that `fast` could do. Makes no difference to
            int8.

    Example:
        >>> import torch
        >>> from sween.engine import Preparation
        >>> Preparation().describe(torch.device("cpu"))
        'float32'
        >>> Preparation("bfloat16").describe(torch.device("cuda"), "compiled")
        'bfloat16+compiled'
    """

    precision: str = "auto"
    compile: bool | str | None = None

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise UnknownName("precision", self.precision, PRECISIONS)
        if self.compile not in (None, True, False, *COMPILE_MODES):
            raise UnknownName("way to compile", str(self.compile), COMPILE_MODES)

    @classmethod
    def recorded(cls, arithmetic: str) -> Self:
        """The preparation that gave the arithmetic a record names; see `describe`."""
        name = arithmetic.partition(",")[0].partition("+")[0]
        compile: bool | str = "+" in arithmetic
        if "+cudnn" in arithmetic:
            compile = "fast"
        elif "+compiled" in arithmetic:
            compile = "max"
        return cls(name.replace("tf32", "float32"), compile)

    def dtype(self, device: torch.device) -> torch.dtype:
        name = self.precision
        if name == "auto":
            name = "float16" if device.type == "cuda" else "float32"
        dtype: torch.dtype = getattr(torch, name)
        return dtype

    def compile_mode(self, device: torch.device) -> str | None:
        """One of `COMPILE_MODES`, or None: not compiled."""
        asked = None if self.precision == "int8" else self.compile
        if device.type != "cuda":
            return "max" if asked in (True, "max") else None
        if asked is None or asked is True:
            return DEFAULT_COMPILE_MODE
        return asked or None

    def change_with_place(self, device: torch.device) -> float:
        """How far rounding may change an output with the place of its row in the batch."""
        return _CHANGE_WITH_PLACE[self.describe(device)]

    def describe(self, device: torch.device, how: str = "") -> str:
        """The arithmetic as one string for records; GPUs may round float32 products to TF32.

        Args:
            device: where the votes are computed.
            how: compiled, cudnn (its fused convolutions), cudnn+compiled, fused (custom kernels) or
                empty: each rounds at different places.
        """
        name = str(self.dtype(device)).removeprefix("torch.")
        loose = torch.backends.cudnn.allow_tf32 or torch.backends.cuda.matmul.allow_tf32
        if name == "float32" and device.type == "cuda" and loose:
            name = "tf32"
        return f"{name}+{how}" if how else name


class Member:
    """A module and its prepared form, which follows changes of parameters, buffers and modes.

    A module is prepared, and checked for mixing its batch, once per state: its submodules, their
    parameters, buffers and hooks, and their modes during evaluation. Other changes after its first
    use, such as a flag that its code reads, are not noticed.

    Args:
        module: from float32 images (rows, C, H, W) to outputs (rows, M).
        preparation: how to prepare it.
    """

    def __init__(self, module: nn.Module, preparation: Preparation) -> None:
        self.module = module
        self.preparation = preparation
        self._state: list[torch.Tensor] = []
        self._parts: list[object] = []
        self._shape: tuple[int, ...] = ()
        self._prepared: Prepared | None = None
        self._probed = dict[tuple[int, ...], bool]()

    @property
    def compiled(self) -> bool:
        """Whether the prepared form is compiled; known after `refresh`."""
        return self._ready.compiled

    @property
    def _ready(self) -> "Prepared":
        if self._prepared is None:
            raise RuntimeError("refresh the member first")
        return self._prepared

    @property
    def shared(self) -> bool:
        """Whether the prepared form changes with the module; known after `refresh`."""
        return self._ready.shared

    @property
    def fused(self) -> FusedResNet | None:
        """The prepared form, if it runs on custom kernels."""
        run = None if self._prepared is None else self._prepared.run
        return run if isinstance(run, FusedResNet) else None

    @property
    def arithmetic(self) -> str:
        """The arithmetic of the prepared form, for records; see `Preparation.describe`."""
        return self._ready.arithmetic

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        if self._prepared is None:
            self.refresh(images)
        assert self._prepared is not None
        return self._prepared.run(images)

    @torch.no_grad()
    def refresh(self, images: torch.Tensor) -> None:
        """Prepare the module, which is in evaluation mode, unless nothing changed since last time.

        Args:
            images: a batch of the only shape that will be evaluated.
        """
        if self.is_current(images.shape):
            return
        self.forget()
        # Read before preparing, so that the next call notices a change made by another thread.
        parts, tensors = _state_of(self.module)
        state = [tensor.detach().clone() for tensor in tensors]
        self._prepared = prepare(self.module, self.preparation, images)
        self._state, self._parts, self._shape = state, parts, tuple(images.shape)

    def is_current(self, shape: Sequence[int]) -> bool:
        """Whether the module is prepared in its current state, for batches of this shape."""
        if self._prepared is None or (self._prepared.compiled and tuple(shape) != self._shape):
            return False
        parts, tensors = _state_of(self.module)
        return _same_parts(parts, self._parts) and _same_tensors(tensors, self._state)

    def forget(self) -> None:
        """Drop the prepared form, its memory, and the results of the batch-mixing check."""
        self._prepared, self._state, self._parts = None, [], []
        self._probed.clear()

    def is_probed(self, shape: Sequence[int]) -> bool:
        """Whether the prepared form passed the batch-mixing check for that shape."""
        return tuple(shape) in self._probed

    def note_probed(self, shape: Sequence[int], *, by_place: bool) -> None:
        """Remember that the prepared form passed the batch-mixing check for that shape.

        `by_place` says whether it rounds a row by its place in the batch.
        """
        self._probed[tuple(shape)] = by_place

    def rounds_by_place(self, shape: Sequence[int]) -> bool:
        """Whether the batch-mixing check found that a row's place in the batch matters."""
        return self._probed.get(tuple(shape), False)


def _state_of(module: nn.Module) -> tuple[list[object], list[torch.Tensor]]:
    """What the outputs depend on: submodules with their modes and hooks, and all of their tensors.

    Submodules are compared too, since one without tensors can be replaced by another.
    """
    parts, tensors = list[object](), list[torch.Tensor]()
    for part in parts_of(module):
        parts += (part, part.training)
        parts += part._forward_pre_hooks.values()
        parts += part._forward_hooks.values()
        tensors += [own for own in part._parameters.values() if own is not None]
        tensors += [own for own in part._buffers.values() if own is not None]
    return parts, tensors


def _same_parts(now: list[object], then: list[object]) -> bool:
    return len(now) == len(then) and all(map(operator.is_, now, then))


def _same_tensors(now: list[torch.Tensor], then: list[torch.Tensor]) -> bool:
    # `torch.equal` raises for tensors on two devices, and ignores the dtype.
    return len(now) == len(then) and all(
        own.dtype == other.dtype and own.device == other.device and torch.equal(own, other)
        for own, other in zip(now, then, strict=True)
    )


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A prepared forward pass.

    Attributes:
        run: the pass.
        compiled: whether it was compiled.
        arithmetic: for records.
        shared: whether it uses the module's own parameters, so that it changes with them.
    """

    run: Forward
    compiled: bool
    arithmetic: str
    shared: bool = False


@torch.no_grad()
def prepare(module: nn.Module, preparation: Preparation, images: torch.Tensor) -> Prepared:
    """The module prepared as far as possible; each step that fails is skipped with a warning.

    Args:
        module: in evaluation mode.
        preparation: how to prepare it.
        images: a batch of the only shape that will be evaluated.
    """
    device, dtype = images.device, preparation.dtype(images.device)
    with explain_model_errors(module, images.shape[1:]):
        wanted = module(images)
    _refuse_random(wanted, module(images))
    if dtype == torch.int8:
        return _in_integers(module, preparation, images, wanted)
    allowed = _CHANGE_ALLOWED[dtype]
    folded = fold_batch_norm(module)
    ready = InArithmetic(folded, device, dtype)
    change = _change(ready(images), wanted)
    if not change <= allowed:
        folded = module
        ready = InArithmetic(folded, device, dtype)
        change = _change(ready(images), wanted)
        if dtype != torch.float32:
            _refuse_change(change, dtype)
    plain = Prepared(ready, False, preparation.describe(device), ready.shared)
    mode = preparation.compile_mode(device)
    if mode is None:
        return plain
    same = _same_in_float32(device, change)
    ways: dict[str, Callable[[], Forward]] = {"compiled": lambda: compiled(ready, images)}
    if mode == "fast":
        ways = _by_cudnn(folded, dtype, images, wanted, same)
    if dtype == torch.float16 and supports(device):
        resnet = _as_resnet(module, folded, images, wanted, same)
        if resnet is not None:
            ways = {"fused": lambda: FusedResNet(resnet, launcher(device)), **ways}
    for how, make in ways.items():
        try:
            run = make()
            change = _change(run(images), wanted)
            if not change <= allowed:
                raise RuntimeError(f"its outputs differ by {change:.2g} of their range")
            if isinstance(run, FusedResNet):
                _check_kernels(run, ready, images)
            shared = ready.shared and how != "fused"
            return Prepared(run, True, preparation.describe(device, how), shared)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # compilers fail in many ways, and all of them mean: fall back
            refuse_broken_device(error)
            warn_fallback(f"the model cannot be {_DONE[how]}", error)
    return plain


def _refuse_change(change: float, dtype: torch.dtype) -> None:
    allowed = _CHANGE_ALLOWED[dtype]
    if not change <= allowed:
        raise ContractError(
            "model",
            expected=f"outputs in {str(dtype).removeprefix('torch.')} that differ from those "
            f"in its own arithmetic by at most {allowed:g} of their range",
            got=f"{change:.2g}",
            fix="use float32 precision; turn off dropout and anything else that is random",
        )


def _in_integers(
    module: nn.Module, preparation: Preparation, images: torch.Tensor, wanted: torch.Tensor
) -> Prepared:
    """A CIFAR ResNet in 8-bit integers; no other form computes the same."""
    device, few = images.device, images[:ROWS_SIMULATED]
    network = QuantizedResNet(_with_ranges(module, images.shape[1:]))
    simulated = network(few.cpu()).to(device)
    # Bytes would hide what is not finite.
    finite = bool(torch.isfinite(wanted).all())
    _refuse_change(_change(simulated, wanted[: len(few)]) if finite else math.inf, torch.int8)
    wide = network.width > 1
    shape = WideShape(width=network.width) if wide else IntegerShape()
    if device.type == "cpu" and not supports(device, shape):
        return Prepared(network, False, preparation.describe(device))
    try:
        if not supports(device, shape):
            raise RuntimeError(f"no custom kernels for {device}")
        kind = WideQuantizedResNet if wide else FusedQuantizedResNet
        run = kind(network, launcher(device, shape), device)
        if not torch.equal(run(few), simulated):
            raise RuntimeError("outputs that differ from those of the exact simulation")
        _check_order(run, images)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # compilers fail in many ways
        refuse_broken_device(error)
        raise ContractError(
            "precision int8",
            expected="a device that runs its kernels",
            got=describe_error(error),
            fix="use float16 precision",
        ) from error
    return Prepared(run, True, preparation.describe(device, "fused"))


def _with_ranges(module: nn.Module, image_shape: Sequence[int]) -> nn.Module:
    """The module, if it can run in integers."""
    got, fix = f"{type(module).__name__} for {tuple(image_shape)} images", "use another precision"
    if is_cifar_resnet(module, image_shape, wide=True):
        ranges = module.state_dict().get("1.activation_ranges")
        if ranges is not None and bool((ranges > 0).all() & ranges.isfinite().all()):
            return module
        got = "no ranges" if ranges is None else f"ranges {ranges.min():.3g} to {ranges.max():.3g}"
        fix = "measure them with sween quantize"
    expected = "a registered CIFAR ResNet with its activation ranges"
    raise ContractError("precision int8", expected=expected, got=got, fix=fix)


def _same_in_float32(device: torch.device, change: float) -> float:
    """How far the outputs of the same network, written differently, may be apart in float32.

    By default torch lets GPUs round the products of a convolution to TF32, which is as coarse as
    float16: two ways to compute a deep network then differ by about as much as float16 does.

    Args:
        device: where they are computed.
        change: that of the network's arithmetic.
    """
    strict = _CHANGE_ALLOWED[torch.float32]
    if device.type != "cuda" or not torch.backends.cudnn.allow_tf32:
        return strict
    return max(strict, min(2 * change, _CHANGE_ALLOWED[torch.float16]))


def _by_cudnn(
    folded: nn.Module, dtype: torch.dtype, images: torch.Tensor, wanted: torch.Tensor, same: float
) -> dict[str, Callable[[], Forward]]:
    """The module with fused convolutions in its arithmetic: the rest compiled, or not."""

    @functools.cache
    def ready() -> InArithmetic:
        fused = fuse_convolutions(folded)
        # In float32, where the change allowed is small: tracing may have misread the module's code.
        change = _change(fused(images), wanted)
        if not change <= same:
            raise RuntimeError(f"its fused outputs differ by {change:.2g} of their range")
        ready = _without_autocast(fused, dtype, images, wanted)
        ready = ready or InArithmetic(fused, images.device, dtype)
        if not ready.shared:
            use_patches(ready)
            for part in ready.modules():
                if isinstance(part, nn.Conv2d):
                    weight = part.weight.contiguous(memory_format=torch.channels_last)
                    part.weight.data = weight
        return ready

    ways: dict[str, Callable[[], Forward]] = {"cudnn": lambda: captured(ready(), images)}
    if images.device.type == "cuda":
        compile = functools.partial(compiled, search=False)
        ways = {"cudnn+compiled": lambda: compile(ready(), images), **ways}
    return ways


def _without_autocast(
    module: nn.Module, dtype: torch.dtype, images: torch.Tensor, wanted: torch.Tensor
) -> "InArithmetic | None":
    """All layers in this arithmetic, so that none of them moves float32; None if that fails."""
    try:
        ready = InArithmetic(module, images.device, dtype, whole=True)
        return ready if _change(ready(images), wanted) <= _CHANGE_ALLOWED[dtype] else None
    except Exception as error:  # its code may make tensors of another type
        refuse_broken_device(error)
        return None


def _as_resnet(
    module: nn.Module, folded: nn.Module, images: torch.Tensor, wanted: torch.Tensor, same: float
) -> nn.Module | None:
    """The module, or a network that computes the same, if the custom kernels can run it."""
    if is_cifar_resnet(module, images.shape[1:]):
        return module
    found = as_cifar_resnet(folded, images)  # folded, since tracing takes time for every tensor
    if found is None or not _change(found(images), wanted) <= same:
        return None
    return found


@contextlib.contextmanager
def explain_model_errors(module: nn.Module, image_shape: Sequence[int]) -> Iterator[None]:
    """Report in one line what a module raises in the block, except for errors of the device."""
    try:
        yield
    except SweenError:
        raise
    except Exception as error:  # a user's module may raise anything
        if is_out_of_memory(error):
            raise
        refuse_broken_device(error)
        kinds = {tensor.dtype for tensor in _state_of(module)[1] if tensor.is_floating_point()}
        other = sorted(str(kind).removeprefix("torch.") for kind in kinds - {torch.float32})
        shape = ", ".join(str(size) for size in image_shape)
        if other:
            raise ContractError(
                "model",
                expected="float32 parameters, since its images are float32",
                got=f"{', '.join(other)} ({first_line(error)})",
                fix="pass model.float(); `precision` chooses the arithmetic of the votes",
            ) from error
        raise ContractError(
            "model",
            expected=f"a forward pass over float32 images (N, {shape})",
            got=describe_error(error),
            fix="call model(images) on such a batch yourself to see where it fails",
        ) from error


def _check_kernels(run: FusedResNet, plain: Forward, images: torch.Tensor) -> None:
    """Refuse custom kernels whose outputs are wrong, for example because of a race.

    The arithmetic is the same but for the order of sums, so the outputs must be close to torch's.
    """
    outputs, wanted = _check_order(run, images), plain(images)
    spread = float(wanted.max() - wanted.min())
    difference = float((outputs - wanted).abs().max())
    if difference > KERNEL_TOLERANCE * spread:
        raise RuntimeError(f"its outputs differ from torch's by {_share(difference, spread):.2g} "
                           "of their range")  # fmt: skip


def _check_order(run: FusedResNet, images: torch.Tensor) -> torch.Tensor:
    """The outputs of custom kernels.

    They must not change at all from call to call or with an image's position in the batch.
    """
    outputs = run(images)
    if not torch.equal(run(images), outputs) or not torch.equal(
        run(images.flip(0)).flip(0), outputs
    ):
        raise RuntimeError("its outputs change from call to call or with the order of the batch")
    some = torch.arange(len(images), device=images.device) % 3 == 1
    selected = run.selected(images, Selection.of(some), at_once=len(images))
    if not torch.equal(selected, outputs * some[:, None]):
        raise RuntimeError("its outputs for a selection of images differ from those for all")
    return outputs


def refuse_broken_device(error: Exception) -> None:
    """Re-raise errors that mean the device is out of memory or no longer usable."""
    said = str(error).lower()
    if "out of memory" in said:
        raise torch.OutOfMemoryError(str(error)) from None
    if any(
        word in said for word in ("illegal memory access", "misaligned address", "launch failure")
    ):
        raise error


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


def class_scales(outputs: torch.Tensor) -> torch.Tensor:
    """By how much each class's output (B, M) varies, relative to its row's largest output: (M,).

    Class by class, since a single large constant output, such as that of a masked class, would make
    any other difference look small. The shares of the magnitudes allow for rounding where outputs
    hardly vary, or where one class always leads.
    """
    behind = outputs - outputs.amax(dim=1, keepdim=True)
    ranges = behind.amax(dim=0) - behind.amin(dim=0)
    return ranges + 0.1 * behind.abs().amax(dim=0) + 0.01 * outputs.abs().amax(dim=0)


def largest_difference(outputs: torch.Tensor, wanted: torch.Tensor, scales: torch.Tensor) -> float:
    """The largest difference between two outputs (B, M), in units of `class_scales`; NaN if any."""
    behind, wanted_behind = (own - own.amax(dim=1, keepdim=True) for own in (outputs, wanted))
    difference = (behind - wanted_behind).abs()
    return float(torch.where(difference == 0, 0.0, difference / scales).max())


class InArithmetic(nn.Module):
    """A copy of a module in a given arithmetic: float32 images in, float32 outputs out.

    A copy, so that changing the module while votes are counted does not change them. One that
    cannot be copied is used itself, in float32.

    Args:
        module: to copy.
        device: it is on.
        dtype: of convolutions and linear layers, and of other layers as far as autocast uses it.
        whole: of all layers and activations, without autocast.

    Attributes:
        shared: whether it is the module itself.
    """

    def __init__(
        self, module: nn.Module, device: torch.device, dtype: torch.dtype, *, whole: bool = False
    ) -> None:
        super().__init__()
        self.device_type, self.dtype, self.shared = device.type, dtype, False
        try:
            module = copy.deepcopy(module)
        except Exception:  # a user's module may hold anything, such as a lock
            if dtype != torch.float32:
                raise
            self.shared = True
        self.whole = whole and dtype != torch.float32
        if self.whole:
            module.to(dtype)
        elif dtype != torch.float32:
            for part in module.modules():
                if isinstance(part, nn.Linear | nn.modules.conv._ConvNd):
                    part.to(dtype)  # once, whereas autocast would convert at every pass
        self.module = module
        self.channels_last = any(isinstance(part, nn.Conv2d) for part in module.modules())

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if self.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        if self.whole:
            images = images.to(self.dtype)
        reduced = self.dtype != torch.float32 and not self.whole
        if reduced or torch.is_autocast_enabled(self.device_type):
            with torch.autocast(self.device_type, dtype=self.dtype, enabled=reduced):
                outputs = self.module(images)
        else:
            outputs = self.module(images)
        return outputs.float() if isinstance(outputs, torch.Tensor) else outputs


def _change(outputs: object, wanted: object) -> float:
    """The largest difference between two outputs, relative to the range of `wanted`."""
    if not isinstance(outputs, torch.Tensor) or not isinstance(wanted, torch.Tensor):
        return 0.0  # such outputs are refused later, with a better message
    if outputs.shape != wanted.shape:
        return math.inf
    if not torch.isfinite(wanted).all():
        return 0.0
    return _share(float((outputs - wanted).abs().max()), float(wanted.max() - wanted.min()))


def _share(difference: float, spread: float) -> float:
    """difference / spread; any difference of outputs without a range is infinitely large."""
    if spread:
        return difference / spread
    return difference and math.inf
