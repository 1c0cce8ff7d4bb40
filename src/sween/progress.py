"""Progress with rate and time left: one live line on a terminal, periodic lines in a log."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import Progress, ProgressColumn, Task
from rich.table import Column
from rich.text import Text

Advance = Callable[[int, str], None]
"""Called with the units done since the last call and a short note such as the current loss."""

SECONDS_BETWEEN_LINES = 15.0

SECONDS_WITHOUT_START_UP = 5.0
"""After so many, a rate is measured from the first units on."""

LEAST_SHARE = 0.01
"""Of the units: fewer, done in one step, may have spent their time on compilation."""

MAX_BAR, MIN_BAR = 24, 6
MIN_DESCRIPTION = 8
"""In columns; if even these do not fit, the note is truncated as well."""


@contextlib.contextmanager
def track(
    description: str, total: int, *, quiet: bool = False, often_short: bool = False
) -> Iterator[Advance]:
    """Show progress on standard error while the block runs; stdout is left to results.

    What is often short leaves no line in a log unless it takes SECONDS_BETWEEN_LINES.
    """
    if quiet:
        yield lambda _done, _note: None
    elif sys.stderr.isatty():
        with _bar(description, total) as advance:
            yield advance
    else:
        with _log(description, total, often_short) as advance:
            yield advance


@contextlib.contextmanager
def _bar(description: str, total: int) -> Iterator[Advance]:
    console = Console(stderr=True)
    with Progress(_Line(console), console=console) as bar:
        task = bar.add_task(description, total=total, note="")
        yield lambda done, note: bar.update(task, advance=done, note=note)


class _Line(ProgressColumn):
    """The whole line as a single column, so that its parts can share the available width."""

    def __init__(self, console: Console) -> None:
        super().__init__(table_column=Column(no_wrap=True))
        self._console = console

    def render(self, task: Task) -> Text:
        total, done = int(task.total or 0), int(task.completed)
        elapsed = task.finished_time or task.elapsed or 0.0
        # The recent speed; the mean if units take minutes each.
        speed = task.finished_speed or task.speed or (done / elapsed if elapsed else 0.0)
        if done >= total:
            when = f"took {format_seconds(elapsed)}"
        else:
            when = f"{format_seconds((total - done) / speed) if speed else '?'} left"
        numbers = [
            f"{format_count(min(done, total))}/{format_count(total)}",
            format_rate(speed) if speed else "",
            when,
        ]
        return _fit(
            task.description,
            [number for number in numbers if number],
            task.fields["note"],
            share=done / total if total else 1.0,
            width=self._console.width,
            glyph="-" if self._console.options.ascii_only else "━",
        )


def _fit(
    description: str, numbers: list[str], note: str, *, share: float, width: int, glyph: str
) -> Text:
    """Description, bar, numbers and note on one line of at most `width` columns.

    The numbers are never truncated: the bar shrinks first, then the description, then the note.
    """
    tail = "  ".join([*numbers, *([note] if note else [])])
    room = width - len(description) - len(tail) - 4
    if room >= MIN_BAR:
        size = min(room, MAX_BAR)
        filled = int(size * min(share, 1.0))
        return Text.assemble(
            f"{description}  ",
            (glyph * filled, "bar.complete"),
            # Spaces, since without colours both parts of the bar would look alike.
            (" " * (size - filled)),
            f"  {tail}",
        )
    least = min(len(description), MIN_DESCRIPTION)
    tail = _cut(tail, width - least - 2)
    return Text(_cut(f"{_cut(description, max(width - len(tail) - 2, least))}  {tail}", width))


def _cut(text: str, size: int) -> str:
    return text if len(text) <= size else f"{text[: max(size - 1, 0)]}…"[: max(size, 0)]


def format_count(count: int) -> str:
    """A count in at most six characters, such as 9999, 12.3k or 1.2M; rounded down."""
    for unit, name in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= max(unit, 10_000):
            tenths = count * 10 // unit
            return f"{tenths // 10}.{tenths % 10}{name}"
    return str(count)


def format_rate(rate: float) -> str:
    """Units per second, to about three digits."""
    if rate >= 10_000:
        return f"{format_count(int(rate))}/s"
    return f"{rate:.{0 if rate >= 100 else 1 if rate >= 10 else 2}f}/s"


def format_seconds(seconds: float) -> str:
    """A duration in about five characters: 45s, 2m05s, 12m, 3h20m."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes}m{rest:02d}s" if minutes < 10 else f"{minutes}m"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m"


@contextlib.contextmanager
def _log(description: str, total: int, often_short: bool) -> Iterator[Advance]:
    started = last_line = time.monotonic()
    done_so_far, last_note, used = 0, "", False
    first: tuple[float, int] | None = None
    """When the first units were done, and how many: what starts up or compiles precedes them."""

    def write(rate: float, when: str) -> None:
        count = f"{format_count(min(done_so_far, total))}/{format_count(total)}"
        line = f"{description} {count}  {rate:,.1f}/s  {when}  {last_note}"
        sys.stderr.write(line.rstrip() + "\n")

    def mean_rate() -> float:
        return done_so_far / max(time.monotonic() - started, 1e-9)

    def advance(done: int, note: str) -> None:
        nonlocal done_so_far, last_line, last_note, used, first
        done_so_far, last_note, used = done_so_far + done, note, True
        now = time.monotonic()
        if first is None and done_so_far:
            first = now, done_so_far
        if done_so_far >= total or now - last_line < SECONDS_BETWEEN_LINES:
            return
        last_line = now
        since, before = first or (now, 0)
        if done_so_far > before and now - since >= SECONDS_WITHOUT_START_UP:
            rate = (done_so_far - before) / (now - since)
        else:
            rate = mean_rate()
        known = done_so_far > before or done_so_far >= LEAST_SHARE * total > 0
        write(rate, f"{(total - done_so_far) / rate:.0f} s left" if known else "? s left")

    yield advance
    # The last line is written when the block ends: the note passed with the last unit may be older
    # than the result it describes.
    was_short = often_short and last_line == started
    if used and done_so_far >= total and not was_short:
        write(mean_rate(), f"took {time.monotonic() - started:.1f} s")
