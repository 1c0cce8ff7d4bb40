"""The precision that records name: `float16+fused` is float16, run by custom kernels.

The engine writes these names and run folders check them.
"""

from typing import Final

ARITHMETICS: Final = ("float32", "tf32", "float16", "bfloat16", "int8")
"""In which members are evaluated. GPUs may round the products of float32 to TF32."""

WAYS: Final = {
    "fused": "run by custom kernels",
    "compiled": "compiled",
    "cudnn+compiled": "compiled around cuDNN's fused convolutions",
    "cudnn": "captured with cuDNN's fused convolutions",
}
"""What each way to prepare a member on a GPU does; each rounds at different places."""


def is_arithmetic(name: str) -> bool:
    """Whether a record may name this arithmetic: one of ARITHMETICS, perhaps `+` one of WAYS.

    Example:
        >>> from sween.precision import is_arithmetic
        >>> is_arithmetic("float16+cudnn+compiled"), is_arithmetic("float16+")
        (True, False)
    """
    arithmetic, plus, way = name.partition("+")
    return arithmetic in ARITHMETICS and (way in WAYS if plus else True)
