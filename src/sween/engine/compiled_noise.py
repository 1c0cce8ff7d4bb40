"""Faster noise on a GPU, used only after its draws were checked against plain torch operations."""

from functools import partial

import torch

from sween.engine.kernels import NoiseKernels, NoiseLauncher, supports
from sween.engine.model_errors import refuse_broken_device
from sween.engine.noise import Noise, NoiseKind
from sween.errors import warn_fallback
from sween.seeding import derive_key

BLOCKS_COMPARED = 100
"""Noise blocks on which the custom kernels are compared with plain noise."""


def fast_noise(
    kind: NoiseKind, sigma: float, *, shape: torch.Size, blocks: int, device: torch.device
) -> Noise:
    """The fastest noise that works here: custom kernels, else compiled, else plain torch.

    Each fallback is reported as a warning.

    Args:
        kind: distribution of the noise.
        sigma: noise level.
        shape: of one image.
        blocks: noise blocks per batch.
        device: a GPU.
    """
    plain = kind.make(sigma)
    # Compiled noise has a fixed number of blocks.
    ways = {"compiled": (partial(kind.make, sigma, compile=True), blocks)}
    if supports(device):
        custom = partial(kind.make, sigma, kernels=NoiseKernels(NoiseLauncher()))
        ways = {"drawn by custom kernels": (custom, min(blocks, BLOCKS_COMPARED)), **ways}
    for how, (make, compared) in ways.items():
        try:
            fast = make()
            _check(fast, plain, kind, sigma, shape, compared, device)
            return fast
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # compilers fail in many ways, and all of them mean: fall back
            refuse_broken_device(error)
            warn_fallback(f"the noise cannot be {how}", error, stacklevel=4)
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
    """Refuse noise whose draws differ from the plain ones, or that mixes up the images."""
    keys = [derive_key(0, "noise trial", block) for block in range(blocks)]
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, kind.levels + 1, (blocks, *shape), generator=generator)
    images = (pixels.float() / kind.levels).to(device)
    (drawn, valid), (wanted, wanted_valid) = (noise.copies(images, keys) for noise in (fast, plain))
    apart = float((drawn - wanted).abs().max())
    if not apart <= kind.tolerance * max(sigma, 1.0):
        raise RuntimeError(f"draws are {apart:.3g} apart")
    if valid is not None and wanted_valid is not None and not torch.equal(valid, wanted_valid):
        differing = int((valid != wanted_valid).sum())
        raise RuntimeError(f"{differing} of {len(valid)} noisy copies differ in whether they count")
