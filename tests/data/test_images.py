"""read_image gives the stored pixels, or one line naming the file and the fix."""

import io
import struct
import warnings
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image

from sween.data import read_image
from sween.errors import BadInput, DataError

from .conftest import Refuses

SMALL = (3, 32, 32)


def noise(*shape: int) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def saved(pixels: npt.NDArray[Any], path: Path) -> Path:
    Image.fromarray(pixels).save(path)
    return path


def read(path: Path, channels: int = 3, **options: Any) -> torch.Tensor:
    return read_image(path, **{"image_shape": None, "channels": channels} | options)


def png(width: int, height: int, depth: int, rows: bytes) -> bytes:
    """An RGB file written by hand."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + checksum

    header = struct.pack(">IIBBBBB", width, height, depth, 2, 0, 0, 0)
    body = chunk(b"IDAT", zlib.compress(rows))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + body + chunk(b"IEND", b"")


def test_pixels_come_back_channels_first(tmp_path: Path) -> None:
    pixels = noise(6, 9, 3)
    found = read(saved(pixels, tmp_path / "a.png"), image_shape=(3, 6, 9))
    assert found.dtype == torch.uint8
    assert found.is_contiguous()
    assert torch.equal(found, torch.from_numpy(pixels).permute(2, 0, 1))
    grey = read(saved(pixels[:, :, 0], tmp_path / "grey.png"), channels=1)
    assert torch.equal(grey, torch.from_numpy(pixels)[None, :, :, 0])
    for suffix in ("jpeg", "webp", "bmp", "tiff", "ppm"):
        assert read(saved(pixels, tmp_path / f"a.{suffix}")).shape == (3, 6, 9)


def palette(**info: object) -> Image.Image:
    image = Image.fromarray(noise(8, 8, 3)).convert("P")
    image.info.update(info)
    return image


MODES: list[tuple[str, Callable[[], Image.Image], int, str]] = [
    ("p.png", palette, 3, "palette"),
    ("p.gif", palette, 3, "palette"),
    ("pt.png", lambda: palette(transparency=bytes(range(256))), 3, "palette"),
    ("l.png", lambda: Image.fromarray(noise(8, 8)), 3, "grayscale"),
    ("l.jpg", lambda: Image.fromarray(noise(8, 8)), 3, "grayscale"),
    ("rgb.png", lambda: Image.fromarray(noise(8, 8, 3)), 1, "an RGB image"),
    ("cmyk.jpg", lambda: Image.fromarray(noise(8, 8, 3)).convert("CMYK"), 3, "CMYK"),
    ("rgba.png", lambda: Image.fromarray(noise(8, 8, 4)), 3, "alpha channel"),
    ("rgba.webp", lambda: Image.fromarray(noise(8, 8, 4)), 3, "alpha channel"),
    ("la.png", lambda: Image.fromarray(noise(8, 8, 4)).convert("LA"), 1, "alpha channel"),
    ("bw.png", lambda: Image.fromarray(noise(8, 8)).convert("1"), 1, "black-and-white"),
    ("deep.png", lambda: Image.fromarray(noise(8, 8).astype(np.uint16) * 257), 1, "16"),
    ("deep.tiff", lambda: Image.fromarray(noise(8, 8).astype(np.uint16) * 257), 3, "16"),
]


@pytest.mark.parametrize(("name", "make", "channels", "part"), MODES)
def test_another_mode_is_refused_and_converted_on_demand(
    name: str,
    make: Callable[[], Image.Image],
    channels: int,
    part: str,
    tmp_path: Path,
    refuses: Refuses,
) -> None:
    path = tmp_path / name
    make().save(path)
    wanted = "RGB" if channels == 3 else "grayscale"
    with refuses(DataError, str(path), part, "pass `convert=True`", f"re-save it as {wanted}"):
        read(path, channels)
    assert read(path, channels, convert=True).shape == (channels, 8, 8)


def test_conversion_keeps_colours_and_scales_16_bits(tmp_path: Path) -> None:
    pixels = noise(8, 8, 4)
    found = read(saved(pixels, tmp_path / "rgba.png"), convert=True)
    assert torch.equal(found, torch.from_numpy(pixels[:, :, :3]).permute(2, 0, 1))
    deep = saved(pixels[:, :, 0].astype(np.uint16) * 257, tmp_path / "deep.png")
    assert torch.equal(read(deep, 1, convert=True), torch.from_numpy(pixels)[None, :, :, 0])


def test_16_bit_rgb_is_refused_though_pillow_reads_it_as_8(
    tmp_path: Path, refuses: Refuses
) -> None:
    path = tmp_path / "deep.png"
    path.write_bytes(png(4, 4, 16, (b"\0" + bytes(range(24))) * 4))
    with refuses(DataError, str(path), "16 or more bits", "convert=True"):
        read(path)
    assert read(path, convert=True)[:, 0, 0].tolist() == [0, 2, 4]


@pytest.mark.parametrize("value", [0.5, 1e9])
def test_pixels_without_a_white_level_are_refused_even_with_convert(
    value: float, tmp_path: Path, refuses: Refuses
) -> None:
    pixels = np.full((4, 4), value, dtype=np.float32 if value < 1 else np.int32)
    with refuses(DataError, "a.tiff", "converts to RGB", "re-save it as RGB"):
        read(saved(pixels, tmp_path / "a.tiff"), convert=True)


def _encoded(kind: str) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(noise(64, 64, 3)).save(stream, kind)
    return stream.getvalue()


def _flipped() -> bytes:
    content = bytearray(png(8, 8, 8, (b"\0" + bytes(24)) * 8))
    content[45] ^= 0xFF
    return bytes(content)


AGAIN, BOMB = ("a JPEG, PNG", "save the file again"), ("decompression bomb", "re-save it smaller")
DAMAGED: list[tuple[bytes, tuple[str, ...]]] = [
    *((content, AGAIN) for content in (b"", b"plain text", b"%!PS-Adobe-3.0\n", b"GIF89a")),
    *(
        (whole[:kept], AGAIN)
        for whole in map(_encoded, ("PNG", "JPEG", "WEBP", "BMP", "TIFF", "PPM"))
        for kept in (len(whole) // 2, len(whole) // 8, 20)
    ),
    (_flipped(), ("corrupt", *AGAIN)),
    (png(10_000, 10_000, 8, b""), BOMB),
    (png(20_000, 20_000, 8, b""), BOMB),
]


def test_damaged_files_are_refused(tmp_path: Path, refuses: Refuses) -> None:
    for content, parts in DAMAGED:
        (tmp_path / "a.png").write_bytes(content)
        with refuses(DataError, "a.png", *parts):
            read(tmp_path / "a.png")


def test_missing_files_and_other_arguments_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuses: Refuses
) -> None:
    path = saved(noise(10, 20, 3), tmp_path / "a.png")
    with refuses(DataError, "absent.png", "no such file", "check the path"):
        read(tmp_path / "absent.png")
    with refuses(DataError, str(tmp_path), "a folder"):
        read(tmp_path)
    with refuses(DataError, "a.png", "32 x 32", "got 10 x 20", "resize=True"):
        read(path, image_shape=SMALL)
    with refuses(BadInput, "channels", "1 or 3", "got 4"):
        read(path, channels=4)

    def forbid(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", forbid)
    with refuses(DataError, "a.png", "permission denied", "change its permissions"):
        read(path)


@pytest.mark.parametrize(("height", "width"), [(64, 96), (96, 64), (64, 64), (128, 256)])
def test_resize_is_scale_then_centre_crop(height: int, width: int, tmp_path: Path) -> None:
    image = Image.fromarray(noise(height, width, 3))
    image.save(tmp_path / "a.png")
    found = read(tmp_path / "a.png", image_shape=SMALL, resize=True)
    scale = min(height, width) // 32
    small = image.resize((width // scale, height // scale), Image.Resampling.BILINEAR)
    left, top = (small.width - 32) // 2, (small.height - 32) // 2
    expected = np.asarray(small.crop((left, top, left + 32, top + 32)))
    assert (found.permute(1, 2, 0).int() - torch.tensor(expected).int()).abs().max() <= 1


@pytest.mark.parametrize(("height", "width"), [(32, 47), (47, 32), (32, 100)])
def test_a_shortest_side_that_fits_is_cropped_not_resampled(
    height: int, width: int, tmp_path: Path
) -> None:
    pixels = noise(height, width, 3)
    found = read(saved(pixels, tmp_path / "a.png"), image_shape=SMALL, resize=True)
    top, left = (height - 32) // 2, (width - 32) // 2
    expected = torch.from_numpy(pixels[top : top + 32, left : left + 32]).permute(2, 0, 1)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("shape", [(1, 30_000), (30_000, 1), (7, 13), (1, 1), (331, 97)])
def test_any_proportions_resize(shape: tuple[int, int], tmp_path: Path) -> None:
    path = saved(noise(*shape, 3), tmp_path / "a.png")
    assert read(path, image_shape=(3, 24, 40), resize=True).shape == (3, 24, 40)


def test_threads_read_at_once_and_leave_the_warning_filters_alone(tmp_path: Path) -> None:
    saved(noise(16, 16, 3), tmp_path / "good.png")
    (tmp_path / "bomb.png").write_bytes(png(10_000, 10_000, 8, b""))

    def can_read(name: str) -> bool:
        try:
            read(tmp_path / name)
        except DataError:
            return False
        return True

    before = list(warnings.filters)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(can_read, ["good.png", "bomb.png"] * 50))
    assert results == [True, False] * 50
    assert list(warnings.filters) == before
