"""Training objectives: pure functions of the logits on noisy copies, in one registry.

Every objective sees logits of shape (copies, B, M), `copies` noisy versions of each of B images,
and gives each image a loss; their mean is minimised. The trainer draws the noise and calls the
network; what is here can be tested on its own. What some objectives do besides has its own files:
`noise_attacks.py` and `image_weights.py`. `radius_gains.py` weighs the images of any objective.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch.nn import functional

from sween.training.noise_attacks import NoiseAttack, attack_on_sphere, attack_within_ball


@dataclasses.dataclass(frozen=True)
class ObjectiveOptions:
    """Parameters of an objective besides logits and labels.

    Attributes:
        sigma: noise level.
        regulariser: lambda, the weight of the robustness term; 0 switches it off, but for the
            entropy of `consistency` and `temporal`, which has a weight of its own.
        margin: gamma of MACER: images with a larger margin do not contribute.
        sharpness: beta of MACER: inverse temperature of the softmax in the robustness term.
        entropy: eta of consistency: weight of the mean prediction's entropy.
        temperature: of temporal: below 1 sharpens what is remembered.
        label_smoothing: of the cross-entropy.
        largest_probability: that counts in weights of images, see `radius_gains.py`; 0 for equal
            weights.
        attack_steps: gradient steps of the attack on the noise; 0 switches it off.
        attack_size: of that attack; see `noise_attacks.py`.
    """

    sigma: float
    regulariser: float = 0.0
    margin: float = 8.0
    sharpness: float = 16.0
    entropy: float = 0.5
    temperature: float = 1.0
    label_smoothing: float = 0.0
    largest_probability: float = 0.0
    attack_steps: int = 0
    attack_size: float = 0.0


class Guide(NamedTuple):
    """What `catrs` needs besides the logits on plain noise.

    Attributes:
        attacked: logits on attacked noise, (copies, B, M).
        targets: smoothed probabilities of another network, (B, M).
        uniforms: draws from [0, 1), (copies, B).
    """

    attacked: torch.Tensor
    targets: torch.Tensor
    uniforms: torch.Tensor


REMEMBERED = 0.9
"""What an epoch leaves of the memory of `temporal`; the rest is the epoch's own probabilities."""


