"""The numbers a user writes, refused at the door or turned into exact decimals.

Theorem 2 asks for sizes such as 1e27, far beyond the 16 digits of a float, and an inequality has to
hold at the very integer that is reported. So every term is computed with 400 decimal digits, and
0.1 means one tenth: the number as written, not the float nearest to it.
"""

import math
from decimal import Context, Decimal
from numbers import Integral, Real

from sween.errors import BadInput

PRECISE = Context(prec=400)
"""The context of all arithmetic on the terms of Theorem 2."""

LARGEST_SIZE = 10**300
"""Sizes above this are refused, so that 400 digits always resolve one more or one less."""


def positive(name: str, value: float, *, fix: str) -> Decimal:
    """A positive finite number, exactly as written."""
    number = _decimal(value)
    if number is None or number <= 0:
        raise BadInput(name, expected="a positive number", got=value, fix=fix)
    return number


def target_gap(value: float) -> Decimal:
    """epsilon, the gap of risk that Theorem 2 should guarantee."""
    return positive("epsilon", value, fix="try 0.1")


def failure_probability(value: float) -> Decimal:
    """eta, the probability with which the guarantee may fail."""
    number = _decimal(value)
    if number is None or not 0 < number < 1:
        raise BadInput(
            "eta", expected="a number strictly between 0 and 1", got=value, fix="try 0.05"
        )
    return number


def lipschitz_constant(value: float) -> Decimal:
    """L, the Lipschitz constant of the loss in the probabilities, in the l2 norm."""
    return positive("lipschitz", value, fix="pass the constant of your loss scaled into [0,1]")


def complexity_constant(value: float) -> Decimal:
    """beta of Lemma 9, which the paper leaves open."""
    return positive("beta", value, fix="2.51 is always enough, just above sqrt(2 pi)")


def density_norm(value: float) -> Decimal:
    """||phi||_p, the largest ratio of two densities, w to p: both integrate to 1, so >= 1."""
    number = _decimal(value)
    if number is None or number < 1:
        raise BadInput(
            "phi_norm",
            expected="a number of at least 1 (the largest ratio of two densities)",
            got=value,
            fix="try 2",
        )
    return number


def class_count(value: int) -> int:
    """M, the number of classes."""
    return whole("num_classes", value, at_least=2)


def whole(name: str, value: int, *, at_least: int = 1, at_most: int = LARGEST_SIZE) -> int:
    """An integer within its limits; True and 3.0 are not integers."""
    if (
        isinstance(value, bool)
        or not isinstance(value, Integral)
        or not at_least <= value <= at_most
    ):
        limit = "" if at_most == LARGEST_SIZE else f" and at most {at_most:,}"
        raise BadInput(
            name,
            expected=f"a whole number of at least {at_least}{limit}",
            got=value,
            fix=f"pass an integer such as {max(at_least, 10)}",
        )
    return int(value)


def vote_probability(name: str, value: float, *, zero_allowed: bool = False) -> float:
    """The probability of a vote for a class: in (0, 1], or [0, 1] where zero is allowed."""
    allowed = isinstance(value, Real) and math.isfinite(value) and 0 <= value <= 1
    if not allowed or (value == 0 and not zero_allowed):
        low = "[0" if zero_allowed else "(0"
        raise BadInput(name, expected=f"a number in {low}, 1]", got=value, fix="try 0.9")
    return float(value)


def _decimal(value: float) -> Decimal | None:
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    number = as_written(value)
    return number if number.is_finite() else None


def as_written(value: float) -> Decimal:
    """The decimal number that a float was read from: the shortest text that reads back as it."""
    return Decimal(int(value)) if isinstance(value, Integral) else Decimal(repr(float(value)))
