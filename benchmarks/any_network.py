"""`sween bench` on well-known networks, by each way to run them, each in a process of its own.

    python benchmarks/any_network.py --out results/certification-speed/h200-any-network.json

Modes: `fast` and `max` as in `sween bench --compile-mode`; `cudnn`, which is `fast` without torch's
compiler (without_compiler.py); `plain`, ours in turns with plain `torch.compile` in one process
(plain_compile.py). All but the last run twice: the second process finds what the first one kept on
disk. Before all of them a process imports torch's compiler, so that its byte code is there even if
Python cannot keep it beside the source, as pip does.

Ends before --seconds have passed; a process that is not done at that time is stopped and counts as
not measured. Call again with the same --out for the networks that had no turn: those in the file
are left out. The tables of docs/ read files of the modes `fast` and `max` alone, so give the other
modes files of their own.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from turns import Turns

NETWORKS = {
    "imagenet-resnet50": 224,
    "strangers:wide_resnet28_10": 32,
    "strangers:resnet110": 32,
    "strangers:vit_small": 224,
    "resnet20x4": 32,
    "strangers:convnext_tiny": 224,
    "strangers:wide_resnet50_2": 224,
    "strangers:resnet18_cifar": 32,
    "resnet20x2": 32,
    "resnet20x3": 32,
    "resnet26x3": 32,
    "resnet32x4": 32,
    "resnet26x2": 32,
    "resnet26x4": 32,
    "resnet32x2": 32,
    "resnet32x3": 32,
}
"""Image sizes, by name; those with a goal of their own first."""

MODES = ("fast", "plain", "cudnn", "max")

HERE = Path(__file__).resolve().parent

BYTE_CODE = "byte-code"
"""Folder of Python's, below that of the caches."""


def command(name: str, mode: str, options: Sequence[str]) -> list[str]:
    """The command that measures a network; it takes --out FILE too."""
    size = ["--image-size", str(NETWORKS[name])]
    if mode == "plain":
        return [sys.executable, str(HERE / "plain_compile.py"), name, *size, *options]
    sween = [str(HERE / "without_compiler.py")] if mode == "cudnn" else ["-m", "sween"]
    way = "fast" if mode == "cudnn" else mode
    return [sys.executable, *sween, "bench", name, *size, "--compile-mode", way, *options]


def bench(
    name: str, mode: str, options: Sequence[str], cache: Path, timeout: float
) -> dict[str, Any] | None:
    """One row, measured in a new process; None if it was not done in time."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "bench.json"
        began = time.perf_counter()
        try:
            # In this folder, so that it finds strangers.py.
            subprocess.run(
                [*command(name, mode, options), "--out", str(out)],
                env=environment(cache),
                cwd=HERE,
                check=True,
                timeout=timeout,
            )
        except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as error:
            sys.stderr.write(f"{name} by {mode}: {error}\n")
            return None
        (row,) = json.loads(out.read_text())["results"]
        return {**row, "compile_mode": mode, "process_seconds": time.perf_counter() - began}


def environment(cache: Path) -> dict[str, str]:
    """Of the processes: caches of their own, and this one's modules from whatever folder."""
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    # The scripts' own folder too: `-m` adds the current one, a script only that of its file.
    absolute = os.pathsep.join([*(str(Path(path).resolve()) for path in paths), str(HERE)])
    caches = {"SWEEN_CACHE": str(cache), "PYTHONPYCACHEPREFIX": str(cache / BYTE_CODE)}
    own = {**os.environ, **caches, "PYTHONPATH": absolute}
    own.pop("PYTHONDONTWRITEBYTECODE", None)  # images of containers often set it
    return own


def keep_byte_code(cache: Path) -> None:
    """Let Python translate torch's compiler once for all processes."""
    script = (
        "import torch._dynamo, torch._inductor.compile_fx, torch.distributed.fsdp, sween.engine"
    )
    subprocess.run([sys.executable, "-c", script], env=environment(cache), cwd=HERE, check=True)
    if not has_byte_code(cache):
        sys.stderr.write("Python kept no byte code: first votes include translating torch\n")


def has_byte_code(cache: Path) -> bool:
    """Whether Python kept byte code of torch's compiler there, the only place where it looks."""
    return any((cache / BYTE_CODE).rglob("_dynamo/*.pyc"))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", action="append", choices=[*NETWORKS])
    parser.add_argument("--mode", action="append", choices=MODES)
    parser.add_argument("--seconds", type=float, default=540.0)
    parser.add_argument("--measure-seconds", type=float, default=1.0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, required=True)
    chosen = parser.parse_args(arguments)
    options = ["--seconds", str(chosen.measure_seconds), "--rounds", "2"]
    if chosen.device != "auto":
        options += ["--device", chosen.device]
    subjects = {
        f"{name} by {mode}": (name, mode)
        for mode in chosen.mode or ("fast", "max")
        for name in chosen.network or NETWORKS
    }
    turns = Turns(chosen.out, [*subjects], chosen.seconds)
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder)
        if turns.missing:
            keep_byte_code(cache)
        for subject in turns:
            name, mode = subjects[subject]
            rows = list[dict[str, Any]]()
            for run in ("first",) if mode == "plain" else ("first", "again"):
                row = bench(name, mode, options, cache, max(1, turns.seconds_left))
                if row is None:
                    break
                rows.append({**row, "run": run, "byte_code": has_byte_code(cache)})
            else:
                turns.add(subject, rows)
    turns.say_what_is_missing()


if __name__ == "__main__":
    main()
