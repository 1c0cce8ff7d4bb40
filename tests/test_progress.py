"""Progress: lines with rate and time left in a log, a bar on a terminal, nothing when quiet."""

import io
import re
import sys
from types import SimpleNamespace

import pytest

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
    assert captured.out == "", "results stay alone on standard output"
    assert captured.err.splitlines() == [
        "certify 200/1000  10.0/s  80 s left  last radius 0.512",
        "certify 400/1000  10.0/s  60 s left",
        "certify 1000/1000  10.0/s  took 100.0 s  done",
    ]


def test_lines_come_now_and_then(capsys: pytest.CaptureFixture[str], clock: Clock) -> None:
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


def test_the_rate_column() -> None:
    from rich.progress import Progress

    now = 0.0
    bar = Progress(get_time=lambda: now)
    task = bar.add_task("work", total=5000)
    column = progress._RateColumn()
    assert column.render(bar.tasks[0]).plain == ""
    for _ in range(3):
        now += 1.0
        bar.update(task, advance=1500)
    assert column.render(bar.tasks[0]).plain == "1,500.0/s"


@pytest.mark.parametrize("terminal", [True, False])
def test_an_error_inside_goes_through(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal() if terminal else io.StringIO())

    def work() -> None:
        with track("work", 3) as advance:
            advance(1, "")
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        work()
