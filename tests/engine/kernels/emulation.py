"""Builds the kernels for the emulator and launches them there."""

import contextlib
import ctypes
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from sween import cuda
from sween.cuda import Argument
from sween.engine.kernels.shape import Shape
from sween.engine.kernels.source import NOISE, read_source
from sween.engine.layer_kernels import Form

EMULATOR = Path(__file__).with_name("emulator.cpp")
NOISE_EMULATOR = Path(__file__).with_name("noise_emulator.cpp")


class Emulator:
    """A `Launch` on the CPU; counts faults of the kernels, such as races.

    Built in `folder` by a C++ compiler, from the kernels' source unless another is given.
    """

    def __init__(
        self, folder: Path, compiler: str, shape: Shape, source: str | None = None
    ) -> None:
        self.shape, self.faults = shape, 0
        source = source or read_source(shape.files)
        self._kernels = {
            stage: Kernel(
                folder / str(stage),
                compiler,
                source,
                shape.definitions(stage),
                shape.shared_bytes(stage),
            )
            for stage in (1, 2, 3)
        }

    def __call__(self, stage: int, blocks: int, arguments: Sequence[Argument]) -> None:
        self.faults += self._kernels[stage](blocks, arguments)


class Kernel:
    """One kernel, built for the emulator; calls return its faults."""

    def __init__(
        self,
        folder: Path,
        compiler: str,
        source: str,
        definitions: Sequence[str],
        shared_bytes: int,
    ) -> None:
        folder.mkdir()
        path, library = folder / "kernels.cu", folder / "kernel.so"
        path.write_text(source, encoding="utf-8")
        options = ["-O2", "-std=c++17", "-Wno-unknown-pragmas", "-ffp-contract=off"]
        options += ["-shared", "-fPIC", f'-DSOURCE="{path}"', f"-DSHARED_BYTES={shared_bytes}"]
        options.append("-U_FORTIFY_SOURCE")  # with it, jumps from one stack to another abort
        subprocess.run([compiler, *options, *definitions, EMULATOR, "-o", library], check=True)
        self._launch = ctypes.CDLL(str(library)).launch
        self._launch.restype = ctypes.c_long

    def __call__(self, blocks: int, arguments: Sequence[Argument]) -> int:
        with _pointers(arguments) as array:
            return int(self._launch(blocks, array))


class FormEmulator:
    """A launcher of a kernel that is compiled for each of its forms, on the CPU."""

    def __init__(self, folder: Path, compiler: str, files: tuple[str, ...], kernel: str) -> None:
        self._folder, self._compiler, self._kernel = folder, compiler, kernel
        self._source = cuda.read_source("sween.engine", files)
        self._kernels = dict[Form, Kernel]()
        self.faults = self.launches = 0

    def __call__(self, form: Form, blocks: int, arguments: Sequence[Argument]) -> None:
        if form not in self._kernels:
            options = [*form.definitions(), f"-DENTRY={self._kernel}"]
            place = self._folder / str(len(self._kernels))
            self._kernels[form] = Kernel(place, self._compiler, self._source, options, 4)
        self.launches += 1
        self.faults += self._kernels[form](blocks, arguments)


class NoiseEmulator:
    """A `LaunchNoise` on the CPU, built as `Emulator` is."""

    def __init__(self, folder: Path, compiler: str, source: str | None = None) -> None:
        path, library = folder / "noise.cu", folder / "noise.so"
        path.write_text(source or read_source(NOISE), encoding="utf-8")
        options = ["-O2", "-std=c++17", "-ffp-contract=off", "-shared", "-fPIC"]
        definition = f'-DSOURCE="{path}"'
        subprocess.run([compiler, *options, definition, NOISE_EMULATOR, "-o", library], check=True)
        self._library = ctypes.CDLL(str(library))

    def __call__(self, kernel: str, blocks: int, arguments: Sequence[Argument]) -> None:
        with _pointers(arguments) as array:
            getattr(self._library, f"launch_{kernel}")(blocks, array)


@contextlib.contextmanager
def _pointers(arguments: Sequence[Argument]) -> Iterator[object]:
    """The addresses of a kernel's arguments."""
    values = [
        ctypes.c_void_p(value.data_ptr())
        if isinstance(value, torch.Tensor)
        else ctypes.c_int(value)
        for value in arguments
    ]
    pointers = [ctypes.cast(ctypes.byref(value), ctypes.c_void_p) for value in values]
    yield (ctypes.c_void_p * len(pointers))(*pointers)
