"""Running the steps of a work, for tests of what it returns."""

from typing import TypeVar

from sween.interleave import Steps, interleave

Result = TypeVar("Result")


def finish(steps: Steps[Result]) -> Result:
    """What the steps return, with nothing in between."""
    (result,) = interleave([steps])
    return result
