"""Converts numeric arguments of public functions to plain Python numbers."""

import numbers
import operator
import re
from collections.abc import Container

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


def check_new_name(kind: str, name: str, built_in: Container[str]) -> None:
    """Refuse a name to register that is built in, or that folders and tables could not have."""
    taken = name in built_in
    if taken or not re.fullmatch(r"[A-Za-z0-9][\w.+-]*", name, re.ASCII):
        raise BadInput(
            f"{kind} name",
            expected="one that is not built in" if taken else "letters, digits and ._+-",
            got=repr(name),
            fix="choose another name",
        )
