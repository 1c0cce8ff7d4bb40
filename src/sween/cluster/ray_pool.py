"""A pool of Ray actors, on a local Ray or on an existing cluster."""

import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Self

import torch

from sween.arguments import whole_number
from sween.engine import VoteEngine
from sween.engine.pool import (
    Counted,
    Event,
    Failed,
    Joined,
    Lost,
    PoolWorker,
    Starting,
    Task,
    Traits,
)
from sween.engine.votes import Votes
from sween.errors import BadInput, MissingExtra, SweenError, first_line
from sween.malloc import keep_freed_memory

MAX_STILLBIRTHS = 3
"""Workers that may die one after another before they join until the run ends."""

CONNECT_SECONDS, ANSWER_SECONDS = 5.0, 20.0


class RayActor:
    """A worker process. It answers what sween refuses as `Failed`, since some errors do not travel.

    Args:
        device: on which it counts.
    """

    def __init__(self, device: str) -> None:
        keep_freed_memory()
        self._device = device

    def start(self) -> None:
        """Returns once there is a process."""

    def prepare(self, engine: VoteEngine, image: torch.Tensor) -> Traits | Failed:
        if self._device == "cpu":
            torch.set_num_threads(1)  # Ray reckons with one core per actor
        try:
            self._worker = PoolWorker(engine, image, self._device)
        except SweenError as error:
            return Failed(str(error))
        return self._worker.traits

    def count(self, task: Task) -> Votes | Traits | Failed:
        try:
            return self._worker.count(task)
        except SweenError as error:
            return Failed(str(error))


