"""Builds the kernels for the emulator and launches them there."""

import ctypes
import subprocess
from collections.abc import Sequence
from pathlib import Path

import torch

from sween.kernels.cifar_resnet import Argument
from sween.kernels.source import read_source

EMULATOR = Path(__file__).with_name("emulator.cpp")


class Emulator:
    """A `Launch` on the CPU."""

    def __init__(self, folder: Path, compiler: str) -> None:
        self._libraries = {}
        source = folder / "kernels.cu"
        source.write_text(read_source(), encoding="utf-8")
        for stage in (1, 2, 3):
            library = folder / f"stage{stage}.so"
            definitions = [f"-DSTAGE={stage}", f'-DSOURCE="{source}"']
            options = ["-O2", "-std=c++17", "-Wno-unknown-pragmas", "-shared", "-fPIC"]
            subprocess.run([compiler, *options, *definitions, EMULATOR, "-o", library], check=True)
            self._libraries[stage] = ctypes.CDLL(str(library))

    def __call__(self, stage: int, blocks: int, arguments: Sequence[Argument]) -> None:
        values = [
            ctypes.c_void_p(value.data_ptr())
            if isinstance(value, torch.Tensor)
            else ctypes.c_int(value)
            for value in arguments
        ]
        pointers = [ctypes.cast(ctypes.byref(value), ctypes.c_void_p) for value in values]
        self._libraries[stage].launch(blocks, (ctypes.c_void_p * len(pointers))(*pointers))
