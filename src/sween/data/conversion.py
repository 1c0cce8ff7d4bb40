"""Convert images to the form that everything else takes: float32 NCHW in [0, 1].

Only unambiguous input is converted: 8-bit pixels are divided by 255, other floats become float32,
and the channels of arrays and Pillow images move from last to first. The converted image is the one
that is certified.
"""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from sween.data.validation import check_images
from sween.errors import BadInput, describe_type

Images = torch.Tensor | npt.NDArray[Any] | Image.Image | Sequence[Any]
"""One image or a batch: a tensor (C, H, W) or (N, C, H, W), an array, a Pillow image, or a sequence
of images of one size."""

_CHANNELS = (1, 3)
_MOST_USUAL_CHANNELS = 4
_MODES = ("L", "RGB")


def as_batch(images: Images, *, what: str = "images") -> torch.Tensor:
    """A checked batch (N, C, H, W), float32 in [0, 1], of a batch or of one image.

    Integers must be uint8. Arrays may have their channels last where that is unambiguous: 1 or 3 of
    them, and another number first. `what` is the argument's name in errors.
    """
    pixels = _scaled(_as_pixels(images, what))
    check_images(pixels, what=what)
    return pixels[None] if pixels.ndim == 3 else pixels


def as_pixels(images: Images, *, what: str = "images") -> torch.Tensor:
    """Like `as_batch`, but uint8 stays uint8, and one image stays one image."""
    pixels = _as_pixels(images, what)
    if pixels.dtype == torch.uint8 and pixels.ndim in (3, 4) and pixels.numel():
        return pixels  # any value is valid
    check_images(_scaled(pixels), what=what)
    return pixels


def is_single(images: Images) -> bool:
    """Whether one image was passed, not a batch."""
    if isinstance(images, Image.Image):
        return True
    return isinstance(images, torch.Tensor | np.ndarray) and images.ndim == 3


def _as_pixels(images: Images, what: str) -> torch.Tensor:
    """Channels first, uint8 or float32."""
    if isinstance(images, torch.Tensor):
        if images.layout != torch.strided or images.is_meta:
            got = "a tensor without numbers" if images.is_meta else f"one of {images.layout}"
            raise BadInput(what, expected="a dense tensor", got=got, fix="call .to_dense()")
        _warn_if_channels_seem_last(images)
        return _known_type(images, what)
    if isinstance(images, Image.Image):
        if images.mode not in _MODES:
            raise BadInput(
                what,
                expected="a Pillow image of mode L or RGB",
                got=f"mode {images.mode}",
                fix="scale its pixels to [0, 1]: Pillow's own conversion clips them"
                if images.mode.startswith(("I", "F"))
                else 'convert it with .convert("RGB"), or .convert("L") for one channel',
            )
        images = np.asarray(images)
        images = images[:, :, np.newaxis] if images.ndim == 2 else images
    if isinstance(images, np.ndarray):
        return _known_type(_tensor_of(images, what), what)
    if isinstance(images, Sequence) and not isinstance(images, str | bytes) and len(images):
        parts = [_as_pixels(image, f"{what}[{k}]") for k, image in enumerate(images)]
        if len({part.dtype for part in parts}) > 1:
            parts = [_scaled(part) for part in parts]
        shapes = sorted({tuple(part.shape) for part in parts})
        if len(shapes) > 1 or len(shapes[0]) != 3:
            raise BadInput(
                what,
                expected="a sequence of images (C, H, W) of one shape",
                got=", ".join(str(shape) for shape in shapes[:4]),
                fix="bring them to one size first",
            )
        return torch.stack(parts)
    is_text = isinstance(images, str | bytes)
    empty = isinstance(images, Sequence) and not is_text
    raise BadInput(
        what,
        expected="a tensor, an array, a Pillow image or a sequence of them",
        got=describe_type(images) + (" that is empty" if empty else ""),
        fix="open a file with PIL.Image.open" if is_text else "convert it with torch.as_tensor",
    )


def _warn_if_channels_seem_last(images: torch.Tensor) -> None:
    """Tensors have channels first; a network that flattens would take any order."""
    if images.ndim not in (3, 4):
        return
    channels, height, width = images.shape[-3:]
    if width in _CHANNELS and min(channels, height) > _MOST_USUAL_CHANNELS:
        # The same text for all images of a data set, so that Python shows it once.
        warnings.warn(
            f"images of shape {(channels, height, width)} are read as {channels} channels of "
            f"{height} x {width} pixels; if their channels are last, pass images.movedim(-1, -3)",
            stacklevel=2,
        )


def _tensor_of(array: npt.NDArray[Any], what: str) -> torch.Tensor:
    """The array as a tensor with channels first."""
    if array.ndim in (3, 4) and array.shape[-1] in _CHANNELS and array.shape[-3] not in _CHANNELS:
        array = np.moveaxis(array, -1, -3)
    array = array.astype(array.dtype.newbyteorder("="), copy=False)  # torch has no other
    try:
        # A copy: torch warns about read-only memory.
        return torch.from_numpy(np.array(array, order="C"))
    except TypeError:
        raise BadInput(
            what,
            expected="an array of uint8, or of floats in [0, 1]",
            got=f"an array of {array.dtype}",
            fix="convert it with .astype(numpy.float32)",
        ) from None


def _known_type(pixels: torch.Tensor, what: str) -> torch.Tensor:
    if pixels.dtype == torch.uint8:
        return pixels
    if pixels.dtype.is_floating_point:
        return pixels.float()
    raise BadInput(
        what,
        expected="uint8, or floats in [0, 1]",
        got=str(pixels.dtype).removeprefix("torch."),
        fix="convert 8-bit pixels with .to(torch.uint8), others to floats in [0, 1]",
    )


def _scaled(pixels: torch.Tensor) -> torch.Tensor:
    if pixels.dtype != torch.uint8:
        return pixels
    # By a tensor: a GPU would multiply by the reciprocal of a number, and be off by a rounding.
    return pixels.float() / torch.tensor(255.0, device=pixels.device)