class RayPool:
    """A pool of Ray actors; see `Pool`. Use it as a context manager, which leaves Ray at the end.

    Args:
        workers: number of actors; by default one per CPU, or per GPU.
        address: `host:port` of a cluster that this machine belongs to, or `auto` to find the one
            that runs here; by default a local Ray is started. If this process has already
            connected to a cluster, that one is used.
        device: cpu or cuda; `auto` is cuda where there are GPUs.

    Example:
        >>> import sween
        >>> from sween.cluster import RayPool
        >>> digits = sween.load_dataset("digits")
        >>> smoothed = sween.SmoothedClassifier.load("digits-sween3-gaussian-sigma0.50")
        >>> with RayPool(workers=2) as pool:  # doctest: +SKIP
        ...     run = sween.certify_dataset(smoothed, digits, out="run", n=500, pool=pool)
    """

    def __init__(
        self, workers: int | None = None, *, address: str | None = None, device: str = "auto"
    ) -> None:
        if device not in {"auto", "cpu", "cuda"}:
            raise BadInput("device", expected="auto, cpu or cuda", got=device, fix="try auto")
        if workers is not None and whole_number("workers", workers) < 1:
            raise BadInput("workers", expected="at least 1", got=workers, fix="start at least one")
        self._ray = _import_ray()
        self._own = not self._ray.is_initialized()
        if self._own:
            _connect(self._ray, workers, address, device)
        elif address is not None:
            raise BadInput(
                "`ray_address`",
                expected="none, since this process has already connected to Ray",
                got=address,
                fix="call ray.shutdown() first, or leave it out",
            )
        try:
            self.device, self.size = self._choose(device, workers)
        except BadInput:
            self.close()
            raise
        self._lock = threading.Lock()
        self._actors: dict[int, Any] = {}
        self._joined = set[int]()
        self._started = self._stillbirths = 0

    def _choose(self, device: str, workers: int | None) -> tuple[str, int]:
        """The kind of device and the number of workers, if the cluster has enough."""
        found = self._ray.cluster_resources()
        if device == "auto":
            device = "cuda" if found.get("GPU") else "cpu"
        kind = "GPU" if device == "cuda" else "CPU"
        most = int(found.get(kind, 0))
        if not most:
            fix = "use `device='cpu'`" if kind == "GPU" else "add nodes to it"
            raise BadInput("device", expected=f"a cluster with {kind}s", got="none", fix=fix)
        if (workers or 1) > most:
            raise BadInput(
                "workers",
                expected=f"at most {most}, the number of {kind}s in the cluster",
                got=workers,
                fix="start fewer, or add nodes",
            )
        return device, workers or most

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave Ray, unless the caller had connected to it."""
        if self._own:
            self._ray.shutdown()

    def start(
        self, engine: VoteEngine, image: torch.Tensor, report: Callable[[Event], None]
    ) -> None:
        gpus = int(self.device == "cuda")
        self._actor = self._ray.remote(
            num_cpus=1, num_gpus=gpus, max_restarts=0, scheduling_strategy="SPREAD"
        )(RayActor)
        self._report, self._image = report, image
        try:
            self._engine = self._ray.put(engine)  # once, however many actors take it from there
        except Exception as error:
            raise BadInput(
                "model",
                expected="a model that can be sent to another process",
                got=first_line(error),
                fix="define its classes in a module, and leave open files and locks out of it",
            ) from None
        for _ in range(self.size):
            self._hire()

    def _hire(self) -> None:
        with self._lock:
            worker, self._started = self._started, self._started + 1
        actor = self._actors[worker] = self._new_actor()

        def join(traits: Traits) -> Event:
            self._joined.add(worker)
            self._stillbirths = 0
            return Joined(worker, traits)

        self._watch(worker, actor.start.remote(), lambda _: Starting(worker))
        self._watch(worker, actor.prepare.remote(self._engine, self._image), join)

    def _new_actor(self) -> Any:
        return self._actor.remote(self.device)

    def submit(self, worker: int, task: Task) -> None:
        actor = self._actors.get(worker)
        if actor is not None:  # else its loss is being reported

            def counted(answer: Votes | Traits) -> Event:
                return Counted(worker, task.number, answer)

            self._watch(worker, actor.count.remote(task), counted)

    def _watch(self, worker: int, reference: Any, event_of: Callable[[Any], Event]) -> None:
        def done(future: "Future[Any]") -> None:
            error = future.exception()
            if error is None:
                answer = future.result()
                self._report(answer if isinstance(answer, Failed) else event_of(answer))
            elif isinstance(error, self._ray.exceptions.RayTaskError):
                reason = first_line(error.cause)
                self._report(Failed(f"a worker failed: {type(error.cause).__name__}: {reason}"))
            else:
                self._lose(worker, error)

        reference.future().add_done_callback(done)

    def _lose(self, worker: int, error: BaseException) -> None:
        with self._lock:
            actor = self._actors.pop(worker, None)
        if actor is not None:  # once, however many tasks it had
            self._last_words = " ".join(str(error).split())
            self._report(Lost(worker))

    def replace(self, worker: int) -> None:
        if worker not in self._joined:
            self._stillbirths += 1
        if self._stillbirths >= MAX_STILLBIRTHS:
            raise BadInput(
                "workers",
                expected="that they start",
                got=self._last_words[-300:],
                fix="is sween installed on every node?",
            )
        self._hire()

    def stop(self) -> None:
        with self._lock:
            actors, self._actors = list(self._actors.values()), {}
        for actor in actors:
            self._ray.kill(actor)


def _import_ray() -> Any:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # leaves the GPUs visible
    try:
        import ray
    except ImportError:
        raise MissingExtra("ray", "ray", "the engine ray") from None
    logging.getLogger("ray").setLevel(logging.ERROR)
    return ray


def _connect(ray: Any, workers: int | None, address: str | None, device: str) -> None:
    quietly = {"log_to_driver": False, "configure_logging": False, "include_dashboard": False}
    if address is None:
        cpus = max(workers or 0, len(os.sched_getaffinity(0)))
        gpus = 0 if device == "cpu" else torch.cuda.device_count()
        ray.init(address="local", num_cpus=cpus, num_gpus=gpus, **quietly)
        return
    try:
        if address != "auto":
            _refuse_silence(address)
        del quietly["include_dashboard"]  # which an existing cluster has or has not
        ray.init(address=address, **quietly)
    except (OSError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        raise BadInput(
            "`ray_address`",
            expected="host:port of a Ray cluster that this machine belongs to, or auto",
            got=f"{address} ({first_line(error)})",
            fix="start the cluster, and let this machine join it, with Ray's own command",
        ) from None


def _refuse_silence(address: str) -> None:
    """Raise if no cluster answers; `ray.init` would try for minutes, and say so."""
    host, _, port = address.rpartition(":")
    socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
    command = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", address]
    try:
        answer = subprocess.run(command, capture_output=True, timeout=ANSWER_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise OSError(f"no answer within {ANSWER_SECONDS:.0f} seconds") from None
    if answer.returncode:
        raise OSError(answer.stderr.decode(errors="replace").strip().rpartition("\n")[2])
