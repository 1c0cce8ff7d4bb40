"""A module in another arithmetic."""

import copy

import torch
from torch import nn

from sween.engine.fuse_first_layers import FIRST_LAYERS
from sween.engine.model_errors import refuse_broken_device
from sween.errors import is_out_of_memory


def _copy_of(module: nn.Module) -> nn.Module:
    """A copy that shares nothing with the module; raises if there is none."""
    copied = copy.deepcopy(module)
    if shared := {*module.modules()} & {*copied.modules()}:
        names = ", ".join(sorted(type(own).__name__ for own in shared))
        raise TypeError(f"a copy of {type(module).__name__} shares parts with it: {names}")
    return copied


class InArithmetic(nn.Module):
    """A copy of a module in a given arithmetic: float32 images in, float32 outputs out.

    A copy, so that changing the module while votes are counted does not change them. One that
    cannot be copied is used itself, in float32.

    Args:
        module: to copy.
        device: it is on.
        dtype: of convolutions and linear layers, and of other layers as far as autocast uses it.
        whole: of all layers and activations, without autocast.
        channels_last: whether images may be in that layout, in which convolutions are faster.
        copied: whether to copy it.

    Attributes:
        shared: whether it is the module itself.
    """

    def __init__(
        self,
        module: nn.Module,
        device: torch.device,
        dtype: torch.dtype,
        *,
        whole: bool = False,
        channels_last: bool = True,
        copied: bool = True,
    ) -> None:
        super().__init__()
        self.device_type, self.dtype, self.shared = device.type, dtype, not copied
        try:
            module = _copy_of(module) if copied else module
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
        # The kernel reads the images as they are, and writes nothing to them.
        self.takes_images = any(
            isinstance(part, FIRST_LAYERS) and part.by_kernel for part in module.modules()
        )
        self.channels_last = channels_last and any(
            isinstance(part, nn.Conv2d) for part in module.modules()
        )

    def settle(self, images: torch.Tensor) -> torch.Tensor:
        """Choose a layout that the module's code allows; returns the outputs in it.

        Channels-last is faster, but `view` after a convolution, for one, does without.
        """
        try:
            return self(images)  # type: ignore[no-any-return]
        except Exception as error:  # a user's module may raise anything
            if is_out_of_memory(error) or not self.channels_last:
                raise
            refuse_broken_device(error)
            self.channels_last = False
            return self(images)  # type: ignore[no-any-return]

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if not self.takes_images:
            images = self._converted(images)
        reduced = self.dtype != torch.float32 and not self.whole
        if reduced or torch.is_autocast_enabled(self.device_type):
            with torch.autocast(self.device_type, dtype=self.dtype, enabled=reduced):
                outputs = self.module(images)
        else:
            outputs = self.module(images)
        return outputs.float() if isinstance(outputs, torch.Tensor) else outputs

    def _converted(self, images: torch.Tensor) -> torch.Tensor:
        own = images
        if self.channels_last:
            own = own.contiguous(memory_format=torch.channels_last)
        if self.whole:
            own = own.to(self.dtype)
        # A layer that works in place, such as clamp_, would change what the next member sees, and
        # only in passes that are not padded, which copies. A compiler cannot tell the two apart,
        # and leaves a copy out where nothing is changed.
        return own.clone() if torch.compiler.is_compiling() or own is images else own
