"""Progress: lines with rate and time left in a log, a bar on a terminal, nothing when quiet."""

import io
import re
import sys
from types import SimpleNamespace

import pytest
from rich.console import Console
from rich.progress import Progress

from sween import progress
from sween.progress import track


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    """Stands in for time.monotonic."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    fake = Clock()
    monkeypatch.setattr("sween.progress.time", SimpleNamespace(monotonic=fake))
    return fake


def test_lines_have_done_total_rate_and_time_left(
    capsys: pytest.CaptureFixture[str], clock: Clock
) -> None:
    with track("certify", 1000) as advance:
        clock.now += 20
        advance(200, "last radius 0.512")
        clock.now += 20
        advance(200, "")
        clock.now += 60
        advance(600, "done")
    captured = capsys.readouterr()
    assert captured.out == "", "stdout is for results"
    assert captured.err.splitlines() == [
        "certify 200/1000  10.0/s  80 s left  last radius 0.512",
        "certify 400/1000  10.0/s  60 s left",
        "certify 1000/1000  10.0/s  took 100.0 s  done",
    ]


def test_the_time_left_does_not_count_compilation(
    capsys: pytest.CaptureFixture[str], clock: Clock
) -> None:
    with track("train", 10_000) as advance:
        clock.now += 60  # compiles
        advance(1, "")
        for _ in range(4):
            clock.now += 8
            advance(800, "")
    assert capsys.readouterr().err.splitlines() == [
        "train 1/10.0k  0.0/s  ? s left",
        "train 1601/10.0k  100.0/s  84 s left",
        "train 3201/10.0k  100.0/s  68 s left",
    ]


def test_lines_are_periodic(capsys: pytest.CaptureFixture[str], clock: Clock) -> None:
    with track("train", 1000) as advance:
        for _ in range(1000):
            clock.now += 0.1
            advance(1, "loss 1.0")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == int(100 // progress.SECONDS_BETWEEN_LINES) + 1
    assert lines[-1].startswith("train 1000/1000 ")
    assert all(re.search(r"\d+/1000  [\d,.]+/s  (\d+ s left|took [\d.]+ s)", s) for s in lines)


def test_no_division_by_zero(capsys: pytest.CaptureFixture[str], clock: Clock) -> None:
    with track("nothing", 0) as advance:
        advance(0, "")
    with track("instant", 2) as advance:
        advance(2, "")
    assert "instant 2/2" in capsys.readouterr().err


@pytest.mark.parametrize("terminal", [True, False])
def test_quiet_prints_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    with track("certify", 3, quiet=True) as advance:
        advance(3, "note")
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


def test_a_terminal_gets_a_bar(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "140")
    with track("certify", 4) as advance:
        advance(1, "first")
        advance(3, "last radius 0.512")
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue())
    assert "certify" in shown
    assert "4/4" in shown
    assert "left" in shown
    assert "last radius 0.512" in shown
    assert capsys.readouterr().out == ""


WORK = {
    "certify": (
        *("certify SWEEN-3", 5_050_000, 505_000, "votes; {}/1000 images, radius 0.512"),
        *("505.0k/5.0M", "5.0M/5.0M"),
    ),
    "train": (
        *("train resnet110 seed 0", 37_500, 3_750, "epoch {}/200, loss 0.512, acc 71.2%"),
        *("3750/37.5k", "37.5k/37.5k"),
    ),
    "attack": ("attack SWEEN-3 (autoattack)", 10, 1, "images", "1/10", "10/10"),
    "candidates": (
        *("train 12 candidates", 1_200_000, 120_000, "epoch {}/1000, loss 1.23, acc 9.2%"),
        *("120.0k/1.2M", "1.2M/1.2M"),
    ),
}
"""Description, total, units per step, note, and how the count begins and ends."""


@pytest.mark.parametrize("width", [60, 80, 100, 140])
@pytest.mark.parametrize("work", WORK)
def test_the_bar_is_one_line_that_fits(work: str, width: int) -> None:
    description, total, step, note, first, last = WORK[work]
    shown, now = io.StringIO(), 0.0
    console = Console(width=width, file=shown, force_terminal=True, color_system=None)
    line = progress._Line(console)
    bar = Progress(line, console=console, get_time=lambda: now, auto_refresh=False)
    task = bar.add_task(description, total=total, note="")
    console.print(bar.get_renderable())
    for done in range(1, total // step + 1):
        now += 90.0
        bar.update(task, advance=step, note=note.format(done))
        console.print(bar.get_renderable())
    begun, *going, ended = shown.getvalue().splitlines()
    assert len(going) == total // step - 1, "each state is one line"
    assert begun.split()[0] == description.split()[0]
    for text in (begun, *going, ended):
        assert len(text) <= width
    assert all(re.search(r"\d/s  (\d+m|\d+m\d\ds) left", text) for text in going[1:])
    assert first in going[0]
    assert last in ended
    assert "took 15m" in ended
    assert "left" not in ended
    if width >= 80:
        assert ended.endswith(note.format(total // step)), "the note is whole at 80 columns"
        assert description[:7] in ended
    if width >= 140:
        assert description in ended
        assert ended.count("━") == progress.MAX_BAR
        assert 0 < going[4].count("━") < progress.MAX_BAR


@pytest.mark.parametrize(
    ("count", "text"),
    [
        *((0, "0"), (9_999, "9999"), (10_000, "10.0k"), (12_345, "12.3k"), (999_999, "999.9k")),
        *((1_000_000, "1.0M"), (1_250_000, "1.2M"), (5_050_000_000, "5.0G")),
    ],
)
def test_counts_are_short_and_rounded_down(count: int, text: str) -> None:
    assert progress.format_count(count) == text


@pytest.mark.parametrize(
    ("rate", "text"),
    [(0.016, "0.02/s"), (1.5, "1.50/s"), (99.94, "99.9/s"), (1500, "1500/s"), (38_460, "38.4k/s")],
)
def test_rates_are_short(rate: float, text: str) -> None:
    assert progress.format_rate(rate) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "0s"), (59.4, "59s"), (59.6, "1m00s"), (599, "9m59s"), (600, "10m"), (12_000, "3h20m")],
)
def test_times_are_short(seconds: float, text: str) -> None:
    assert progress.format_seconds(seconds) == text


@pytest.mark.parametrize("terminal", [True, False])
def test_the_last_line_has_the_final_note(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    """The votes of the last image are counted before its row can be reported."""
    stream = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    with track("certify", 5) as advance:
        for done in range(5):
            advance(1, f"{done}/5 images")
        advance(0, "5/5 images")
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue())
    assert "5/5 images" in shown.rstrip().splitlines()[-1]
    if not terminal:
        assert stream.getvalue().count("\n") == 1, "one last line"


@pytest.mark.parametrize("terminal", [True, False])
def test_an_error_inside_propagates(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal() if terminal else io.StringIO())

    def work() -> None:
        with track("work", 3) as advance:
            advance(1, "")
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        work()
