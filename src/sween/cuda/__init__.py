"""CUDA C++ kernels, compiled at run time by the compiler that ships with torch.

The rooms that have kernels keep their source. What their convolutions share is in convolution.cu.
"""

from sween.cuda.capture import capturing
from sween.cuda.compiler import Argument, can_compile, compile_kernel, read_source

__all__ = ["Argument", "can_compile", "capturing", "compile_kernel", "read_source"]
