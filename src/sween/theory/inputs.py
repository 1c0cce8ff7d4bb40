"""The range of every number that `sween plan` takes."""

from collections.abc import Callable
from decimal import Decimal
from numbers import Integral, Real

from sween.errors import BadInput

LARGEST_SIZE = 10**300
"""Sizes above it are refused, so that the 400 digits of Theorem 2 tell an integer from the next."""

_INTEGER = "pass an integer such as 10"
_SIZE = (Integral, lambda x: 1 <= x <= LARGEST_SIZE, "a whole number of at least 1", _INTEGER)

_RANGES: dict[str, tuple[type, Callable[[Decimal], bool], str, str]] = {
    "epsilon": (Real, lambda x: x > 0, "a positive number", "try 0.1"),
    "eta": (Real, lambda x: 0 < x < 1, "a number strictly between 0 and 1", "try 0.05"),
    "lipschitz": (Real, lambda x: x > 0, "a positive number", "scale your loss into [0,1]"),
    "num_classes": (Integral, lambda x: x >= 2, "a whole number of at least 2", _INTEGER),
    "phi_norm": (Real, lambda x: x >= 1, "at least 1, the largest ratio of densities", "try 2"),
    "beta": (Real, lambda x: x > 0, "a positive number", "2.51 is always enough"),
    **dict.fromkeys(("members", "images", "samples"), _SIZE),
    "p": (Real, lambda x: 0 < x <= 1, "a number in (0, 1]", "try 0.9"),
    "runner_up": (Real, lambda x: 0 <= x <= 1, "a number in [0, 1]", "try 0.05"),
    "radius": (Real, lambda x: x > 0, "a positive number", "try 0.5"),
    "n": (Integral, lambda x: 1 <= x <= 10**9, "a whole number from 1 to 1e9", _INTEGER),
}


def checked(**values: float) -> list[Decimal]:
    """The numbers as they were written, 0.1 as one tenth; BadInput for one out of its range."""
    exact = []
    for name, value in values.items():
        kind, allowed, expected, fix = _RANGES[name]
        is_number = isinstance(value, kind) and not isinstance(value, bool)
        number = as_written(value) if is_number else Decimal("NaN")
        if not number.is_finite() or not allowed(number):
            raise BadInput(name, expected=expected, got=value, fix=fix)
        exact.append(number)
    return exact


def as_written(value: float) -> Decimal:
    """The shortest decimal number that reads back as the float."""
    return Decimal(int(value)) if isinstance(value, Integral) else Decimal(repr(float(value)))
