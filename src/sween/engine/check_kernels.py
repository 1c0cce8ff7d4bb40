"""Refuses custom kernels whose outputs are wrong, for example because of a race."""

import torch

from sween.engine.cuda_graph import Forward
from sween.engine.differences import relative_change
from sween.engine.kernels import FusedResNet, Selection

KERNEL_TOLERANCE = 0.02
"""How far outputs of the custom kernels may be from torch's in float16, relative to their range."""


def check_kernels(run: FusedResNet, plain: Forward, images: torch.Tensor) -> None:
    """Refuse kernels whose outputs are not those of torch.

    The arithmetic is the same but for the order of sums, so the outputs must be close to torch's.
    """
    change = relative_change(check_order(run, images), plain(images))
    if not change <= KERNEL_TOLERANCE:
        raise RuntimeError(f"its outputs differ from torch's by {change:.2g} of their range")


def check_order(run: FusedResNet, images: torch.Tensor) -> torch.Tensor:
    """The outputs of custom kernels.

    They must not change at all from call to call or with an image's position in the batch.
    """
    outputs = run(images)
    if not torch.equal(run(images), outputs) or not torch.equal(
        run(images.flip(0)).flip(0), outputs
    ):
        raise RuntimeError("its outputs change from call to call or with the order of the batch")
    some = torch.arange(len(images), device=images.device) % 3 == 1
    selected = run.selected(images, Selection.of(some), at_once=len(images))
    if not torch.equal(selected, outputs * some[:, None]):
        raise RuntimeError("its outputs for a selection of images differ from those for all")
    return outputs
