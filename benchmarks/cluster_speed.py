"""What Ray costs: against the plain engine at one worker, and in a simulated cluster.

    python benchmarks/cluster_speed.py overhead --out results/cluster-speed/overhead.json
    python benchmarks/cluster_speed.py simulate --out results/cluster-speed/simulated.json

`overhead` certifies the digits by this process and by a single Ray worker in turns, and compares
the median times from the first vote to the last row; `idle` is the share of its time between the
first task and the last in which the worker had none.

`simulate` lets 64 workers sleep for as long as one core takes for a noise block of a CIFAR-10
image, and certifies 1,000 images with `decide`, whose costs differ a hundredfold; efficiency is the
time that they were asked to sleep, divided by 64 times the time of the run. Tasks and votes travel
through Ray as in a cluster, but the sleepers are threads of a few processes.
"""

import argparse
import json
import shlex
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch

import sween
from sween.cluster import RayPool
from sween.cluster.ray_pool import RayActor
from sween.engine import Pool, VoteEngine, Votes
from sween.engine.pool import Failed, Task, Traits
from sween.malloc import keep_freed_memory
from sween.run_folder import describe_environment, write_json
from sween.runs import verify_folder
from sween.sampling import CertifySettings
from sween.smoothing.dataset import iter_certificates

SLEEPERS = 64
PROCESSES = 4
TRAITS = Traits(
    host="simulated",
    sween=sween.__version__,
    torch=torch.__version__,
    device="cpu",
    precision="float32",
    rounding="",
    rows_asked=100,
    rows=100,
    whole_blocks=1,
    full_blocks=1,
)
"""As of CIFAR images on a CPU: a forward pass is one noise block."""


def timed_run(settings: CertifySettings, images: torch.Tensor, pool: Pool | None) -> float:
    """Seconds from the first vote to the last row."""
    model = sween.load("digits-sween3-gaussian-sigma0.50")
    smoothed = sween.SmoothedClassifier(model, sigma=0.5, num_classes=10, levels=16)
    options: dict[str, Any] = {"settings": settings, "pool": pool, "quiet": True}
    with tempfile.TemporaryDirectory() as folder:
        for _ in iter_certificates(smoothed, images, out=folder, **options):
            ended = time.time()
        # The config is written once everything is prepared.
        seconds = ended - (Path(folder) / "config.toml").stat().st_mtime
        verify_folder(folder)
    return seconds


class TimedActor(RayActor):
    """Knows when it counted."""

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self._times = list[tuple[float, float]]()

    def count(self, task: Task) -> Votes | Traits | Failed:
        began = time.perf_counter()
        answer = super().count(task)
        self._times.append((began, time.perf_counter()))
        return answer

    def idle(self) -> float:
        """Share of the time between the first task and the last in which it had none."""
        busy = sum(end - began for began, end in self._times)
        return 1 - busy / (self._times[-1][1] - self._times[0][0])


class TimedPool(RayPool):
    """RayPool whose worker is asked at the end how long it waited."""

    def _new_actor(self) -> Any:
        return ray.remote(num_cpus=1)(TimedActor).remote(self.device)

    def stop(self) -> None:
        (actor,) = self._actors.values()
        self.idle = ray.get(actor.idle.remote())
        super().stop()


def overhead(images: int, n: int, rounds: int) -> dict[str, Any]:
    """One Ray worker against one process, by turns."""
    torch.set_num_threads(1)  # as in a worker
    keep_freed_memory()  # as in a worker and in `sween certify`
    settings, seconds = CertifySettings(n=n), {"plain": list[float](), "ray": list[float]()}
    digits, idle = sween.load_dataset("digits").test.images(range(images)), list[float]()
    with TimedPool(1, device="cpu") as pool:
        for _ in range(rounds):
            seconds["plain"].append(timed_run(settings, digits, None))
            seconds["ray"].append(timed_run(settings, digits, pool))
            idle.append(pool.idle)
    median = {name: statistics.median(each) for name, each in seconds.items()}
    return {"seconds": seconds, "idle": idle, "overhead": median["ray"] / median["plain"] - 1}


