"""Read a pickle without running any code from it.

A pickle is a program: `pickle.load` calls whatever function the file names. CIFAR-10 is published
as pickles, so they are read by an unpickler that allows only the names that an array of numbers
needs, and refuses the rest before anything is imported or called.
"""

import io
import pickle
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from sween.errors import DataError

_PLAIN = "numpy arrays of numbers and plain Python values"
_FIX = "nothing in it was run; fetch the file again from its source"
_NDARRAY = "numpy.ndarray"
"""Stands for the class `numpy.ndarray` inside a pickle; a text, so that it cannot be called."""
_NUMBER_KINDS = "biufc"
_BYTE_ORDERS = ("<", ">", "|", "=")
_RECONSTRUCT: Callable[..., npt.NDArray[Any]] = cast(Any, np.zeros(0)).__reduce__()[0]
_MODULES = ("numpy.core.multiarray", "numpy._core.multiarray")


def loads_plain(data: bytes, where: str) -> Any:
    """The value of a pickle of arrays, dictionaries, lists, tuples, sets, numbers and bytes.

    Texts written by Python 2 come back as bytes. Anything else in the pickle, and a malformed one,
    is refused; `where` names its file in the error.
    """
    try:
        return _PlainUnpickler(io.BytesIO(data), encoding="bytes").load()
    except _NotPlain as error:
        raise DataError(where, expected=_PLAIN, got=str(error), fix=_FIX) from error
    except Exception as error:  # a malformed pickle can raise nearly anything
        raise DataError(
            where, expected=_PLAIN, got=f"a malformed pickle ({type(error).__name__})", fix=_FIX
        ) from error


class _NotPlain(Exception):
    """What the pickle holds that it must not."""


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module in _MODULES and name == "_reconstruct":
            return _Reconstruct()
        if (module, name) == ("numpy", "ndarray"):
            return _NDARRAY
        if (module, name) == ("numpy", "dtype"):
            return _MakeDtype()
        if (module, name) == ("_codecs", "encode"):
            return _EncodeLatin1()
        raise _NotPlain(f"a reference to {f'{module}.{name}'!r}")

    def persistent_load(self, pid: Any) -> Any:
        raise _NotPlain("a persistent id")


# What `find_class` hands out are instances without attributes. A pickle can set attributes on
# anything it holds; on a function or class of this module that would outlive the reading.


class _Reconstruct:
    """numpy's `_reconstruct`, for plain arrays only."""

    __slots__ = ()

    def __call__(self, subtype: object, shape: object, typecode: object) -> npt.NDArray[Any]:
        if subtype is not _NDARRAY:
            raise _NotPlain("an array of another class")
        return _RECONSTRUCT(_PlainArray, (0,), b"b")


class _EncodeLatin1:
    """`_codecs.encode` as Python 3 uses it to write bytes in old protocols; no other codec."""

    __slots__ = ()

    def __call__(self, text: str, codec: str | bytes = "latin1") -> bytes:
        if codec not in ("latin1", b"latin1"):
            raise _NotPlain("a codec other than latin1")
        return text.encode("latin1")


class _MakeDtype:
    """`numpy.dtype`, for numbers only."""

    __slots__ = ()

    def __call__(self, code: str | bytes, align: object = False, copy: object = False) -> "_Dtype":
        text = code.decode("ascii") if isinstance(code, bytes) else code
        if not isinstance(text, str) or text[:1] not in _NUMBER_KINDS or not text[1:].isdigit():
            raise _NotPlain(f"an array of type {text!r}")
        return _Dtype(np.dtype(text))


class _Dtype:
    """A type of numbers with its byte order.

    Not a `numpy.dtype`: that would take fields and flags from the pickle as they come, and flags
    that contradict the fields make numpy read bytes as pointers.
    """

    __slots__ = ("numpy",)

    def __init__(self, plain: np.dtype[Any]) -> None:
        self.numpy = plain

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        order: Any = state[1].decode("ascii") if isinstance(state[1], bytes) else state[1]
        if order not in _BYTE_ORDERS or any(part is not None for part in state[2:5]):
            raise _NotPlain("a type that is not a plain number")
        self.numpy = self.numpy.newbyteorder(order)


class _PlainArray(np.ndarray[Any, np.dtype[Any]]):
    """An array whose contents are taken from bytes, never from a list of objects."""

    def __setstate__(self, state: Any, /) -> None:
        version, shape, kind, fortran, content = state
        if not isinstance(kind, _Dtype) or not isinstance(content, bytes):
            raise _NotPlain("an array that is not of plain numbers")
        numbers: Any = (version, shape, kind.numpy, bool(fortran), content)
        super().__setstate__(numbers)
