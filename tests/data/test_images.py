"""read_image gives the stored pixels, or one line naming the file and the fix."""

import io
import struct
import warnings
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image

from sween.data import read_image
from sween.errors import BadInput, DataError

from .conftest import Refuses

Bytes = npt.NDArray[np.uint8]


def noise(*shape: int) -> Bytes:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def test_pixels_come_back_channels_first(tmp_path: Path) -> None:
    pixels = noise(6, 9, 3)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    read = read_image(tmp_path / "a.png", image_shape=(3, 6, 9), channels=3)
    assert read.dtype == torch.uint8
    assert read.shape == (3, 6, 9)
    assert read.is_contiguous()
    assert torch.equal(read, torch.from_numpy(pixels).permute(2, 0, 1))


def test_grayscale_where_one_channel_is_wanted(tmp_path: Path) -> None:
    pixels = noise(8, 8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    read = read_image(tmp_path / "a.png", image_shape=None, channels=1)
    assert torch.equal(read, torch.from_numpy(pixels)[None])


@pytest.mark.parametrize("suffix", ["jpeg", "webp", "bmp", "tiff", "ppm"])
def test_other_formats_are_read(suffix: str, tmp_path: Path) -> None:
    Image.fromarray(noise(5, 7, 3)).save(tmp_path / f"a.{suffix}")
    read = read_image(str(tmp_path / f"a.{suffix}"), image_shape=None, channels=3)
    assert read.shape == (3, 5, 7)


def palette() -> Image.Image:
    return Image.fromarray(noise(8, 8, 3)).convert("P")


def transparent_palette() -> Image.Image:
    image = palette()
    image.info["transparency"] = bytes(range(256))
    return image


MODES: list[tuple[str, Callable[[], Image.Image], int, str]] = [
    ("p.png", palette, 3, "palette"),
    ("p.gif", palette, 3, "palette"),
    ("pt.png", transparent_palette, 3, "palette"),
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
    with refuses(DataError, str(path), part, "pass --convert", f"re-save it as {wanted}"):
        read_image(path, image_shape=None, channels=channels)
    read = read_image(path, image_shape=None, channels=channels, convert=True)
    assert read.shape == (channels, 8, 8)


def test_conversion_keeps_the_colours(tmp_path: Path) -> None:
    pixels = noise(8, 8, 4)
    Image.fromarray(pixels).save(tmp_path / "rgba.png")
    read = read_image(tmp_path / "rgba.png", image_shape=None, channels=3, convert=True)
    assert torch.equal(read, torch.from_numpy(pixels[:, :, :3]).permute(2, 0, 1))


def test_16_bits_are_scaled_not_clipped(tmp_path: Path) -> None:
    pixels = noise(8, 8)
    Image.fromarray(pixels.astype(np.uint16) * 257).save(tmp_path / "deep.png")
    read = read_image(tmp_path / "deep.png", image_shape=None, channels=1, convert=True)
    assert torch.equal(read, torch.from_numpy(pixels)[None])


def png_chunk(kind: bytes, content: bytes) -> bytes:
    checksum = struct.pack(">I", zlib.crc32(kind + content))
    return struct.pack(">I", len(content)) + kind + content + checksum


def png(width: int, height: int, depth: int, colour: int, rows: bytes) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    body = png_chunk(b"IDAT", zlib.compress(rows))
    return b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header) + body + png_chunk(b"IEND", b"")


def test_16_bit_rgb_is_refused_though_pillow_reads_it_as_8(
    tmp_path: Path, refuses: Refuses
) -> None:
    path = tmp_path / "deep.png"
    path.write_bytes(png(4, 4, 16, 2, (b"\0" + bytes(range(24))) * 4))
    with refuses(DataError, str(path), "16 or more bits", "--convert"):
        read_image(path, image_shape=None, channels=3)
    read = read_image(path, image_shape=None, channels=3, convert=True)
    assert read[:, 0, 0].tolist() == [0, 2, 4]


@pytest.mark.parametrize("value", [0.5, 1e9])
def test_pixels_without_a_white_level_are_refused_even_with_convert(
    value: float, tmp_path: Path, refuses: Refuses
) -> None:
    kind = np.float32 if value < 1 else np.int32
    Image.fromarray(np.full((4, 4), value, dtype=kind)).save(tmp_path / "a.tiff")
    with refuses(DataError, "a.tiff", "converts to RGB", "re-save it as RGB"):
        read_image(tmp_path / "a.tiff", image_shape=None, channels=3, convert=True)


def test_a_missing_file_or_a_folder(tmp_path: Path, refuses: Refuses) -> None:
    with refuses(DataError, "absent.png", "no such file", "check the path"):
        read_image(tmp_path / "absent.png", image_shape=None, channels=3)
    with refuses(DataError, str(tmp_path), "a folder"):
        read_image(tmp_path, image_shape=None, channels=3)


@pytest.mark.parametrize("content", [b"", b"plain text", b"%!PS-Adobe-3.0 EPSF-3.0\n", b"GIF89a"])
def test_something_that_is_no_image(content: bytes, tmp_path: Path, refuses: Refuses) -> None:
    (tmp_path / "a.png").write_bytes(content)
    with refuses(DataError, "a.png", "a JPEG, PNG", "save the file again"):
        read_image(tmp_path / "a.png", image_shape=None, channels=3)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "BMP", "TIFF", "PPM"])