class Sleepers:
    """Workers that sleep for each block; each image has its own probability of class 0."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._locks = [threading.Lock() for _ in range(SLEEPERS)]

    def start(self) -> None:
        pass

    def prepare(self, engine: VoteEngine, image: torch.Tensor) -> Traits:
        return TRAITS

    def count(self, worker: int, task: Task) -> Votes:
        with self._locks[worker]:  # one task after another, as a process does
            sizes = torch.tensor(task.request.sizes)
            time.sleep(self._seconds * -(-int(sizes.sum()) // 100))
        counts = torch.zeros(1, len(sizes), 10, dtype=torch.long)
        for row, (example, size) in enumerate(zip(task.request.examples, sizes, strict=True)):
            probability = np.random.default_rng(example).beta(6, 1.5)
            first = (task.request.first or [0] * len(sizes))[row]
            noise = np.random.default_rng([example, first, len(task.request.purpose)])
            counts[0, row, 0] = int(noise.binomial(int(size), probability))
            counts[0, row, 1] = size - counts[0, row, 0]
        return Votes(["SWEEN-3"], counts, 3 * sizes[None], list(task.request.sizes))


class _Method:
    def __init__(self, remote: Callable[..., Any]) -> None:
        self.remote = remote


class _Sleeper:
    """One of the workers, as `RayPool` uses an actor."""

    def __init__(self, process: Any, worker: int) -> None:
        self.start = _Method(process.start.remote)
        self.prepare = _Method(process.prepare.remote)
        self.count = _Method(lambda task: process.count.remote(worker, task))


class SleepingPool(RayPool):
    """RayPool with sleepers in place of actors."""

    def __init__(self, seconds: float) -> None:
        super().__init__(SLEEPERS, device="cpu")
        remote: Any = ray.remote
        together = remote(num_cpus=1, max_concurrency=2 * SLEEPERS)(Sleepers)
        self._processes = [together.remote(seconds) for _ in range(PROCESSES)]
        self.blocks, self.began = 0, 0.0

    def _new_actor(self) -> Any:
        return _Sleeper(self._processes[self._started % PROCESSES], self._started - 1)

    def submit(self, worker: int, task: Task) -> None:
        self.began = self.began or time.perf_counter()
        self.blocks += -(-sum(task.request.sizes) // 100)
        super().submit(worker, task)

    def stop(self) -> None:
        self.ended = time.perf_counter()
        self._actors.clear()


def measured_block() -> float:
    """Seconds of one core for a noise block of a CIFAR-10 image by three networks."""
    torch.set_num_threads(1)
    smoothed = sween.SmoothedClassifier.load("cifar10-sween3-gaussian-sigma0.50")
    smoothed.certify(torch.rand(1, 3, 32, 32), n0=100, n=100)  # prepares the networks
    began = time.process_time()
    smoothed.certify(torch.rand(1, 3, 32, 32), n0=100, n=400)
    return (time.process_time() - began) / 5


def simulate(images: int, n: int, seconds_per_block: float) -> dict[str, Any]:
    """A cluster of sleepers."""
    settings = CertifySettings(n=n, sampling="decide", radii=(0.5,))
    with SleepingPool(seconds_per_block) as pool:
        ray.get([process.prepare.remote(None, None) for process in pool._processes])
        timed_run(settings, torch.zeros(images, 1, 8, 8), pool)
        seconds = pool.ended - pool.began
        asked = pool.blocks * seconds_per_block
    return {
        "workers": SLEEPERS,
        "images": images,
        "blocks": pool.blocks,
        "seconds_per_block": seconds_per_block,
        "seconds": seconds,
        "efficiency": asked / (SLEEPERS * seconds),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=["overhead", "simulate"])
    parser.add_argument("--images", type=int)
    parser.add_argument("--n", type=int)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds-per-block", type=float)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.part == "overhead":
        found = overhead(given.images or 100, given.n or 20_000, given.rounds)
    else:
        found = simulate(
            given.images or 1_000, given.n or 10_000, given.seconds_per_block or measured_block()
        )
    command = shlex.join(["python", *sys.argv])
    found = {"command": command, **found, "ray": ray.__version__, **describe_environment()}
    sys.stdout.write(json.dumps(found, indent=2) + "\n")
    if given.out is not None:
        write_json(given.out, found)


if __name__ == "__main__":
    main()
