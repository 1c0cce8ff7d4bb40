"""A command of sween as on a machine where torch has no compiler.

    python benchmarks/without_compiler.py bench resnet20x4

Networks without custom kernels then run by cuDNN's fused convolutions and torch's own kernels
between them, captured as a CUDA graph (`+cudnn`): a first vote without the seconds of a compiler.
"""

import sys
from typing import Any, NoReturn

import torch

from sween.cli import main


def refuse(*_: Any, **__: Any) -> NoReturn:
    raise RuntimeError("left out by benchmarks/without_compiler.py")


if __name__ == "__main__":
    torch.compile = refuse
    sys.exit(main())
