"""The command line: verbs of a few lines that call public functions. No logic lives here."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from types import FrameType

from sween.malloc import keep_freed_memory

INTERRUPTED = 130

_STOPPED = "sween: interrupted; run the same command again to resume train, certify or attack\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb. Exit codes: 0 done, 1 a check failed, 2 bad input, 130 interrupted.

    Args:
        arguments: verb and options; None for those of this process, run as a command.
    """
    words = sys.argv[1:] if arguments is None else arguments
    keep_freed_memory()
    try:
        with _leaving_at_once() if arguments is None else contextlib.nullcontext():
            from sween.cli.app import import_verb, run_verb

            import_verb(words)  # and torch, which takes seconds

        return run_verb(words)
    except KeyboardInterrupt:
        sys.stderr.write(_STOPPED)
        return INTERRUPTED


@contextlib.contextmanager
def _leaving_at_once() -> Iterator[None]:
    """Exit immediately on an interrupt, which third-party imports may otherwise swallow.

    numpy, for example, responds to it by retrying an import, which fails for another reason.
    """
    usual = signal.getsignal(signal.SIGINT)
    if usual is not signal.default_int_handler or (
        threading.current_thread() is not threading.main_thread()
    ):
        yield  # a handler installed by the caller, or ignored
        return
    signal.signal(signal.SIGINT, _leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)


def _leave(_number: int, _frame: FrameType | None) -> None:
    os.write(sys.stderr.fileno(), _STOPPED.encode())
    os._exit(INTERRUPTED)


__all__ = ["main"]
