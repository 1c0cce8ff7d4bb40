"""Where the seconds before a network's first vote go: each step of its preparation, by the clock.

    python benchmarks/first_vote.py strangers:resnet110 --image-size 32 --out FILE
    python benchmarks/first_vote.py imagenet-resnet50 --image-size 224 --profile

In a second process, as `sween bench` has it in later runs: the first one fills the caches. A step's
seconds are from its call to its return, with those of the steps in it, which are indented. A GPU is
waited for at both ends, which costs a little; --no-wait leaves that out. --profile lists functions
by their own time, and slows Python down.
"""

import argparse
import contextlib
import cProfile
import functools
import importlib
import io
import json
import pstats
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from any_network import environment, keep_byte_code

STEPS = {
    "member": ["prepare", "state_of"],
    "prepare": [
        *("_unused_copy", "inspect_module", "is_read_rightly", "is_same_in_any_layout"),
        *("fold_batch_norm", "computes_the_same", "fused_form", "plain_form", "on_few"),
        *("check_kernels", "refuse_leftovers", "refuse_first_images", "run_on_few"),
        "relative_change",
    ],
    "forms": [
        *("fuse_layers", "computes_the_same", "_without_autocast", "relative_change"),
        "use_patches",
    ],
    "backends": [
        *("_as_resnet", "as_cifar_resnet", "computes_the_same", "compiled", "captured"),
        *("captured_after_images", "launcher"),
    ],
    "same_outputs": ["on_few", "relative_change"],
    "inspection": ["_copied", "_run"],
    "same_operations": ["_where_it_runs", "_recorded", "_does_the_same_without_writes"],
}
"""Functions that are timed, by the modules of sween.engine where they are looked up."""

MOST = 45
"""Functions that --profile lists."""


class Clock:
    """Seconds and calls of steps, by their place among each other."""

    def __init__(self, *, wait: bool) -> None:
        self.wait = wait and torch.cuda.is_available()
        self.found: dict[tuple[str, ...], list[float]] = {}
        self._inside: tuple[str, ...] = ()

    def around(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            outside, self._inside = self._inside, (*self._inside, name)
            seconds = self.found.setdefault(self._inside, [])
            began = self.now()
            try:
                return function(*args, **kwargs)
            finally:
                seconds.append(self.now() - began)
                self._inside = outside

        return timed

    def now(self) -> float:
        if self.wait:
            torch.cuda.synchronize()
        return time.perf_counter()


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """The steps of one preparation and a first pass, in this process."""
    from sween.cli.bench import _model
    from sween.smoothing import SmoothedClassifier

    clock = Clock(wait=options.wait)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    network, shape, classes, sigma = _model(options.network, None, options.image_size, ())
    network.to(device)
    image = torch.full(shape, 0.5).mul(255).round().div(255).to(device)
    profile = cProfile.Profile()
    with contextlib.ExitStack() as stack:
        for room, names in STEPS.items():
            module = importlib.import_module(f"sween.engine.{room}")
            for name in names:
                timed = clock.around(name, getattr(module, name))
                stack.enter_context(mock.patch.object(module, name, timed))
        began = clock.now()
        if options.profile:
            profile.enable()
        engine = SmoothedClassifier(network, sigma=sigma, num_classes=classes).engine
        clock.around("engine.prepare", engine.prepare)(image)
        profile.disable()
        prepared = clock.now() - began
    text = io.StringIO()
    if options.profile:
        pstats.Stats(profile, stream=text).sort_stats("tottime").print_stats(MOST)
    rows = [
        {"step": list(place), "calls": len(seconds), "seconds": sum(seconds)}
        for place, seconds in clock.found.items()
    ]
    own = {"network": options.network, "seconds": prepared, "arithmetic": engine.precision}
    return {**own, "steps": rows, "profile": text.getvalue()}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("network")
    parser.add_argument("--image-size", type=int, required=True)
    parser.add_argument("--no-wait", dest="wait", action="store_false")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--here", action="store_true", help="in this process alone")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    if options.here:
        found = measured(options)
        options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        return
    with tempfile.TemporaryDirectory() as folder:
        cache, out = Path(folder), Path(folder) / "steps.json"
        keep_byte_code(cache)
        for _ in range(2):
            given = sys.argv[1:] if arguments is None else [*arguments]
            again = [sys.executable, __file__, *given, "--here", "--out", str(out)]
            subprocess.run(again, env=environment(cache), check=True)
        found = json.loads(out.read_text(encoding="utf-8"))
    if options.out is not None:
        options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(f"{found['network']}, {found['arithmetic']}: {found['seconds']:.2f} s\n")
    for row in found["steps"]:
        indent = "  " * (len(row["step"]) - 1)
        sys.stdout.write(f"{row['seconds']:7.3f} s {row['calls']:3d} x {indent}{row['step'][-1]}\n")
    sys.stdout.write(found["profile"])


if __name__ == "__main__":
    main()
