"""Facts about the installation that need nothing but Python."""

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import sween
from sween.paths import AnyPath, cache_folder

Facts = dict[str, str]
"""What is known, by name."""

REQUIRED = (
    *("torch", "numpy", "scipy", "mpmath", "safetensors", "Pillow", "typer", "rich"),
    "scikit-learn",
)
EXTRAS = {
    "report": "matplotlib",
    "tensorboard": "tensorboard",
    "attack": "pyautoattack",
    "timm": "timm",
    "slurm": "submitit",
    "ray": "ray",
}
"""The package of each extra."""

COMPANIONS = ("torchvision",)
"""Packages that no extra names but people use next to sween, and timm does; built for one torch."""

NOT_INSTALLED = "not installed"

VARIABLES = (
    *("SWEEN_CACHE", "SWEEN_ZOO", "SWEEN_COMMIT", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"),
    *("TORCHINDUCTOR_CACHE_DIR", "PYTHONPATH", "LD_LIBRARY_PATH"),
)
"""Environment variables that change what sween or torch does."""

_FLAGS = ("avx", "avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "bf16")
_MOST_FILES = 100_000
_SECONDS = 10
"""For a compiler or a driver to say its version."""


def describe_versions() -> Facts:
    """Of sween and Python, and where they are."""
    return {
        "sween": f"{sween.__version__} in {Path(sween.__file__).parent}",
        "Python": f"{platform.python_version()} ({platform.python_implementation()}), "
        f"{sys.executable}",
    }


def describe_packages() -> Facts:
    """The versions of what sween needs."""
    return {package: version_of(package) for package in REQUIRED}


def version_of(package: str) -> str:
    """Of an installed package, by its metadata."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return NOT_INSTALLED


def describe_machine() -> Facts:
    """Platform, processor and memory, without the machine's name."""
    name, flags = _processor()
    return {
        "platform": platform.platform(),
        "processor": name,
        "instructions": " ".join(flag for flag in _FLAGS if flag in flags) or "unknown",
        "cores": f"{len(os.sched_getaffinity(0))} of {os.cpu_count()}",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.1f} GiB",
        "NVIDIA driver": _version_line(
            ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        ),
    }


def _processor() -> tuple[str, set[str]]:
    """Its name and its features, as Linux lists them."""
    found: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        found.setdefault(name.strip(), value.strip())
    features = found.get("flags") or found.get("Features") or ""
    return found.get("model name", platform.machine()), set(features.split())


def describe_compilers() -> Facts:
    """Those of C++, with which torch compiles networks, and of CUDA."""
    named = os.environ.get("CXX")
    compilers = ["g++", "clang++", "nvcc"] if named is None else [named, "nvcc"]
    return {name: _version_line([name, "--version"]) for name in compilers}


def _version_line(command: Sequence[str]) -> str:
    """The first line in which a program names a version."""
    if shutil.which(command[0]) is None:
        return "not found"
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, errors="replace", check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    lines = (done.stdout or done.stderr).splitlines()
    numbered = [line for line in lines if re.search(r"\d\.\d", line)]
    return numbered[0] if numbered else f"exit code {done.returncode}"


def describe_folders() -> Facts:
    """The cache of decoded images and compiled code."""
    return {"cache": describe_folder(cache_folder)}


def describe_folder(where: Callable[[], Path]) -> str:
    """Where a folder is, how large its files are, and whether it can be written."""
    try:
        folder = where()
        size, free = _size(folder), shutil.disk_usage(_existing(folder)).free
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home
        return str(error)
    can = _why_not_writable(_existing(folder))
    return f"{folder}: {size}, {can or 'writable'}, {free / 1e9:.1f} GB free"


def _why_not_writable(folder: Path) -> str | None:
    """Tried, since root may do everything except on some file systems; leaves nothing behind."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"sween")
    except OSError as error:
        return f"NOT writable ({error.strerror})"
    return None


def _existing(folder: Path) -> Path:
    """The folder itself, or the nearest one above it that exists."""
    return next(place for place in (folder, *folder.absolute().parents) if place.exists())


def _size(folder: Path) -> str:
    """How much the files in a folder take."""
    if not folder.exists():
        return "does not exist yet"
    if not folder.is_dir():
        return "a file, not a folder"
    total = count = 0
    for file in _files(folder):
        total += file.stat(follow_symlinks=False).st_size
        count += 1
        if count == _MOST_FILES:
            return f"more than {total / 1e6:.1f} MB in {count} files"
    return f"{total / 1e6:.1f} MB in {count} files"


def _files(folder: AnyPath) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _files(entry)
            else:
                yield entry


def describe_data(root: Path | None) -> Facts:
    """The digits, and which of the other data sets a folder seems to hold."""
    digits = importlib.util.find_spec("sklearn") is not None
    found = {"digits": "found, in scikit-learn" if digits else "not found: needs scikit-learn"}
    if root is None:
        return found
    for name, files in _LAYOUTS.items():
        there = [file for file in files if (root / file).exists()]
        found[name] = f"found {', '.join(there)} in {root}" if there else f"not in {root}"
    return found


_LAYOUTS: dict[str, Sequence[str]] = {
    "cifar10": ("cifar-10-batches-py", "cifar-10-python.tar.gz"),
    "image_folder": ("train", "val"),
}


def describe_variables() -> Facts:
    """Environment variables that matter and are set."""
    found = {name: os.environ[name] for name in VARIABLES if name in os.environ}
    return found or {"set": "none"}
