"""The tail that float32 noise never draws, and the number of votes this allows."""

import math

import torch

from sween.bounds.binomial import upper_bound
from sween.bounds.radius import level_of_class
from sween.engine.noise import Noise
from sween.errors import BadInput
from sween.sampling import CertifySettings

MOST_MISSING = 0.5
"""The missing tail may have at most this share of the smallest provable miss probability."""


def check_tail(noise: Noise, device: torch.device, settings: CertifySettings, numbers: int) -> None:
    """Refuse numbers of votes for which the tail that the noise never draws would matter.

    float32 noise is truncated after a few standard deviations, so its distribution differs from the
    Gaussian by a total variation of up to numbers * missing, and so does the probability of every
    class. If that is not well below the smallest miss probability that n votes can prove, about
    log(1/alpha) / n, a contrived classifier that errs in the tail alone could get too large a
    radius: with a share s of that probability missing, with probability up to alpha^(1 - s). Up to
    a share of MOST_MISSING the noise is treated as exactly Gaussian, as float32 noise is in every
    other respect (its rounding reveals far more to such a classifier, see `exact_noise.py`); the
    share is 0.5% for CIFAR images on a GPU with n = 100,000, and 25% at 224 px. Larger n are
    refused: on a GPU at alpha = 0.001 from n = 9.7 million for CIFAR images and n = 200,000 at
    224 px; on a CPU no n up to 1e9 at these sizes. Exact noise needs neither limit nor assumption.
    Predictions are not limited: telling apart classes whose probabilities differ by so little takes
    nearly a billion votes.

    Args:
        noise: its distribution.
        device: where it is drawn.
        settings: of the sampling.
        numbers: values per image.
    """
    variation = numbers * noise.missing(device)
    level = level_of_class(settings.alpha, settings.bound)
    if variation <= MOST_MISSING * float(upper_bound(0, settings.n, level)):
        return
    most = int(math.log(level) / math.log1p(-min(variation / MOST_MISSING, 0.5)))
    raise BadInput(
        "n",
        expected=f"at most {most:,} with float32 noise on {device.type} and images of {numbers:,} "
        f"values: its missing tails have probability {variation:.2g}",
        got=f"{settings.n:,}",
        fix="use exact noise, which has no such limit, or fewer votes",
    )
