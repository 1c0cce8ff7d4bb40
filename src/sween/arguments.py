"""Checks arguments of public functions, and converts numbers to plain Python numbers."""

import numbers
import operator

from sween.errors import BadInput, describe_type


def check_type(
    name: str, value: object, kind: type, *, fix: str, error: type[BadInput] = BadInput
) -> None:
    """Refuse what is not an instance of `kind`."""
    if not isinstance(value, kind):
        raise error(name, expected=f"a {kind.__name__}", got=describe_type(value), fix=fix)


def text(name: str, value: object) -> str:
    """A string that is not empty and can be written to a file; refuse anything else."""
    if not isinstance(value, str) or not value or any("\ud800" <= own <= "\udfff" for own in value):
        raise BadInput(name, expected="a text", got=repr(value), fix=f"pass {name} as str")
    return value


def whole_number(name: str, value: object) -> int:
    """Convert any integer, including numpy's, to a plain int; refuse anything else."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise BadInput(name, expected="a whole number", got=repr(value), fix=f"pass {name} as int")
    return operator.index(value)


def real_number(name: str, value: object) -> float:
    """Convert any real number, including numpy's, to a plain float; refuse anything else."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise BadInput(name, expected="a number", got=repr(value), fix=f"pass {name} as float")
    try:
        return float(value)
    except OverflowError:  # a whole number of more than 308 digits
        raise BadInput(
            name, expected="a number", got="one beyond float64", fix="check it"
        ) from None
