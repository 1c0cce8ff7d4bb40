"""Running the steps of a work, for tests of what it returns."""

from typing import TypeVar

from sween.interleave import Steps, in_turns

Result = TypeVar("Result")


def finish(steps: Steps[Result]) -> Result:
    """What the steps return, with nothing in between."""
    (result,) = in_turns([steps])
    return result
