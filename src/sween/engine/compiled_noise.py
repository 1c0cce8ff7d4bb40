"""Noise drawn faster on a GPU, once it was seen to draw as the plain one does."""

from functools import partial

import torch

from sween.engine.kernels import NoiseKernels, NoiseLauncher, supports
from sween.engine.noise import Noise, NoiseKind
from sween.engine.prepare import refuse_broken_device
from sween.errors import go_on_without
from sween.seeding import derive_key

BLOCKS_TRIED = 100
"""Noise blocks in which kernels of our own are compared with plain noise."""


def fast_noise(
    kind: NoiseKind, sigma: float, *, shape: torch.Size, blocks: int, device: torch.device
) -> Noise:
    """By our kernels, else compiled, else plain; each that cannot be is left out with a warning.

    Args:
        kind: the law.
        sigma: noise level.
        shape: of one image.
        blocks: noise blocks of every batch.
        device: a GPU.
    """
    plain = kind.make(sigma)
    # Compiled noise comes in one size.
    ways = {"compiled": (partial(kind.make, sigma, compile=True), blocks)}
    if supports(device):
        own = partial(kind.make, sigma, kernels=NoiseKernels(NoiseLauncher()))
        ways = {"drawn by our kernels": (own, min(blocks, BLOCKS_TRIED)), **ways}
    for how, (way, tried) in ways.items():
        try:
            fast = way()
            _check(fast, plain, kind, sigma, shape, tried, device)
            return fast
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # compilers fail in many ways, all of which mean: do without
            refuse_broken_device(error)
            go_on_without(f"the noise cannot be {how}", error, stacklevel=4)
    return plain


@torch.inference_mode()
def _check(
    fast: Noise,
    plain: Noise,
    kind: NoiseKind,
    sigma: float,
    shape: torch.Size,
    blocks: int,
    device: torch.device,
) -> None:
    """Refuse noise that draws otherwise than the plain one, or for another image."""
    keys = [derive_key(0, "noise trial", block) for block in range(blocks)]
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, kind.levels + 1, (blocks, *shape), generator=generator)
    images = (pixels.float() / kind.levels).to(device)
    (drawn, valid), (wanted, counting) = (law.copies(images, keys) for law in (fast, plain))
    apart = float((drawn - wanted).abs().max())
    if not apart <= kind.apart * max(sigma, 1.0):
        raise RuntimeError(f"draws are {apart:.3g} apart")
    if valid is not None and counting is not None and not torch.equal(valid, counting):
        raise RuntimeError("other draws count")
