"""The start and the end of a process that torchrun started; of all failures, one line is printed.

If a process fails, the others wait for it in a reduction that never comes. So each also looks for
failures of the others, and leaves when it sees one; the first process prints it.
"""

import contextlib
import datetime
import os
import secrets
import sys
import threading
import time
import warnings

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from sween.training.distributed import Processes, noticing_loss

_FAILURE, _PRINTED = "failure", "printed"
"""Keys of the store."""

_POLL = 0.1
"""Seconds between two looks for failures of other processes."""

_GRACE = 2.0
"""Seconds in which a process may report a failure itself; many happen to all processes at once."""

_PATIENCE = 30.0
"""Seconds for the first process to print a failure."""


def start_processes() -> Processes | None:
    """Join the other processes of this run; None in a process that torchrun did not start."""
    global _watch
    if not dist.is_torchelastic_launched():
        return None
    # With both, what is on the CPU is exchanged by gloo, which needs no GPU to be chosen yet.
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    with noticing_loss():
        store, rank, count = next(rendezvous("env://"))
        dist.init_process_group(backend, store=store, rank=rank, world_size=count)
    processes = Processes(rank, count, int(os.environ["LOCAL_RANK"]))
    # torchrun keeps its store when it restarts the processes: failures of before are not ours.
    attempt = processes.from_first(secrets.token_hex(8))
    _watch = _Watch(PrefixStore(f"sween/{attempt}", store), rank)
    if not processes.first:
        warnings.simplefilter("ignore")  # the first process shows them
    return processes


def end_process() -> None:
    """End a process that torchrun started, all of whose work is done; any other one goes on.

    Python's own way out would meet threads in the middle of torch's code, which keeps some after
    the group's end, and the process would rarely abort.
    """
    if _watch is not None:
        _watch.leaving.set()
        dist.destroy_process_group()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def report_failure(line: str, code: int) -> int:
    """Print why a command fails to standard error; under torchrun once, in the first process.

    Returns:
        The exit code. A process that has joined others ends here: without them, torch's own way out
        may abort with a message of its own.
    """
    if _watch is not None:
        _watch.report(line)
        os._exit(code)
    if dist.is_torchelastic_launched() and os.environ["RANK"] != "0":
        time.sleep(_PATIENCE)  # the first one fails as well, and torchrun then ends this one
    sys.stderr.write(line)
    return code


class _Watch:
    """Looks for failures of the other processes in the store that torchrun keeps for all."""

    def __init__(self, store: Store, rank: int) -> None:
        self.store, self.rank = store, rank
        self.leaving = threading.Event()
        self._printing, self._printed = threading.Lock(), False
        threading.Thread(target=self._look, daemon=True).start()

    def report(self, line: str) -> None:
        self.leaving.set()
        if self.rank == 0:
            self._print(line)
            return
        own = f"{line.rstrip()} (process {self.rank})\n"
        try:
            self.store.compare_set(_FAILURE, "", own)
            self.store.wait([_PRINTED], datetime.timedelta(seconds=_PATIENCE))
        except RuntimeError:  # the first process is gone, or busy
            sys.stderr.write(own)

    def _look(self) -> None:
        with contextlib.suppress(RuntimeError):  # the store is gone: so is torchrun
            while not self.store.check([_FAILURE]):
                if self.leaving.wait(_POLL):
                    return
            if self.leaving.wait(_GRACE):
                return
            if self.rank == 0:
                self._print(self.store.get(_FAILURE).decode())
            else:  # torchrun ends all processes once one has left
                with contextlib.suppress(RuntimeError):  # the first process is gone, or busy
                    self.store.wait([_PRINTED], datetime.timedelta(seconds=_PATIENCE))
            os._exit(2)  # the main thread waits in a reduction, which cannot be interrupted

    def _print(self, line: str) -> None:
        with self._printing:  # by this thread or the one that looks
            if self._printed:
                return
            self._printed = True
            sys.stderr.write(line)
            sys.stderr.flush()
            # Whoever finds it printed may end this process at once.
            with contextlib.suppress(RuntimeError):
                self.store.set(_FAILURE, line)
                self.store.set(_PRINTED, "")


_watch: _Watch | None = None
