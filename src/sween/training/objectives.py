"""Training objectives: pure functions of the logits on noisy copies, in one registry.

Every objective sees logits of shape (copies, B, M): `copies` noisy versions of each of B images.
The trainer draws the noise and calls the network; what is here can be tested on its own.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping

import torch
from torch.nn import functional


@dataclasses.dataclass(frozen=True)
class ObjectiveOptions:
    """Parameters of an objective besides logits and labels.

    Attributes:
        sigma: noise level.
        regulariser: lambda, the weight of the robustness term; 0 switches it off.
        margin: gamma of MACER: images with a larger margin do not contribute.
        sharpness: beta of MACER: inverse temperature of the softmax in the robustness term.
        entropy: eta of consistency: weight of the mean prediction's entropy.
        label_smoothing: of the cross-entropy.
    """

    sigma: float
    regulariser: float = 0.0
    margin: float = 8.0
    sharpness: float = 16.0
    entropy: float = 0.5
    label_smoothing: float = 0.0


Loss = Callable[[torch.Tensor, torch.Tensor, ObjectiveOptions], torch.Tensor]


def gaussian(logits: torch.Tensor, labels: torch.Tensor, options: ObjectiveOptions) -> torch.Tensor:
    """Cross-entropy, averaged over images and noisy copies (the paper's standard training)."""
    copies = logits.shape[0]
    return functional.cross_entropy(
        logits.flatten(0, 1), labels.repeat(copies), label_smoothing=options.label_smoothing
    )


def macer(logits: torch.Tensor, labels: torch.Tensor, options: ObjectiveOptions) -> torch.Tensor:
    """Zhai et al. 2020: cross-entropy of the mean softmax plus a hinge on the certified radius.

    The hinge is (sigma/2) (gamma - (icdf(p1) - icdf(p2))) for images that the mean softmax at
    inverse temperature beta classifies correctly with a difference of at most gamma; it is summed
    over them and divided by the number of all images.
    """
    log_mean = torch.logsumexp(torch.log_softmax(logits, dim=2), dim=0) - math.log(len(logits))
    loss = functional.nll_loss(log_mean, labels)
    if options.label_smoothing:
        evenly = -log_mean.mean(dim=1).mean()
        loss = (1 - options.label_smoothing) * loss + options.label_smoothing * evenly
    if options.regulariser == 0:
        return loss
    sharp = torch.softmax(options.sharpness * logits, dim=2).mean(dim=0)
    own = sharp.gather(1, labels[:, None])[:, 0]
    rival = sharp.scatter(1, labels[:, None], -1.0).amax(dim=1)
    difference = inverse_normal(own) - inverse_normal(rival)
    counted = (own > rival) & (difference <= options.margin)
    hinge = torch.where(counted, options.margin - difference, 0.0)
    return loss + options.regulariser * options.sigma / 2 * hinge.sum() / len(labels)


def consistency(
    logits: torch.Tensor, labels: torch.Tensor, options: ObjectiveOptions
) -> torch.Tensor:
    """Jeong and Shin 2020: cross-entropy plus consistency between noisy copies.

    The regulariser is lambda times the mean KL(mean || each copy) plus eta times the entropy of the
    mean.
    """
    log_each = torch.log_softmax(logits, dim=2)
    mean = log_each.exp().mean(dim=0)
    log_mean = torch.logsumexp(log_each, dim=0) - math.log(len(logits))
    entropy = -(mean * log_mean).sum(dim=1).mean()
    divergence = (mean * (log_mean - log_each)).sum(dim=2).mean()
    return (
        gaussian(logits, labels, options)
        + options.regulariser * divergence
        + options.entropy * entropy
    )


TAIL = 1e-7
"""Probabilities are clamped to this distance from 0 and 1, where the float32 inverse normal or its
slope would be infinite."""


def inverse_normal(probabilities: torch.Tensor) -> torch.Tensor:
    """The standard normal quantile, finite in value and gradient for all of [0, 1]."""
    return torch.as_tensor(torch.special.ndtri(probabilities.clamp(TAIL, 1 - TAIL)))


@dataclasses.dataclass(frozen=True)
class Objective:
    """A registered objective: its loss, its number of noisy copies and its published lambda.

    `regularisers` maps sigma to the published lambda; other sigmas need an explicit value. At the
    sigmas in `delayed_at`, lambda applies from the first drop of the learning rate, as published.
    """

    loss: Loss
    copies: int
    description: str
    regularisers: Mapping[float, float] = dataclasses.field(default_factory=dict)
    delayed_at: tuple[float, ...] = ()


OBJECTIVES: dict[str, Objective] = {
    "gaussian": Objective(gaussian, 1, "cross-entropy on noisy copies"),
    "macer": Objective(
        macer,
        16,
        "cross-entropy of the mean softmax and a hinge on the certified radius",
        {0.25: 12.0, 0.5: 4.0, 1.0: 12.0},
        delayed_at=(1.0,),
    ),
    "consistency": Objective(
        consistency,
        2,
        "cross-entropy, agreement of noisy copies, entropy of their mean",
        {0.25: 20.0, 0.5: 10.0, 1.0: 10.0},
    ),
}
