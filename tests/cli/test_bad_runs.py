"""Certification folders that were damaged, and images that cannot be classified."""

import gzip
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.cli.command import assert_refused
from tests.cli.conftest import Made
from tests.cli.digits import write_digit

CERTIFY = "certify {ensemble} --indices 0:6 --n 200 --members --out {out}"


def with_line(number: int, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    """Alters one line of certificates.jsonl."""

    def alter(folder: Path) -> None:
        path = folder / "certificates.jsonl"
        lines = path.read_bytes().splitlines(keepends=True)
        lines[number - 1] = change(lines[number - 1])
        path.write_bytes(b"".join(lines))

    return alter


def remove_config(folder: Path) -> None:
    (folder / "config.toml").unlink()


def break_config(folder: Path) -> None:
    (folder / "config.toml").write_bytes(b"kind = \xff\n")


def pack(folder: Path) -> None:
    path = folder / "certificates.jsonl"
    path.with_suffix(".jsonl.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()


BAD_RUNS: dict[str, tuple[Callable[[Path], None], tuple[str, ...]]] = {
    "half a line": (with_line(4, lambda old: old[:100] + b"\n"), ("line 4", "delete that line")),
    "empty line": (with_line(4, lambda old: b"\n"), ("line 4", "delete that line")),
    "not text": (with_line(4, lambda old: b"\xff\xfe\n"), ("line 4", "delete that line")),
    "a list": (with_line(4, lambda old: b"[1, 2]\n"), ("line 4", "got a list", "restore")),
    "other object": (with_line(4, lambda old: b"{}\n"), ("line 4", "schema", "got None")),
    "no model": (
        with_line(4, lambda old: old.replace(b'"model"', b'"modle"')),
        ("line 4", "missing ['model']", "restore"),
    ),
    "a list for a model": (
        with_line(4, lambda old: old.replace(b'"digits-mlp-seed1"', b"[]")),
        ("line 4", "model []", "restore"),
    ),
    "infinite radius": (
        with_line(4, lambda old: old.replace(b'"radius": ', b'"radius": 1e999, "r": ')),
        ("line 4", "restore"),
    ),
    "newer schema": (
        with_line(4, lambda old: old.replace(b'"schema": 1', b'"schema": 2')),
        ("line 4", "schema", "version that wrote it"),
    ),
    "no config": (remove_config, ("config.toml next to certificates.jsonl", "choose another")),
    "broken config": (break_config, ("config.toml", "expected TOML", "restore")),
    "packed": (pack, ("certificates.jsonl.gz", "gunzip")),
}


@pytest.mark.parametrize("name", BAD_RUNS)
def test_a_damaged_run_is_not_taken_up(name: str, made: Made, tmp_path: Path) -> None:
    out = Path(shutil.copytree(made.certificates, tmp_path / "out"))
    change, parts = BAD_RUNS[name]
    change(out)
    line = made.fill(CERTIFY, tmp_path)
    assert_refused(line, str(out), *parts, watched=(tmp_path,))


def save(mode: str, size: tuple[int, int]) -> Callable[[Path], None]:
    return lambda path: Image.new(mode, size).save(path)


def corrupt(path: Path) -> None:
    path.write_bytes(b"not an image")


def truncated(path: Path) -> None:
    write_digit(path)
    path.write_bytes(path.read_bytes()[:-30])


def deep(path: Path) -> None:
    Image.fromarray(np.zeros((8, 8), np.uint16)).save(path)


BAD_IMAGES: dict[str, tuple[Callable[[Path], None], tuple[str, ...]]] = {
    "wrong size": (save("L", (8, 9)), ("8 x 8", "got 9 x 8", "--resize")),
    "colour": (save("RGB", (8, 8)), ("grayscale", "an RGB image", "--convert")),
    "palette": (save("P", (8, 8)), ("grayscale", "a palette image", "--convert")),
    "16 bits": (deep, ("8-bit", "16 or more bits", "--convert")),
    "corrupt": (corrupt, ("something else", "save the file again")),
    "truncated": (truncated, ("truncated or corrupt", "save the file again")),
}


@pytest.mark.parametrize("name", BAD_IMAGES)
def test_images_that_cannot_be_classified(name: str, made: Made, tmp_path: Path) -> None:
    write_digit(tmp_path / "good.png")
    change, parts = BAD_IMAGES[name]
    change(tmp_path / "bad.png")
    line = f"predict {made.ensemble} {tmp_path}/good.png {tmp_path}/bad.png"
    assert_refused(line, "bad.png", *parts, watched=(tmp_path,))
