"""TF32: the rounding by which GPUs multiply float32 faster."""

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def without_tf32() -> Iterator[None]:
    """Products of float32 in full inside the block; afterwards as before, whatever happens."""
    before = allow_tf32(convolutions=False, products=False)
    try:
        yield
    finally:
        allow_tf32(*before)


def allow_tf32(convolutions: bool, products: bool) -> tuple[bool, bool]:
    """Set it for convolutions and for products of matrices; returns what it was."""
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = convolutions
    torch.backends.cuda.matmul.allow_tf32 = products
    return before