def test_a_truncated_file(kind: str, tmp_path: Path, refuses: Refuses) -> None:
    stream = io.BytesIO()
    Image.fromarray(noise(64, 64, 3)).save(stream, kind)
    content = stream.getvalue()
    for kept in (len(content) // 2, len(content) // 8, 20):
        (tmp_path / "cut").write_bytes(content[:kept])
        with refuses(DataError, "cut", "a JPEG, PNG", "save the file again"):
            read_image(tmp_path / "cut", image_shape=None, channels=3)


def test_a_corrupt_file(tmp_path: Path, refuses: Refuses) -> None:
    content = bytearray(png(8, 8, 8, 2, (b"\0" + bytes(24)) * 8))
    content[45] ^= 0xFF
    (tmp_path / "a.png").write_bytes(content)
    with refuses(DataError, "a.png", "corrupt", "save the file again"):
        read_image(tmp_path / "a.png", image_shape=None, channels=3)


@pytest.mark.parametrize("side", [10_000, 20_000])
def test_a_decompression_bomb(side: int, tmp_path: Path, refuses: Refuses) -> None:
    (tmp_path / "bomb.png").write_bytes(png(side, side, 8, 2, b""))
    with refuses(DataError, "bomb.png", "decompression bomb", "re-save it smaller"):
        read_image(tmp_path / "bomb.png", image_shape=None, channels=3)


def test_another_size(tmp_path: Path, refuses: Refuses) -> None:
    Image.fromarray(noise(10, 20, 3)).save(tmp_path / "a.png")
    with refuses(DataError, "a.png", "32 x 32", "got 10 x 20", "--resize"):
        read_image(tmp_path / "a.png", image_shape=(3, 32, 32), channels=3)


@pytest.mark.parametrize(("height", "width"), [(64, 96), (96, 64), (64, 64), (128, 256)])
def test_resize_is_scale_then_centre_crop(height: int, width: int, tmp_path: Path) -> None:
    image = Image.fromarray(noise(height, width, 3))
    image.save(tmp_path / "a.png")
    read = read_image(tmp_path / "a.png", image_shape=(3, 32, 32), channels=3, resize=True)
    scale = min(height, width) // 32
    small = image.resize((width // scale, height // scale), Image.Resampling.BILINEAR)
    left, top = (small.width - 32) // 2, (small.height - 32) // 2
    expected = np.asarray(small.crop((left, top, left + 32, top + 32)))
    difference = read.permute(1, 2, 0).int() - torch.tensor(expected).int()
    assert difference.abs().max() <= 1


@pytest.mark.parametrize(("height", "width"), [(32, 47), (47, 32), (32, 100)])
def test_a_shortest_side_that_fits_is_cropped_not_resampled(
    height: int, width: int, tmp_path: Path
) -> None:
    pixels = noise(height, width, 3)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    read = read_image(tmp_path / "a.png", image_shape=(3, 32, 32), channels=3, resize=True)
    top, left = (height - 32) // 2, (width - 32) // 2
    expected = torch.from_numpy(pixels[top : top + 32, left : left + 32]).permute(2, 0, 1)
    assert torch.equal(read, expected)


@pytest.mark.parametrize("shape", [(1, 30_000), (30_000, 1), (7, 13), (1, 1), (331, 97)])
def test_any_proportions_resize(shape: tuple[int, int], tmp_path: Path) -> None:
    Image.fromarray(noise(*shape, 3)).save(tmp_path / "a.png")
    read = read_image(tmp_path / "a.png", image_shape=(3, 24, 40), channels=3, resize=True)
    assert read.shape == (3, 24, 40)


def test_other_numbers_of_channels(tmp_path: Path, refuses: Refuses) -> None:
    with refuses(BadInput, "channels", "1 or 3", "got 4"):
        read_image(tmp_path / "a.png", image_shape=None, channels=4)


def test_a_file_that_may_not_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuses: Refuses
) -> None:
    (tmp_path / "a.png").write_bytes(b"")

    def forbid(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", forbid)
    with refuses(DataError, "a.png", "permission denied", "change its permissions"):
        read_image(tmp_path / "a.png", image_shape=None, channels=3)


def test_threads_read_at_once_and_leave_the_warning_filters_alone(tmp_path: Path) -> None:
    Image.fromarray(noise(16, 16, 3)).save(tmp_path / "good.png")
    (tmp_path / "bomb.png").write_bytes(png(10_000, 10_000, 8, 2, b""))

    def read(name: str) -> bool:
        try:
            read_image(tmp_path / name, image_shape=None, channels=3)
        except DataError:
            return False
        return True

    before = list(warnings.filters)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(read, ["good.png", "bomb.png"] * 50))
    assert results == [True, False] * 50
    assert list(warnings.filters) == before
