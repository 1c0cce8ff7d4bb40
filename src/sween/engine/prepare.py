"""Members made ready for very many forward passes of one shape.

A member is prepared once, before it votes: batch norm folded into the convolutions before it,
channels-last, the arithmetic chosen for the device, and on a GPU compiled and recorded as a CUDA
graph; the paper's CIFAR networks run there by custom kernels (`sween.engine.kernels`). The
certified classifier is the prepared one, in the arithmetic that the record names; what predicts,
attacks or serves must be prepared in the same way.
"""

import contextlib
import copy
import dataclasses
import operator
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import nn

from sween.engine.cuda_graph import Forward, compiled
from sween.engine.fold_batch_norm import fold_batch_norm
from sween.engine.kernels import FusedResNet, Selection, is_cifar_resnet, launcher, supports
from sween.errors import ContractError, SweenError, UnknownName, go_on_without
from sween.models.device import is_out_of_memory, parts_of

PRECISIONS = ("auto", "float32", "float16", "bfloat16")

KERNELS_APART = 0.02
"""How far outputs of our own kernels may be from torch's in float16, in parts of their range."""

_CHANGE_ALLOWED = {torch.float32: 1e-2, torch.float16: 0.1, torch.bfloat16: 0.3}
"""How far outputs may move by preparation, in parts of their range: beyond is no rounding."""


@dataclasses.dataclass(frozen=True)
class Preparation:
    """How members are made ready.

    Attributes:
        precision: float32, float16 or bfloat16; auto is float16 on a GPU and float32 on a CPU.
        compile: whether to compile; on a GPU by default.
    """

    precision: str = "auto"
    compile: bool | None = None

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise UnknownName("precision", self.precision, PRECISIONS)

    def dtype(self, device: torch.device) -> torch.dtype:
        name = self.precision
        if name == "auto":
            name = "float16" if device.type == "cuda" else "float32"
        dtype: torch.dtype = getattr(torch, name)
        return dtype

    def compiles(self, device: torch.device) -> bool:
        return device.type == "cuda" if self.compile is None else self.compile

    def describe(self, device: torch.device, how: str = "") -> str:
        """The arithmetic as one string for records; GPUs may round float32 products to TF32.

        Args:
            device: where.
            how: compiled, fused (kernels of our own) or nothing: each rounds in its own places.
        """
        name = str(self.dtype(device)).removeprefix("torch.")
        loose = torch.backends.cudnn.allow_tf32 or torch.backends.cuda.matmul.allow_tf32
        if name == "float32" and device.type == "cuda" and loose:
            name = "tf32"
        return f"{name}+{how}" if how else name


class Member:
    """A module and its prepared form, which follows changes of parameters, buffers and modes.

    A module is prepared, and probed for mixing its batch, once for each state: its parts, their
    parameters, buffers and hooks, and the modes that they have in evaluation. Other changes after
    its first use, such as a flag that its code reads, are not seen.

    Args:
        module: from float32 images (rows, C, H, W) to outputs (rows, M).
        preparation: how to make it ready.
    """

    def __init__(self, module: nn.Module, preparation: Preparation) -> None:
        self.module = module
        self.preparation = preparation
        self._state: list[torch.Tensor] = []
        self._parts: list[object] = []
        self._shape: tuple[int, ...] = ()
        self._prepared: Prepared | None = None
        self._probed = set[tuple[int, ...]]()

    @property
    def compiled(self) -> bool:
        """Whether it could be compiled; known once it is refreshed."""
        return self._ready.compiled

    @property
    def _ready(self) -> "Prepared":
        if self._prepared is None:
            raise RuntimeError("refresh the member first")
        return self._prepared

    @property
    def fused(self) -> FusedResNet | None:
        """The prepared form, where there is one that runs by kernels of our own."""
        run = None if self._prepared is None else self._prepared.run
        return run if isinstance(run, FusedResNet) else None

    @property
    def arithmetic(self) -> str:
        """What the prepared module computes in, for records; see `Preparation.describe`."""
        return self._ready.arithmetic

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        if self._prepared is None:
            self.refresh(images)
        assert self._prepared is not None
        return self._prepared.run(images)

    @torch.no_grad()
    def refresh(self, images: torch.Tensor) -> None:
        """Prepare the module, in evaluation mode, unless it is as it was the last time.

        Args:
            images: a batch of the one shape that will be evaluated.
        """
        if self.is_current(images.shape):
            return
        self.forget()
        # Noted before: what changes meanwhile, in another thread, is then seen by the next call.
        parts, tensors = _state_of(self.module)
        state = [tensor.detach().clone() for tensor in tensors]
        self._prepared = prepare(self.module, self.preparation, images)
        self._state, self._parts, self._shape = state, parts, tuple(images.shape)

    def is_current(self, shape: Sequence[int]) -> bool:
        """Whether there is a prepared form, of the module's present state, for such batches."""
        if self._prepared is None or (self._prepared.compiled and tuple(shape) != self._shape):
            return False
        parts, tensors = _state_of(self.module)
        return _same_parts(parts, self._parts) and _same_tensors(tensors, self._state)

    def forget(self) -> None:
        """Drop the prepared form, its memory, and what was learnt by probing it."""
        self._prepared, self._state, self._parts = None, [], []
        self._probed.clear()

    def is_probed(self, shape: Sequence[int]) -> bool:
        """Whether the prepared form was found not to mix batches of that shape."""
        return tuple(shape) in self._probed

    def note_probed(self, shape: Sequence[int]) -> None:
        """Remember that the prepared form does not mix batches of that shape."""
        self._probed.add(tuple(shape))


