"""The engine's custom operators."""

import importlib
import subprocess
import sys

import pytest
import torch

from sween.engine.linear_gelu import linear_gelu

SHAPES = (2, 5), (7, 5), (7,)
MODULE = "sween.engine.linear_gelu"


def test_torch_accepts_their_registration() -> None:
    torch.library.opcheck(linear_gelu, (*map(torch.randn, SHAPES), "none"))


def test_they_have_no_gradient() -> None:
    x, weight, bias = map(torch.randn, SHAPES)
    out = linear_gelu(x, weight.requires_grad_(), bias, "none")
    with pytest.raises(NotImplementedError, match="no gradient"):
        out.sum().backward()


def test_calling_one_does_not_import_the_compiler() -> None:
    """It takes seconds, and many networks never need it."""
    script = """
import sys, torch
from sween.engine.linear_gelu import linear_gelu

with torch.no_grad():
    found = linear_gelu(torch.ones(2, 5), torch.ones(7, 5), torch.ones(7), "none")
print(tuple(found.shape), "torch._dynamo" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert done.stdout == b"(2, 7) False\n"


def test_they_can_be_imported_again() -> None:
    again = importlib.reload(sys.modules[MODULE])
    assert again.linear_gelu(*map(torch.ones, SHAPES), "none").shape == (2, 7)
