"""Runs the steps of a task, for tests of its result."""

from typing import TypeVar

from sween.interleave import Steps, interleave

Result = TypeVar("Result")


def finish(steps: Steps[Result]) -> Result:
    """The result of a task, run without interleaving."""
    (result,) = interleave([steps])
    return result
