"""What the modules have in common that compute a few layers by a custom kernel."""

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

import torch

from sween.cuda import Argument, compile_kernel, read_source
from sween.cuda.compiler import COMPILING
from sween.engine.differences import ratio
from sween.engine.model_errors import refuse_broken_device
from sween.errors import warn_fallback

TOLERANCE = 0.01
"""How far a kernel's outputs in float16 may be from those in float32, relative to the largest."""


class Form(Hashable, Protocol):
    """Compile-time parameters of a kernel."""

    def definitions(self) -> list[str]:
        """Compiler options."""
        ...


class FormLauncher:
    """Runs a kernel that is compiled for each of its forms.

    Args:
        files: its source.
        kernel: its name.
        threads: of a block.
    """

    def __init__(self, files: tuple[str, ...], kernel: str, threads: int) -> None:
        self.files, self.kernel, self.threads = files, kernel, threads

    def __call__(self, form: Form, blocks: int, arguments: Sequence[Argument]) -> None:
        device = next(each.device for each in arguments if isinstance(each, torch.Tensor))
        with torch.cuda.device(device):
            self._compiled(form, torch.cuda.current_device())(
                grid=(blocks, 1, 1), block=(self.threads, 1, 1), args=list(arguments)
            )

    @functools.cache  # noqa: B019  # there is one launcher of a kernel
    def _compiled(self, form: Form, device_index: int) -> Any:
        with COMPILING:
            source = read_source("sween.engine", self.files)
            return compile_kernel(source, self.kernel, form.definitions())


@torch.no_grad()
def agrees(
    kernel: Callable[[], torch.Tensor], layers: Callable[[], torch.Tensor], what: str
) -> bool:
    """Whether a kernel computes the same as the layers; if it does not, with a warning.

    Args:
        kernel: computes it in float16.
        layers: compute it in float32.
        what: for the warning.
    """
    try:
        found, wanted = kernel(), layers()
        difference, largest = float((found - wanted).abs().max()), float(wanted.abs().max())
        if not difference <= TOLERANCE * largest:
            raise RuntimeError(f"its outputs are off by {ratio(difference, largest):.2g}")
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # compilers fail in many ways, and torch always works
        refuse_broken_device(error)
        warn_fallback(f"there is no custom kernel for {what}", error)
        return False
    return True


def moved(tensor: torch.Tensor, fn: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """A tensor where `nn.Module._apply` moves others, without their rounding."""
    return tensor.to(fn(tensor).device)


def affine_of(
    mean: torch.Tensor | None, std: torch.Tensor | None, channels: int, device: torch.device
) -> torch.Tensor:
    """(x - mean) / std as factors and summands of the channels: float32 (2 * channels,).

    Args:
        mean: (C, 1, 1) or such that it can be expanded to that; None: images are not normalised.
        std: likewise.
        channels: C.
        device: of the result.
    """
    ones = torch.ones(channels, 1, 1, device=device)
    factor = ones if std is None else ones / std.detach().float()
    summand = 0 * ones if mean is None else -mean.detach().float() * factor
    return torch.cat([factor, summand]).flatten()
