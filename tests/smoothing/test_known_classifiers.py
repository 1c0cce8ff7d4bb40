"""Certificates against classifiers whose robust radius is known exactly."""

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy import special
from torch import nn

from sween.bounds.radius import radius_cohen
from sween.sampling import CertifySettings
from sween.seeding import numpy_generator
from tests.smoothing.known import (
    DIMENSION,
    KnownCase,
    ball,
    ball_case,
    half_space,
    most_failures,
    slab,
    slab_case,
)
from tests.smoothing.small import SHAPE, smoothed

CASES = 10_000
N = 100_000
SIGMA = 0.5


def _half_spaces(
    seed: int, low: float, high: float, alpha: float = 0.001
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Distances of points from half-spaces, and certified radii."""
    generator = numpy_generator(seed, "half space")
    distances = generator.uniform(low, high, CASES)
    counts = generator.binomial(N, special.ndtr(distances / SIGMA))
    return distances, radius_cohen(counts, N, alpha=alpha, sigma=SIGMA)


@pytest.mark.parametrize("alpha", [0.001, 0.05])
def test_half_space_is_sound_over_ten_thousand_cases(alpha: float) -> None:
    distances, radii = _half_spaces(0, 0.0, 5 * SIGMA, alpha)
    assert int((radii > distances).sum()) <= most_failures(CASES, alpha)


def _tightness(low: float, high: float) -> float:
    distances, radii = _half_spaces(1, low, high)
    largest = float(radius_cohen(N, N, alpha=0.001, sigma=SIGMA))
    return float((radii / np.minimum(distances, largest)).mean())


def test_half_space_is_tight() -> None:
    assert _tightness(SIGMA / 2, 3 * SIGMA) >= 0.94
    assert _tightness(3 * SIGMA, 6 * SIGMA) >= 0.88
    assert _tightness(6 * SIGMA, 8 * SIGMA) == pytest.approx(1.0, abs=1e-9)  # all votes agree


def _known_cases(kind: str, generator: np.random.Generator, count: int) -> list[KnownCase]:
    if kind == "slab":
        widths, shifts = generator.uniform(0.2, 2.0, count), generator.uniform(0, 2.5, count)
        return [slab_case(s, w, SIGMA) for s, w in zip(shifts, widths, strict=True)]
    radii, distances = generator.uniform(3.6, 6.0, count), generator.uniform(0, 4.0, count)
    return [ball_case(d, r, SIGMA) for d, r in zip(distances, radii, strict=True)]


@pytest.mark.parametrize("kind", ["slab", "ball"])
def test_known_probabilities_are_sound(kind: str) -> None:
    alpha = 0.05
    generator = numpy_generator(2, kind)
    cases = _known_cases(kind, generator, 400)
    p = np.array([max(case.probability, 1 - case.probability) for case in cases])
    truth = np.array([case.robust_radius for case in cases])
    repeats = 25
    counts = generator.binomial(N, p[:, None], (len(cases), repeats))
    radii = radius_cohen(counts, N, alpha=alpha, sigma=SIGMA)
    assert int((radii > truth[:, None]).sum()) <= most_failures(radii.size, alpha)
    assert float((radii > 0).mean()) > 0.5  # and it is not sound merely by abstaining


def _unit(generator: np.random.Generator) -> npt.NDArray[np.float64]:
    vector = generator.standard_normal(DIMENSION)
    return vector / np.linalg.norm(vector)


def _engine_case(
    kind: str, generator: np.random.Generator
) -> tuple[nn.Module, np.ndarray, float, int]:
    """A classifier, a point, and the smoothed classifier's robust radius and prediction there."""
    point = generator.uniform(0.2, 0.8, DIMENSION)
    direction = torch.from_numpy(_unit(generator)).float()
    projection = float(point @ direction.double().numpy())
    if kind == "half-space":
        distance = generator.uniform(0.0, 3 * SIGMA)
        side = generator.choice([-1, 1])
        model = half_space(direction, projection - side * distance)
        return model, point, distance, int(side < 0)
    if kind == "slab":
        shift, width = generator.uniform(0, 1.5), generator.uniform(0.4, 2.0)
        known = slab_case(shift, width, SIGMA)
        answer = int(known.probability <= 0.5)
        return slab(direction, projection - shift, width), point, known.robust_radius, answer
    distance, radius = generator.uniform(0, 2.5), generator.uniform(3.8, 5.5)
    centre = torch.from_numpy(point + distance * _unit(generator)).float()
    known = ball_case(distance, radius, SIGMA)
    return ball(centre, radius), point, known.robust_radius, int(known.probability <= 0.5)


@pytest.mark.parametrize("kind", ["half-space", "slab", "ball"])
def test_the_whole_engine_is_sound_on_known_classifiers(kind: str) -> None:
    """200 cases from pixels to record, at alpha = .05 so that failures would show."""
    alpha, trials = 0.05, 200
    generator = numpy_generator(3, kind)
    false, certified, shares = 0, 0, []
    settings = CertifySettings(n0=100, n=2000, alpha=alpha)
    for trial in range(trials):
        model, point, truth, answer = _engine_case(kind, generator)
        image = torch.from_numpy(point).float().view(1, *SHAPE)
        classifier = smoothed(model, sigma=SIGMA, num_classes=2)
        (certificate,) = classifier.certify(image, settings=settings, indices=[trial])
        wrong = not certificate.abstained and certificate.prediction != answer
        false += wrong or certificate.radius > truth
        certified += not certificate.abstained
        if truth > SIGMA / 2:
            shares.append(certificate.radius / min(truth, 3 * SIGMA))
    assert false <= most_failures(trials, alpha)
    assert certified > trials / 2
    assert np.mean(shares) > (0.8 if kind == "half-space" else 0.3)
