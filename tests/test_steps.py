"""Work in turns: what waits for a number lets others go on."""

import pytest
import torch

from sween.steps import Steps, fetched, finish, in_turns, known, sent


def _work(name: str, stops: int, log: list[str]) -> Steps[str]:
    for stop in range(stops):
        log.append(f"{name}{stop}")
        yield
    log.append(f"{name}.")
    return name


def test_works_take_turns() -> None:
    log: list[str] = []
    results = list(in_turns(_work(name, 2, log) for name in "abc"))
    assert results == ["a", "b", "c"]
    assert log == ["a0", "b0", "a1", "b1", "a.", "c0", "b.", "c1", "c."]


def test_others_are_begun_before_one_goes_on() -> None:
    log: list[str] = []
    list(in_turns((_work(name, 1, log) for name in "abc"), at_once=3))
    assert log == ["a0", "b0", "c0", "a.", "b.", "c."]


def test_what_never_stops_is_done_at_once_and_taken_one_by_one() -> None:
    """So that one batch at a time is in memory where no number has to come."""
    log: list[str] = []
    turns = in_turns(_work(name, 0, log) for name in "abc")
    assert log == []
    assert next(turns) == "a"
    assert log == ["a."]
    assert list(turns) == ["b", "c"]


def test_a_result_waits_for_room_and_no_longer() -> None:
    """A set of images that was read goes out when the next one is queued, or nothing is left."""
    log: list[str] = []
    stops = {"a": 0, "b": 1, "c": 0, "d": 1, "e": 0}
    results = []
    for name in in_turns(_work(name, stops[name], log) for name in stops):
        results.append(name)
        log.append(f"got {name}")
    assert results == ["a", "c", "b", "e", "d"]
    assert log.index("d0") < log.index("got b") < log.index("e.")


def test_nothing_to_do() -> None:
    assert list(in_turns([])) == []


def test_an_error_ends_all() -> None:
    def fails() -> Steps[str]:
        yield
        raise MemoryError

    log: list[str] = []
    with pytest.raises(MemoryError):
        list(in_turns([_work("a", 5, log), fails()]))
    assert "a." not in log


def test_finish_and_known() -> None:
    log: list[str] = []
    assert finish(_work("a", 3, log)) == "a"
    assert finish(known(7)) == 7
    assert log == ["a0", "a1", "a2", "a."]


def test_what_is_on_the_host_is_there_at_once() -> None:
    own = torch.arange(3)
    assert list(fetched(own)) == []
    (got,) = finish(fetched(own))
    assert torch.equal(got, own)
    assert torch.equal(sent(own, torch.device("cpu")), own)