def _state_of(module: nn.Module) -> tuple[list[object], list[torch.Tensor]]:
    """What the outputs depend on: parts with their modes and hooks, and the tensors of all parts.

    One part may be exchanged for another without tensors.
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
    # `torch.equal` raises for two devices, and compares across types.
    return len(now) == len(then) and all(
        own.dtype == other.dtype and own.device == other.device and torch.equal(own, other)
        for own, other in zip(now, then, strict=True)
    )


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A forward pass made ready, whether kernels were made for it, and its arithmetic."""

    run: Forward
    compiled: bool
    arithmetic: str


@torch.no_grad()
def prepare(module: nn.Module, preparation: Preparation, images: torch.Tensor) -> Prepared:
    """The module made ready as far as it can be; what cannot be done is left out with a warning.

    Args:
        module: in evaluation mode.
        preparation: how.
        images: a batch of the one shape that will be evaluated.
    """
    device, dtype = images.device, preparation.dtype(images.device)
    with explained(module, images.shape[1:]):
        wanted = module(images)
    _refuse_random(wanted, module(images))
    ready = InArithmetic(fold_batch_norm(module), device, dtype)
    if not _close(ready(images), wanted, dtype):
        ready = InArithmetic(module, device, dtype)
        if dtype != torch.float32 and not _close(ready(images), wanted, dtype):
            raise ContractError(
                "model",
                expected=f"about the same outputs in {str(dtype).removeprefix('torch.')} as in "
                "its own arithmetic",
                got="others",
                fix="use --precision float32; turn off dropout and anything else that is random",
            )
    plain = Prepared(ready, False, preparation.describe(device))
    if not preparation.compiles(device):
        return plain
    ways: dict[str, Callable[[], Forward]] = {"compiled": lambda: compiled(ready, images)}
    if dtype == torch.float16 and supports(device) and is_cifar_resnet(module, images.shape[1:]):
        ways = {"fused": lambda: FusedResNet(module, launcher(device)), **ways}
    for how, make in ways.items():
        try:
            run = make()
            if not _close(run(images), wanted, dtype):
                raise RuntimeError("its outputs are others")
            if isinstance(run, FusedResNet):
                _check_kernels(run, ready, images)
            return Prepared(run, True, preparation.describe(device, how))
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # compilers fail in many ways, all of which mean: do without
            refuse_broken_device(error)
            go_on_without(f"the model cannot be {how}", error)
    return plain


