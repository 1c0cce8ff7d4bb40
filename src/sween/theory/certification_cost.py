"""What a certification will cost, predicted from the votes on a few of its images.

How many noisy copies an image takes depends on the probability p of its top class, and under
adaptive sampling differs a hundredfold between images: `decide` draws 100,000 votes where p lies
within a hair of the threshold and 100 elsewhere. Few images lie there, so the mean over pilot
images would be a lottery. Instead p is modelled: a Beta distribution is fitted to the pilot's
votes, which gives each pilot image a distribution of p, and the sampling strategy is simulated on
draws from them. No torch here.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy import optimize, special

from sween.bounds.binomial import Floats
from sween.errors import BadInput
from sween.evaluation.comparison import bootstrap_interval
from sween.progress import format_seconds
from sween.records import Certificate
from sween.sampling import CertifySettings
from sween.seeding import numpy_generator

SIMULATED = 20_000
"""Simulated images, shared by those of the pilot."""

CONFIDENCE, RESAMPLES = 0.95, 2_000
"""Of the intervals, and bootstrap resamples for them."""

FEWEST_IMAGES = 10
"""Of a pilot: fewer say nothing about how images differ."""

_LOG_PARAMETERS = (-6.0, 6.0)
"""Range of the logarithms of the Beta distribution's parameters."""


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A predicted number with its 95% interval.

    Example:
        See `predict_cost`.
    """

    expected: float
    low: float
    high: float

    def times(self, factor: float) -> "Estimate":
        return Estimate(self.expected * factor, self.low * factor, self.high * factor)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CertificationCost:
    """What certifying some images should take.

    The intervals account for the images: which of them the pilot happened to have, and those still
    to come. They do not account for the rate, which is taken as given.

    Attributes:
        images: to certify.
        pilot_images: whose votes were used.
        samples: noisy copies of images.
        evaluations: of members; an early exit saves some.
        evaluations_per_second: of one device.
        gpus: devices that share the images.
        price: of an hour of one device; None if unknown.
        device: kind of device that the rate is of, `cuda` or `cpu`.

    Example:
        See `predict_cost`.
    """

    images: int
    pilot_images: int
    samples: Estimate
    evaluations: Estimate
    evaluations_per_second: float
    gpus: int
    price: float | None
    device: str = "cuda"

    @property
    def gpu_hours(self) -> Estimate:
        """Hours of all devices together."""
        return self.evaluations.times(1 / self.evaluations_per_second / 3600)

    @property
    def wall_clock_hours(self) -> Estimate:
        """Hours until the last image is certified; starting up is not included."""
        return self.gpu_hours.times(1 / self.gpus)

    @property
    def money(self) -> Estimate | None:
        """In the currency of the price."""
        return None if self.price is None else self.gpu_hours.times(self.price)

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        derived = {"gpu_hours": self.gpu_hours, "wall_clock_hours": self.wall_clock_hours}
        if self.money is not None:
            derived["money"] = self.money
        return dataclasses.asdict(self) | {
            name: dataclasses.asdict(value) for name, value in derived.items()
        }

    def __str__(self) -> str:
        kind = "GPU" if self.device == "cuda" else "machine"
        devices = f"1 {kind}" if self.gpus == 1 else f"{self.gpus} {kind}s"
        where = kind if self.device == "cuda" else "machine, on its CPU"
        rate = f"at {self.evaluations_per_second:,.0f} evaluations/s per {where}"
        lines = [
            f"{self.images:,} images, from the votes on {self.pilot_images:,}; {rate}",
            _line("samples", self.samples, _count),
            _line("samples per image", self.samples.times(1 / self.images), _count),
            _line("member evaluations", self.evaluations, _count),
            _line(f"{kind} hours", self.gpu_hours, _hours),
            _line(f"time on {devices}", self.wall_clock_hours.times(3600), format_seconds),
        ]
        if self.money is not None:
            lines.append(_line(f"money at {self.price:g} an hour", self.money, "{:,.2f}".format))
        return "\n".join(lines)


def _line(name: str, estimate: Estimate, write: Callable[[float], str]) -> str:
    low, high = write(estimate.low), write(estimate.high)
    interval = "" if low == high else f"   95% interval {low} to {high}"
    return f"    {name:24} {write(estimate.expected)}{interval}"


def _count(value: float) -> str:
    """To four digits."""
    return f"{float(f'{value:.4g}'):,.0f}"


def _hours(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def predict_cost(
    pilot: Sequence[Certificate],
    settings: CertifySettings,
    *,
    images: int,
    evaluations_per_second: float | None = None,
    gpus: int = 1,
    price: float | None = None,
    device: str = "cuda",
) -> CertificationCost:
    """Predict what certifying images costs.

    Args:
        pilot: certificates of one model on images drawn at random from the same source, with the
            exit of the run to come; their own sampling does not matter.
        settings: of the run to come.
        images: that it certifies.
        evaluations_per_second: member evaluations on one device; by default those of the pilot.
        gpus: devices that share the images.
        price: of an hour of one device.
        device: kind of device that the rate is of, `cuda` or `cpu`.

    Example:
        >>> import sween
        >>> from sween.sampling import CertifySettings
        >>> from sween.theory import predict_cost
        >>> digits = sween.load_dataset("digits").test
        >>> smoothed = sween.SmoothedClassifier.load("digits-sween3-gaussian-sigma0.50")
        >>> pilot = smoothed.certify(digits.images(range(10)), n=200)
        >>> settings = CertifySettings(n=10_000)
        >>> cost = predict_cost(pilot, settings, images=1000, evaluations_per_second=1e6)
        >>> cost.samples.expected, cost.evaluations.expected
        (10100000.0, 30300000.0)
    """
    _check(pilot, images, evaluations_per_second, gpus, price)
    generator = numpy_generator(settings.seed, "cost")
    draws = max(1, SIMULATED // len(pilot))
    probabilities = _probabilities(pilot, draws, generator)
    samples = settings.strategy.simulate_samples(
        probabilities.ravel(),
        settings,
        sigma=pilot[0].sigma,
        images=images,
        generator=generator,
    ).reshape(probabilities.shape)
    members = np.asarray([row.member_evaluations / row.samples for row in pilot])
    if evaluations_per_second is None:
        seconds = sum(row.seconds for row in pilot)
        evaluations_per_second = sum(row.member_evaluations for row in pilot) / seconds
    most = settings.strategy.most_samples(settings) or math.inf
    return CertificationCost(
        images=images,
        pilot_images=len(pilot),
        samples=_total(samples.astype(np.float64), images, most),
        evaluations=_total(samples * members[:, None], images, most * float(members.max())),
        evaluations_per_second=evaluations_per_second,
        gpus=gpus,
        price=price,
        device=device,
    )


def _check(
    pilot: Sequence[Certificate],
    images: int,
    evaluations_per_second: float | None,
    gpus: int,
    price: float | None,
) -> None:
    if len(pilot) < FEWEST_IMAGES:
        raise BadInput(
            "pilot",
            expected=f"at least {FEWEST_IMAGES} images",
            got=len(pilot),
            fix="certify a few more images",
        )
    check_request(images, gpus, evaluations_per_second, price)


def check_request(images: int, gpus: int, rate: float | None, price: float | None) -> None:
    """Refuse numbers that no certification has; before a pilot, which takes time."""
    for name, value in (("images", images), ("gpus", gpus)):
        if value < 1:
            raise BadInput(f"`{name}`", expected="at least 1", got=value, fix=f"try `{name}=1`")
    for name, number in (("rate", rate), ("price", price)):
        if number is not None and not (math.isfinite(number) and number > 0):
            raise BadInput(f"`{name}`", expected="a positive number", got=number, fix="drop it")


def _probabilities(
    pilot: Sequence[Certificate], draws: int, generator: np.random.Generator
) -> Floats:
    """(pilot, draws) probabilities of the selected class, given the votes on each image."""
    votes = [_votes(row) for row in pilot]
    count, n = np.asarray(votes, np.float64).T
    a, b = _fit_beta(count, n)
    size = (len(pilot), draws)
    drawn: Floats = generator.beta((count + a)[:, None], (n - count + b)[:, None], size)
    return drawn


def _votes(row: Certificate) -> tuple[int, int]:
    """Votes for the selected class, of how many."""
    drawn = sum(row.estimation_counts)
    if drawn == 0:  # a budget gave this image none
        return max(row.selection_counts), row.n0
    return row.estimation_counts[int(np.argmax(row.selection_counts))], drawn


def _fit_beta(count: Floats, n: Floats) -> tuple[float, float]:
    """The Beta distribution of probabilities under which these votes are most likely.

    When voting stopped does not matter, so rows of every sampling strategy will do.
    """

    def unlikeliness(logarithms: Floats) -> float:
        a, b = np.exp(logarithms)
        return -float(np.sum(special.betaln(count + a, n - count + b) - special.betaln(a, b)))

    fit = optimize.minimize(unlikeliness, [0.5, -1.0], bounds=[_LOG_PARAMETERS] * 2)
    a, b = np.exp(fit.x)
    return float(a), float(b)


def _total(per_draw: Floats, images: int, most: float) -> Estimate:
    """The total over `images`, at most `most`, from (pilot, draws) simulated numbers per image."""
    means = per_draw.mean(axis=1)
    expected = float(means.mean())
    low, high = bootstrap_interval(means, resamples=RESAMPLES, confidence=CONFIDENCE, seed=0)
    # The run's own images are a random choice, too.
    own = special.ndtri((1 + CONFIDENCE) / 2) * float(per_draw.std()) / math.sqrt(images)
    low, high = (
        expected + side * math.hypot(end - expected, own) for side, end in ((-1, low), (1, high))
    )
    low, high = max(low, float(per_draw.min())), min(high, most / images)
    return Estimate(expected, min(low, high), high).times(images)
