"""Converts numeric arguments of public functions to plain Python numbers."""

import numbers
import operator

from sween.errors import BadInput


def whole_number(name: str, value: object) -> int:
    """Convert any integer, including numpy's, to a plain int; refuse anything else."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise BadInput(name, expected="a whole number", got=repr(value), fix=f"pass {name} as int")
    return operator.index(value)


def real_number(name: str, value: object) -> float:
    """Convert any real number, including numpy's, to a plain float; refuse anything else."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise BadInput(name, expected="a number", got=repr(value), fix=f"pass {name} as float")
    return float(value)
