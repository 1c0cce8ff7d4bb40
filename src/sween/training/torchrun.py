"""The start and the end of a process that torchrun started; of all failures, one line is printed.

If a process fails, the others wait for it in a reduction that never comes. So each also looks for
failures of the others, and leaves when it sees one; the first process prints it.
"""

import contextlib
import datetime
import os
import sys
import threading
import warnings

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from sween.training.distributed import Processes

_POLL = 0.1
"""Seconds between two looks for failures of other processes."""

_GRACE = 2.0
"""Seconds in which a process may report a failure itself; many happen to all processes at once."""

_PATIENCE = datetime.timedelta(seconds=30)
"""For the first process to print a failure of another."""


def start_processes() -> Processes | None:
    """Join the other processes of this run; None in a process that torchrun did not start."""
    global _watch
    if not dist.is_torchelastic_launched():
        return None
    store, rank, count = next(rendezvous("env://"))
    # With both, what is on the CPU is exchanged by gloo, which needs no GPU to be chosen yet.
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=count)
    _watch = _Watch(PrefixStore("sween", store), rank)
    if rank:
        warnings.simplefilter("ignore")  # the first process shows them
    return Processes(rank, count, int(os.environ["LOCAL_RANK"]))


def stop_processes() -> None:
    """Leave the other processes, which are done as well."""
    if _watch is not None:
        _watch.leave()
        dist.destroy_process_group()


def report_failure(line: str) -> None:
    """Print why a command fails to standard error; under torchrun in the first process, once."""
    if _watch is not None:
        _watch.report(line)
    elif not dist.is_torchelastic_launched() or os.environ.get("RANK") == "0":
        sys.stderr.write(line)


class _Watch:
    def __init__(self, store: Store, rank: int) -> None:
        self._store, self._rank = store, rank
        self._leaving = threading.Event()
        threading.Thread(target=self._look, daemon=True).start()

    def leave(self) -> None:
        self._leaving.set()

    def report(self, line: str) -> None:
        self._leaving.set()
        if self._rank == 0:
            self._print(line)
            return
        own = f"{line.rstrip()} (process {self._rank})\n"
        try:
            self._store.compare_set("failure", "", own)
            self._store.wait(["printed"], _PATIENCE)
        except RuntimeError:  # nobody listens any more
            sys.stderr.write(own)

    def _look(self) -> None:
        # The store is gone once torchrun ends.
        with contextlib.suppress(RuntimeError):
            while not self._store.check(["failure"]):
                if self._leaving.wait(_POLL):
                    return
            if self._leaving.wait(_GRACE):
                return
            if self._rank == 0:
                self._print(self._store.get("failure").decode())
            os._exit(2)  # the main thread waits in a reduction, which cannot be interrupted

    def _print(self, line: str) -> None:
        sys.stderr.write(line)
        sys.stderr.flush()
        with contextlib.suppress(RuntimeError):
            self._store.set("failure", line)
            self._store.set("printed", "")


_watch: _Watch | None = None
