"""Interleaved tasks: while one waits for a copy, others run."""

import itertools

import pytest
import torch

from sween.interleave import Steps, done, interleave, to_device_async, to_host_async
from tests.stepping import finish


def _work(name: str, stops: int, log: list[str], here: bool = False) -> Steps[str]:
    for stop in range(stops):
        log.append(f"{name}{stop}")
        yield lambda: here
    log.append(f"{name}.")
    return name


def test_tasks_take_turns() -> None:
    log: list[str] = []
    results = list(interleave(_work(name, 2, log) for name in "abc"))
    assert results == ["a", "b", "c"]
    assert log == ["a0", "b0", "a1", "b1", "a.", "c0", "b.", "c1", "c."]


def test_other_tasks_start_before_the_host_waits() -> None:
    log: list[str] = []
    list(interleave((_work(name, 1, log) for name in "abc"), at_once=3))
    assert log == ["a0", "b0", "c0", "a.", "b.", "c."]


def test_a_task_resumes_as_soon_as_its_copy_is_ready() -> None:
    log: list[str] = []
    assert list(interleave(_work(name, 2, log, here=True) for name in "ab")) == ["a", "b"]
    assert log == ["a0", "a1", "a.", "b0", "b1", "b."]


def test_tasks_without_copies_run_one_by_one() -> None:
    """So that only one batch is in memory if there are no copies to wait for."""
    log: list[str] = []
    turns = interleave(_work(name, 0, log) for name in "abc")
    assert log == []
    assert next(turns) == "a"
    assert log == ["a."]
    assert list(turns) == ["b", "c"]


def test_a_result_is_yielded_as_soon_as_it_is_ready() -> None:
    """A request whose counts were read while batches of the next are queued one by one."""
    log: list[str] = []
    here = iter([False, False, True])

    def read() -> Steps[str]:
        yield lambda: next(here)
        return "read"

    works = itertools.chain([read()], (_work(name, 0, log) for name in "abcdef"))
    results = list(interleave(works))
    assert results == ["a", "b", "read", "c", "d", "e", "f"]


def test_nothing_to_do() -> None:
    assert list(interleave([])) == []


def test_an_error_ends_all() -> None:
    def fails() -> Steps[str]:
        yield lambda: False
        raise MemoryError

    log: list[str] = []
    with pytest.raises(MemoryError):
        list(interleave([_work("a", 5, log), fails()]))
    assert "a." not in log


def test_finish_and_done() -> None:
    log: list[str] = []
    assert finish(_work("a", 3, log)) == "a"
    assert finish(done(7)) == 7
    assert log == ["a0", "a1", "a2", "a."]


def test_host_tensors_need_no_copy() -> None:
    own = torch.arange(3)
    assert list(to_host_async(own)) == []
    (got,) = finish(to_host_async(own))
    assert torch.equal(got, own)
    assert torch.equal(to_device_async(own, torch.device("cpu")), own)
