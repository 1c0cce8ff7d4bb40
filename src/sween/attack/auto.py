"""AutoAttack (Croce and Hein 2020) by its authors' own package."""

import contextlib
import importlib.util
import logging
import sys
import warnings
from collections.abc import Iterator

import torch

from sween.errors import MissingExtra
from sween.smoothing.smoothed_logits import SmoothedLogits

PARTS = {
    "rand": ("apgd-ce", "apgd-dlr"),
    "standard": ("apgd-ce", "apgd-t", "fab-t", "square"),
}
"""The attacks that each version runs, in its order."""

_CLASSES_NEEDED = {"apgd-dlr": 3, "apgd-t": 4}
"""Their losses compare the three, or four, largest logits; with fewer classes they are left out."""

_SQUARE_ROWS = 5
"""Smaller images have no room for its squares."""


def check_installed() -> None:
    """Refuse where the package is missing."""
    if importlib.util.find_spec("pyautoattack") is None:
        raise MissingExtra("pyautoattack", "attack", "AutoAttack (--attack pgd and ddn do not)")


def parts_of(version: str, *, classes: int, rows: int) -> list[str]:
    """The attacks of a version that can be run on images of so many rows and classes."""
    return [
        part
        for part in PARTS[version]
        if classes >= _CLASSES_NEEDED.get(part, 2) and (part != "square" or rows >= _SQUARE_ROWS)
    ]


def autoattack(
    surrogate: SmoothedLogits,
    images: torch.Tensor,
    labels: torch.Tensor,
    *,
    eps: float,
    version: str,
    seed: int,
    part: str | None = None,
) -> torch.Tensor:
    """Its images: attacked ones where it judged the class to be another, else those given.

    It judges by one evaluation of the surrogate, which may be a lucky draw, and never attacks what
    its first look takes to be wrong already: whoever calls this scores the images again, and
    attacks those that come back as they were in another way. Its own state file is not used.

    Args:
        surrogate: with fresh noise for `rand` (one expectation step: the surrogate's draws are the
            expectation), with fixed noise for `standard`.
        images: (B, C, H, W) in [0, 1].
        labels: (B,).
        eps: l2 radius.
        version: `rand` (APGD on two losses) or `standard` (APGD, targeted APGD, targeted FAB,
            Square).
        seed: of its own random starts.
        part: one of its attacks alone; see `parts_of`.
    """
    from pyautoattack import AutoAttack

    devices = [images.device] if images.is_cuda else []
    with torch.random.fork_rng(devices), warnings.catch_warnings(), _without_log():
        warnings.simplefilter("ignore")
        attack = AutoAttack(
            surrogate, norm="L2", eps=eps, version=version, seed=seed, device=images.device
        )
        attack.verbose = False
        attack.apgd.eot_iter = 1
        classes = surrogate(images[:1]).shape[1]
        parts = parts_of(version, classes=classes, rows=images.shape[2])
        attack.attacks_to_run = parts if part is None else [part]
        for targeted in (attack.apgd_targeted, attack.fab):
            targeted.n_target_classes = min(targeted.n_target_classes, classes - 1)
        attacked: torch.Tensor
        attacked, _ = attack.run_standard_evaluation(images, labels, batch_size=len(images))
    return attacked.detach()


@contextlib.contextmanager
def _without_log() -> Iterator[None]:
    """No log lines, the progress display says how far the attack is; a debugger keeps its trace."""
    logger = logging.getLogger("auto-attack")
    level = logger.level
    logger.setLevel(logging.ERROR)
    tracing = sys.gettrace()  # which one of its checks switches off
    try:
        yield
    finally:
        logger.setLevel(level)
        sys.settrace(tracing)
