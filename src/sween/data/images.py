"""Decode one image file to a uint8 tensor.

Nothing is converted silently: a certificate is about exact pixel values, so looking up a palette,
dropping an alpha channel or reducing 16 bits to 8 must be requested.
"""

import io
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError

from sween.errors import BadInput, DataError
from sween.paths import AnyPath

_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
"""Formats to try; some of Pillow's others run external programs on the file."""
_MODE_OF_CHANNELS = {1: "L", 3: "RGB"}
_MODE_WORDS = {
    "1": "a black-and-white image",
    "L": "a grayscale image",
    "P": "a palette image",
    "RGB": "an RGB image",
    "CMYK": "a CMYK image",
}
_LARGEST_16_BIT = 65_535
_open_lock = threading.Lock()


def read_image(
    path: AnyPath,
    *,
    image_shape: tuple[int, int, int] | None,
    channels: int,
    convert: bool = False,
    resize: bool = False,
    content: bytes | None = None,
) -> torch.Tensor:
    """Decode one image file. Pixels are as stored; an EXIF orientation is not applied.

    Args:
        path: the file.
        image_shape: (C, H, W) that the image must have; None for any size.
        channels: 1 (grayscale) or 3 (RGB).
        convert: convert other colour modes instead of refusing; alpha is dropped.
        resize: scale the shortest side to fit and crop the centre instead of refusing; bilinear,
            antialiased.
        content: the bytes of the file, if already read.

    Returns:
        uint8 of shape (C, H, W).

    Raises:
        DataError: the file is missing, damaged or too large, or has the wrong mode or size.

    Example:
        >>> from PIL import Image
        >>> from sween.data import read_image
        >>> Image.new("RGB", (64, 48), "red").save("photo.png")
        >>> read_image("photo.png", image_shape=(3, 32, 32), channels=3, resize=True).shape
        torch.Size([3, 32, 32])
    """
    path = Path(path)
    if channels not in _MODE_OF_CHANNELS:
        raise BadInput("channels", expected="1 or 3", got=channels, fix="use 3 for colour photos")
    if content is None and not path.is_file():
        got = "a folder" if path.is_dir() else "no such file"
        raise DataError(
            path, expected="an image file", got=got, fix="check the path", unreadable=True
        )
    try:
        opened = path.open("rb") if content is None else io.BytesIO(content)
        with opened as stream, _open(stream) as image:
            plain = _in_mode(image, path, _MODE_OF_CHANNELS[channels], convert)
            if image_shape is not None:
                plain = _in_size(plain, path, image_shape[1:], resize)
            pixels = np.array(plain, dtype=np.uint8)
    except DataError:
        raise
    except Exception as error:  # decoders raise nearly anything on damaged files
        raise _unreadable(path, error) from error
    if pixels.ndim == 2:
        pixels = pixels[:, :, np.newaxis]
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()


def _open(stream: Any) -> Image.Image:
    # The warning filter is global to the process, so only one thread at a time; decoding is lazy.
    with _open_lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        return Image.open(stream, formats=_FORMATS)


def _unreadable(path: Path, error: Exception) -> DataError:
    expected = "a JPEG, PNG, WebP, BMP, GIF, TIFF or PPM image"
    got, fix = f"a truncated or corrupt file ({error!r})", "fetch or save the file again"
    if isinstance(error, UnidentifiedImageError):
        got = "something else"
    elif isinstance(error, PermissionError):
        got, fix = "permission denied", "change its permissions"
    elif isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
        expected, got = f"at most {Image.MAX_IMAGE_PIXELS} pixels", "more (a decompression bomb?)"
        fix = "re-save it smaller if you trust where it came from"
    return DataError(path, expected=expected, got=got, fix=fix, unreadable=True)


def _in_mode(image: Image.Image, path: Path, mode: str, convert: bool) -> Image.Image:
    deep = _is_16_bit(image)
    if image.mode == mode and not deep:
        image.load()
        return image
    name = "RGB" if mode == "RGB" else "grayscale (L)"
    got = _describe(image, deep)
    if not convert:
        raise DataError(
            path,
            expected=f"an 8-bit {name} image",
            got=got,
            fix=f"pass `convert=True` or re-save it as {name}",
        )
    try:
        return _to_8_bit(image).convert(mode)
    except ValueError as error:  # e.g. Lab, or floating-point pixels of unknown scale
        raise DataError(
            path,
            expected=f"an image that converts to {name}",
            got=got,
            fix=f"re-save it as {name}, 8 bits per channel",
            unreadable=True,
        ) from error


def _is_16_bit(image: Image.Image) -> bool:
    """Whether the file stores 16 bits per channel; Pillow silently reduces 16-bit RGB to 8."""
    stored = " ".join(str(tile) for tile in getattr(image, "tile", ()))
    return image.mode.startswith("I;16") or ";16" in stored


def _describe(image: Image.Image, deep: bool) -> str:
    if deep or image.mode == "I":
        return f"an image of 16 or more bits per channel (mode {image.mode})"
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La"):
        return f"an image with an alpha channel (mode {image.mode})"
    words = _MODE_WORDS.get(image.mode, "an image of another colour mode")
    return f"{words} (mode {image.mode})"


def _to_8_bit(image: Image.Image) -> Image.Image:
    image.load()
    if image.mode == "F":
        raise ValueError("floating-point pixels have no white level")
    if image.mode.startswith("I"):
        # Pillow's own conversion clips at 255 instead of scaling.
        values = np.asarray(image).astype(np.int64)
        if values.min() < 0 or values.max() > _LARGEST_16_BIT:
            raise ValueError("32-bit pixels have no white level")
        return Image.fromarray(np.rint(values / 257).astype(np.uint8))
    if "transparency" in image.info:
        return image.convert("RGBA")
    return image


def _in_size(image: Image.Image, path: Path, size: tuple[int, ...], resize: bool) -> Image.Image:
    height, width = size
    if (image.height, image.width) == (height, width):
        return image
    if not resize:
        raise DataError(
            path,
            expected=f"{height} x {width} pixels (height x width)",
            got=f"{image.height} x {image.width}",
            fix="pass `resize=True` or resize it first",
        )
    # Scaling only the part that is kept gives the same pixels as scaling and then cropping, without
    # the large intermediate image of a very long, narrow file. Offsets are whole pixels of the
    # result, so a file whose shortest side already fits is cropped and not resampled.
    scale = min(image.width / width, image.height / height)
    left = (image.width / scale - width) // 2 * scale
    top = (image.height / scale - height) // 2 * scale
    box = (
        max(left, 0.0),
        max(top, 0.0),
        min(left + width * scale, image.width),
        min(top + height * scale, image.height),
    )
    return image.resize((width, height), Image.Resampling.BILINEAR, box=box)