@contextlib.contextmanager
def explained(module: nn.Module, image_shape: Sequence[int]) -> Iterator[None]:
    """What a module raises in the block is told in one line, but for what the device says."""
    try:
        yield
    except SweenError:
        raise
    except Exception as error:  # a module is anybody's code
        if is_out_of_memory(error):
            raise
        refuse_broken_device(error)
        kinds = {tensor.dtype for tensor in _state_of(module)[1] if tensor.is_floating_point()}
        other = sorted(str(kind).removeprefix("torch.") for kind in kinds - {torch.float32})
        shape = ", ".join(str(size) for size in image_shape)
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        if other:
            raise ContractError(
                "model",
                expected="float32 parameters, since its images are float32",
                got=f"{', '.join(other)} ({said})",
                fix="pass model.float(); `precision` chooses the arithmetic of the votes",
            ) from error
        raise ContractError(
            "model",
            expected=f"a forward pass over float32 images (N, {shape})",
            got=f"{type(error).__name__}: {said}",
            fix="call model(images) on such a batch yourself to see where it fails",
        ) from error


def _check_kernels(run: FusedResNet, plain: Forward, images: torch.Tensor) -> None:
    """Refuse kernels of our own that a fault, a race for instance, makes answer otherwise.

    In the same arithmetic only the order of sums differs, and an answer has no room to differ by
    the time or the place of an image.
    """
    outputs, wanted = run(images), plain(images)
    spread = float(wanted.max() - wanted.min())
    if not torch.equal(run(images), outputs) or not torch.equal(
        run(images.flip(0)).flip(0), outputs
    ):
        raise RuntimeError("its outputs depend on the time or the place of an image")
    some = torch.arange(len(images), device=images.device) % 3 == 1
    selected = run.selected(images, Selection.of(some), at_once=len(images))
    if not torch.equal(selected, outputs * some[:, None]):
        raise RuntimeError("its outputs for some of the images are others than for all of them")
    if float((outputs - wanted).abs().max()) > KERNELS_APART * spread:
        raise RuntimeError("its outputs are others than in the same arithmetic")


def refuse_broken_device(error: Exception) -> None:
    """Raise again what says that the device has no memory, or can no longer be used."""
    said = str(error).lower()
    if "out of memory" in said:
        raise torch.OutOfMemoryError(str(error)) from None
    if any(
        word in said for word in ("illegal memory access", "misaligned address", "launch failure")
    ):
        raise error


def _refuse_random(first: object, second: object) -> None:
    """Refuse a module that answers one batch in two ways.

    Tracing would freeze what it draws and make it look like a function.
    """
    if not isinstance(first, torch.Tensor) or not isinstance(second, torch.Tensor):
        return
    spread = float(first.max() - first.min()) if first.numel() else 0.0
    if torch.isfinite(first).all() and float((first - second).abs().max()) > 1e-4 * spread:
        raise ContractError(
            "model",
            expected="the same answer each time it sees a batch",
            got="others",
            fix="put dropout in evaluation mode and turn off anything else that is random",
        )


class InArithmetic(nn.Module):
    """A module in one arithmetic: float32 images in, float32 outputs out."""

    def __init__(self, module: nn.Module, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.device_type, self.dtype = device.type, dtype
        if dtype != torch.float32:
            module = copy.deepcopy(module)
            for part in module.modules():
                if isinstance(part, nn.Linear | nn.modules.conv._ConvNd):
                    part.to(dtype)  # once, where autocast would do it at every pass
        self.module = module
        self.channels_last = any(isinstance(part, nn.Conv2d) for part in module.modules())

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if self.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        reduced = self.dtype != torch.float32
        if reduced or torch.is_autocast_enabled(self.device_type):
            with torch.autocast(self.device_type, dtype=self.dtype, enabled=reduced):
                outputs = self.module(images)
        else:
            outputs = self.module(images)
        return outputs.float() if isinstance(outputs, torch.Tensor) else outputs


def _close(outputs: object, wanted: object, dtype: torch.dtype) -> bool:
    if not isinstance(outputs, torch.Tensor) or not isinstance(wanted, torch.Tensor):
        return True  # whoever reads the outputs refuses them with a better message
    if outputs.shape != wanted.shape:
        return False
    if not torch.isfinite(wanted).all():
        return True
    spread = float(wanted.max() - wanted.min())
    return float((outputs - wanted).abs().max()) <= _CHANGE_ALLOWED[dtype] * spread
