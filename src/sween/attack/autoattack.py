"""AutoAttack (Croce and Hein 2020), by its authors' package."""

import contextlib
import importlib.util
import logging
import sys
import warnings
from collections.abc import Iterator

import torch

from sween.errors import MissingExtra
from sween.runs.attack_settings import parts_of
from sween.smoothing.smoothed_logits import SmoothedLogits


def check_installed() -> None:
    """Raise MissingExtra if the package is not installed."""
    if importlib.util.find_spec("pyautoattack") is None:
        raise MissingExtra("pyautoattack", "attack", "AutoAttack (unlike the attacks pgd and ddn)")


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
    """Adversarial examples where AutoAttack reports success, else the images unchanged.

    It judges success by one evaluation of the surrogate, which may be a one-off misclassification,
    and does not attack images that its first evaluation gets wrong. So the caller must score the
    images again, and attack unchanged ones by other means. AutoAttack's state file is not used.

    Args:
        surrogate: with fresh noise for `rand` (one EOT iteration, since the surrogate averages over
            noise itself), with fixed noise for `standard`.
        images: (B, C, H, W) in [0, 1].
        labels: (B,).
        eps: l2 radius.
        version: `rand` (APGD on two losses) or `standard` (APGD, targeted APGD, targeted FAB,
            Square).
        seed: of AutoAttack's random starts.
        part: run only this attack; see `parts_of`.

    Example:
        >>> import sween
        >>> from sween.attack import SmoothedLogits, autoattack
        >>> digits = sween.load_dataset("digits").test
        >>> images, labels = digits.images([0]), digits.labels[:1]
        >>> ensemble = sween.load("digits-sween3-gaussian-sigma0.50")
        >>> surrogate = SmoothedLogits(ensemble, sigma=0.5, samples=2, seed=0)
        >>> attacked = autoattack(surrogate, images, labels, eps=0.25, version="rand", seed=0)
        >>> bool(((attacked - images).flatten(1).norm(dim=1) < 0.2501).all())
        True
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
    """Silence its log lines and restore the trace function that one of its checks removes."""
    logger = logging.getLogger("auto-attack")
    level = logger.level
    logger.setLevel(logging.ERROR)
    tracing = sys.gettrace()
    try:
        yield
    finally:
        logger.setLevel(level)
        sys.settrace(tracing)
