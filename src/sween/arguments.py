"""Numbers as people pass them, to plain ones: at the door of every public function."""

import numbers
import operator

from sween.errors import BadInput


def whole_number(name: str, value: object) -> int:
    """A plain int of anything that is a whole number, numpy's included; refuse the rest."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise BadInput(name, expected="a whole number", got=repr(value), fix=f"pass {name} as int")
    return operator.index(value)


def real_number(name: str, value: object) -> float:
    """A plain float of any real number, numpy's included; refuse the rest."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise BadInput(name, expected="a number", got=repr(value), fix=f"pass {name} as float")
    return float(value)