def remember(memory: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """The memory of some images after one more look at them: (B, M).

    A moving average from zero of their probabilities, which `temporal` rescales to sum to one.

    Args:
        memory: of them before, (B, M); zeros where they were never seen.
        logits: on their noisy copies, (copies, B, M).
    """
    return torch.lerp(torch.softmax(logits, dim=2).mean(dim=0), memory, REMEMBERED)


Loss = Callable[..., torch.Tensor]
"""Of logits (copies, B, M), labels (B,) and `ObjectiveOptions`: (B,). That of a `taught` objective
takes a `Guide` too, and that of a remembering one its memory of the images, (B, M)."""


def gaussian(logits: torch.Tensor, labels: torch.Tensor, options: ObjectiveOptions) -> torch.Tensor:
    """Cross-entropy, averaged over noisy copies (the paper's standard training)."""
    return _cross_entropies(logits, labels, options).mean(dim=0)


def _cross_entropies(
    logits: torch.Tensor, labels: torch.Tensor, options: ObjectiveOptions
) -> torch.Tensor:
    """Of each noisy copy: (copies, B)."""
    copies, count = logits.shape[:2]
    losses: torch.Tensor = functional.cross_entropy(
        logits.flatten(0, 1),
        labels.repeat(copies),
        reduction="none",
        label_smoothing=options.label_smoothing,
    )
    return losses.view(copies, count)


def macer(logits: torch.Tensor, labels: torch.Tensor, options: ObjectiveOptions) -> torch.Tensor:
    """Zhai et al. 2020: cross-entropy of the mean softmax plus a hinge on the certified radius.

    The hinge is (sigma/2) (gamma - (icdf(p1) - icdf(p2))) for images that the mean softmax at
    inverse temperature beta classifies correctly with a difference of at most gamma, and 0 for the
    others.
    """
    log_mean = torch.logsumexp(torch.log_softmax(logits, dim=2), dim=0) - math.log(len(logits))
    loss = functional.nll_loss(log_mean, labels, reduction="none")
    if options.label_smoothing:
        evenly = -log_mean.mean(dim=1)
        loss = (1 - options.label_smoothing) * loss + options.label_smoothing * evenly
    if options.regulariser == 0:
        return loss
    sharp = torch.softmax(options.sharpness * logits, dim=2).mean(dim=0)
    own = sharp.gather(1, labels[:, None])[:, 0]
    rival = sharp.scatter(1, labels[:, None], -1.0).amax(dim=1)
    difference = inverse_normal(own) - inverse_normal(rival)
    counted = (own > rival) & (difference <= options.margin)
    hinge = torch.where(counted, options.margin - difference, 0.0)
    return loss + options.regulariser * options.sigma / 2 * hinge


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
    entropy = -(mean * log_mean).sum(dim=1)
    divergence = (mean * (log_mean - log_each)).sum(dim=2).mean(dim=0)
    return (
        gaussian(logits, labels, options)
        + options.regulariser * divergence
        + options.entropy * entropy
    )


def temporal(
    logits: torch.Tensor, labels: torch.Tensor, options: ObjectiveOptions, memory: torch.Tensor
) -> torch.Tensor:
    """Cross-entropy, and agreement with what the network said about each image before.

    Temporal ensembling (Laine and Aila 2017) in place of the second noisy copy of `consistency`:
    the regulariser is lambda times the mean KL(remembered || each copy) plus eta times the entropy
    of the mean copy. What is remembered averages over many noisy copies and costs none. At a
    temperature below 1 it is sharpened: images that the network is sure of become surer, at the
    cost of hard ones.

    Args:
        logits: (copies, B, M).
        labels: (B,).
        options: lambda, eta and the temperature.
        memory: see `remember`; images that were never seen have zeros and no divergence.
    """
    log_each = torch.log_softmax(logits, dim=2)
    log_mean = torch.logsumexp(log_each, dim=0) - math.log(len(logits))
    entropy = -(log_mean.exp() * log_mean).sum(dim=1)
    largest = memory.amax(dim=1, keepdim=True)  # a small probability to a high power would be 0
    sharp = (memory / torch.where(largest > 0, largest, 1.0)).pow(1 / options.temperature)
    total = sharp.sum(dim=1, keepdim=True)
    remembered = torch.where(total > 0, sharp / torch.where(total > 0, total, 1.0), 0.0)
    divergence = functional.kl_div(log_each, remembered.expand_as(log_each), reduction="none")
    return (
        gaussian(logits, labels, options)
        + options.regulariser * divergence.sum(dim=2).mean(dim=0)
        + options.entropy * entropy
    )


def catrs(
    logits: torch.Tensor, labels: torch.Tensor, options: ObjectiveOptions, guide: Guide
) -> torch.Tensor:
    """Jeong, Kim and Shin 2023 (CAT-RS): less of the loss for images the network is unsure of.

    K ~ Binomial(copies, p), at least 1, where p is the share of copies that are classified
    correctly. Low term: the K smallest cross-entropies, summed, over the number of copies. High
    term, where K is the number of copies: lambda times the largest KL(target || softmax) over the
    attacked copies.
    """
    copies, losses = len(logits), _cross_entropies(logits, labels, options)
    share_correct = (logits.argmax(dim=2) == labels).float().mean(dim=0)
    accepted = (guide.uniforms < share_correct).sum(dim=0).clamp(min=1)
    places = torch.arange(copies, device=logits.device)[:, None]
    low = torch.where(places < accepted, losses.sort(dim=0).values, 0.0).sum(dim=0) / copies
    if options.regulariser == 0:
        return low
    log_each = torch.log_softmax(guide.attacked, dim=2)
    targets = guide.targets.expand_as(log_each)
    divergence = functional.kl_div(log_each, targets, reduction="none").sum(dim=2).amax(dim=0)
    high = torch.where(accepted == copies, divergence, 0.0)
    return low + options.regulariser * high


TAIL = 1e-7
"""Probabilities are clamped to this distance from 0 and 1, where the float32 inverse normal or its
slope would be infinite."""


def inverse_normal(probabilities: torch.Tensor) -> torch.Tensor:
    """The standard normal quantile, finite in value and gradient for all of [0, 1]."""
    return torch.as_tensor(torch.special.ndtri(probabilities.clamp(TAIL, 1 - TAIL)))


class PublishedAttack(NamedTuple):
    """How an objective is published to attack the noise at one sigma.

    Attributes:
        steps: of the attack.
        size: see `noise_attacks.py`.
        start: share of the epochs after which it begins.
        drop_below: images with a smaller share of correct noisy copies are dropped then.
    """

    steps: int
    size: float
    start: float = 0.0
    drop_below: float = 0.0


@dataclasses.dataclass(frozen=True)
class Objective:
    """A registered objective: its loss, its number of noisy copies and its published settings.

    Attributes:
        loss: of the logits.
        copies: of each image.
        description: a few words.
        regularisers: published lambda by sigma; other sigmas need an explicit value.
        delayed_at: sigmas at which lambda is published to apply from the first drop of the rate.
        attack: on the noise, if it can be attacked.
        attacks: published settings of the attack by sigma, as for lambda; without any, the noise is
            attacked only if the settings are given.
        weighs_images: whether it can drop hard images and draw easy ones more often; without
            published settings, only if they are given.
        taught: whether its loss needs a teacher's probabilities (`Guide`).
        remembers: whether its loss needs the network's own probabilities of earlier epochs.
    """

    loss: Loss
    copies: int
    description: str
    regularisers: Mapping[float, float] = dataclasses.field(default_factory=dict)
    delayed_at: tuple[float, ...] = ()
    attack: NoiseAttack | None = None
    attacks: Mapping[float, PublishedAttack] = dataclasses.field(default_factory=dict)
    weighs_images: bool = False
    taught: bool = False
    remembers: bool = False


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
        attack=attack_on_sphere,  # not published: only where it is asked for
        weighs_images=True,  # likewise
    ),
    "temporal": Objective(
        temporal,
        1,
        "cross-entropy, agreement with the probabilities of earlier epochs",
        # Not published for noisy images: values of our own, compared in results/tuning.
        {0.25: 10.0, 0.5: 10.0, 1.0: 10.0},
        attack=attack_on_sphere,  # only where it is asked for
        remembers=True,
    ),
    # Sun et al. 2025. Their epochs 60, 70 and 60 of 150.
    "acr": Objective(
        gaussian,
        4,
        "cross-entropy; later on attacked noise, without hard images, easy ones drawn more often",
        attack=attack_on_sphere,
        attacks={
            0.25: PublishedAttack(3, 0.25, start=60 / 150, drop_below=0.5),
            0.5: PublishedAttack(6, 0.25, start=70 / 150, drop_below=0.4),
            1.0: PublishedAttack(4, 0.5, start=60 / 150, drop_below=0.4),
        },
        weighs_images=True,
    ),
    "catrs": Objective(
        catrs,
        4,
        "the smallest cross-entropies; divergence from a teacher on attacked noise",
        {0.25: 0.5, 0.5: 1.0, 1.0: 2.0},
        attack=attack_within_ball,
        attacks=dict.fromkeys((0.25, 0.5, 1.0), PublishedAttack(4, 1.0)),
        taught=True,
    ),
}
