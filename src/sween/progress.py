"""Progress with rate and time left: a bar on a terminal, a line now and then in a log."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

Advance = Callable[[int, str], None]
"""Called with the units done since the last call and a short note such as the current loss."""

SECONDS_BETWEEN_LINES = 15.0


class _RateColumn(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.1f}/s")


@contextlib.contextmanager
def track(description: str, total: int, *, quiet: bool = False) -> Iterator[Advance]:
    """Show progress on standard error while the block runs; results stay alone on stdout."""
    if quiet:
        yield lambda _done, _note: None
    elif sys.stderr.isatty():
        with _bar(description, total) as advance:
            yield advance
    else:
        yield _logger(description, total)


@contextlib.contextmanager
def _bar(description: str, total: int) -> Iterator[Advance]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        _RateColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(description, total=total, note="")
        yield lambda done, note: bar.update(task, advance=done, note=note)


def _logger(description: str, total: int) -> Advance:
    started = last_line = time.monotonic()
    done_so_far = 0

    def advance(done: int, note: str) -> None:
        nonlocal done_so_far, last_line
        done_so_far += done
        now = time.monotonic()
        finished = done_so_far >= total
        if not finished and now - last_line < SECONDS_BETWEEN_LINES:
            return
        last_line = now
        rate = done_so_far / max(now - started, 1e-9)
        left = (total - done_so_far) / max(rate, 1e-9)
        when = f"took {now - started:.1f} s" if finished else f"{left:.0f} s left"
        line = f"{description} {done_so_far}/{total}  {rate:,.1f}/s  {when}  {note}"
        sys.stderr.write(line.rstrip() + "\n")

    return advance
