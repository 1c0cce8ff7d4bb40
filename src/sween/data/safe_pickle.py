"""Read a pickle of arrays and plain values without letting it choose what code runs.

A pickle names the functions to call. CIFAR-10 is published as pickles: `cifar10.py` first checks
that each file is the published one, byte for byte, and this unpickler then finds no names but those
that an array needs. Files of unknown origin must not be read this way: a forged array can still
crash numpy.
"""

import io
import pickle
from typing import Any

import numpy as np

from sween.errors import DataError

_RECONSTRUCT: Any = np.zeros(0).__reduce__()[0]
_NAMES = {
    "numpy.core.multiarray._reconstruct": _RECONSTRUCT,  # up to numpy 1
    "numpy._core.multiarray._reconstruct": _RECONSTRUCT,
    "numpy.ndarray": np.ndarray,
    "numpy.dtype": np.dtype,
}


def loads_plain(data: bytes, where: str) -> Any:
    """The value of a pickle of arrays and plain values; texts of Python 2 come back as bytes.

    Anything else in it, and a malformed pickle, is refused; `where` names its file in the error.
    """
    try:
        return _PlainUnpickler(io.BytesIO(data), encoding="bytes").load()
    except Exception as error:  # a malformed pickle can raise nearly anything
        raise DataError(
            where,
            expected="a pickle of numpy arrays and plain Python values",
            got=str(error) or type(error).__name__,
            fix="nothing in it was run; fetch the file again from its source",
        ) from error


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" not in _NAMES:
            raise pickle.UnpicklingError(f"a reference to {f'{module}.{name}'!r}")
        return _NAMES[f"{module}.{name}"]
