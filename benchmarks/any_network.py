"""`sween bench` on well-known networks, by each way to compile them, each in a process of its own.

    python benchmarks/any_network.py --out results/certification-speed/h200-any-network.json

First every network by `fast`, then by `max`, each twice: the second process finds what the first
one kept on disk. Before all of them a process imports torch's compiler, so that its byte code is
there even if Python cannot keep it beside the source, as pip does. Ends before --seconds have
passed, and keeps what it has measured by then; a process that is not done at that time is stopped
and counts as not measured.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from sween.run_folder import describe_environment, write_json

NETWORKS = {
    "imagenet-resnet50": 224,
    "strangers:resnet110": 32,
    "strangers:wide_resnet50_2": 224,
    "strangers:vit_small": 224,
    "strangers:convnext_tiny": 224,
    "strangers:wide_resnet28_10": 32,
    "strangers:resnet18_cifar": 32,
    "resnet20x4": 32,
}
"""Image sizes, by name."""


def bench(
    name: str, mode: str, options: list[str], cache: Path, timeout: float
) -> dict[str, Any] | None:
    """One row, measured in a new process; None if it was not done in time."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "bench.json"
        command = [sys.executable, "-m", "sween", "bench", name, "--image-size"]
        command += [str(NETWORKS[name]), "--compile-mode", mode, *options, "--out", str(out)]
        environment = {**os.environ, **_caches(cache)}
        began = time.perf_counter()
        try:
            # In this folder, so that it finds strangers.py.
            subprocess.run(
                command, env=environment, cwd=Path(__file__).parent, check=True, timeout=timeout
            )
        except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as error:
            sys.stderr.write(f"{name} by {mode}: {error}\n")
            return None
        (row,) = json.loads(out.read_text())["results"]
        return {**row, "compile_mode": mode, "process_seconds": time.perf_counter() - began}


def _caches(folder: Path) -> dict[str, str]:
    return {"SWEEN_CACHE": str(folder), "PYTHONPYCACHEPREFIX": str(folder / "byte-code")}


def keep_byte_code(cache: Path) -> None:
    """Let Python translate torch's compiler once for all processes."""
    script = (
        "import torch._dynamo, torch._inductor.compile_fx, torch.distributed.fsdp, sween.engine"
    )
    subprocess.run([sys.executable, "-c", script], env={**os.environ, **_caches(cache)}, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", action="append", choices=[*NETWORKS])
    parser.add_argument("--mode", action="append", choices=["fast", "max"])
    parser.add_argument("--seconds", type=float, default=560.0)
    parser.add_argument("--measure-seconds", type=float, default=1.0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    end = time.monotonic() + arguments.seconds
    options = ["--seconds", str(arguments.measure_seconds), "--rounds", "2"]
    options += ["--device", arguments.device]
    rows = []
    with tempfile.TemporaryDirectory() as cache:
        keep_byte_code(Path(cache))
        for mode in arguments.mode or ["fast", "max"]:
            for name in arguments.network or NETWORKS:
                for run in ("first", "again"):
                    left = end - time.monotonic()
                    row = bench(name, mode, options, Path(cache), left) if left > 0 else None
                    if row is None:
                        break
                    rows.append({**row, "run": run})
                    content = {"environment": describe_environment(), "results": rows}
                    write_json(arguments.out, content)


if __name__ == "__main__":
    main()
