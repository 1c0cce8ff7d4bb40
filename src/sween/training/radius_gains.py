"""Weights of training images: how much radius an image gains if more of its votes are correct.

An image of which the share p of noisy copies is classified correctly has the radius sigma icdf(p),
and nothing below p = 1/2. So the average certified radius grows with p at the rate
sigma / density(icdf(p)), which is 6 times as large at p = 0.97 as at p = 1/2, where cross-entropy
counts all misclassified copies alike. Weighted by that rate, images that the network is almost sure
of become surer, and hard ones, which would not be certified anyway, are given up. The probability
that the network gave the true class in earlier epochs stands in for p. It is smaller than the share
of correct votes, which makes the weights milder; with the share itself too many images are given up
(results/tuning).
"""

import torch

MOST = 0.999
"""The largest cap: such an image weighs 118 times as much as one with probability one half."""


def radius_gains(
    memory: torch.Tensor, labels: torch.Tensor, largest_probability: float
) -> torch.Tensor:
    """The weights of some images: (B,), 1 on average.

    The rate at which the radius grows with the probability p of the true class, relative to that at
    p = 1/2; below it, in place of nothing, a part that falls with the root of p, so that images can
    come back.

    Args:
        memory: of the images, (B, M), see `remember`; those that were never seen have zeros and
            weigh as much as the average.
        labels: (B,).
        largest_probability: larger probabilities count as this.
    """
    total = memory.sum(dim=1)
    seen = total > 0
    own = memory.gather(1, labels[:, None])[:, 0]
    probabilities = own / torch.where(seen, total, 1.0)
    quantiles = torch.special.ndtri(probabilities.clamp(0.5, largest_probability))
    rates = torch.exp(quantiles.square() / 2) * (2 * probabilities).clamp(max=1.0).sqrt()
    mean = torch.where(seen, rates, 0.0).sum() / seen.sum().clamp(min=1)
    # If no image has any probability, all weigh the same.
    return torch.where(seen & (mean > 0), rates / torch.where(mean > 0, mean, 1.0), 1.0)
