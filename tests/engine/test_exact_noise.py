"""Exact noise: rounded Gaussian noise, and certificates that rounding errors cannot break."""

from collections.abc import Callable

import mpmath
import numpy as np
import pytest
import torch
from scipy import special, stats

from sween.bounds.decision import decide, decide_prediction, decide_radii
from sween.bounds.radius import radius_cohen, radius_of_miss, radius_two_class
from sween.bounds.scores import soft_miss
from sween.engine.exact_noise import BITS, ExactNoise, noise_table, words_of_62_bits
from sween.ensemble import WeightedEnsemble
from sween.errors import BadInput
from sween.philox import counters, stream_words
from sween.records import ABSTAIN, Certificate
from sween.seeding import derive_key
from tests.smoothing.small import by_score, constant, smoothed

CPU = torch.device("cpu")


@pytest.mark.parametrize(("sigma", "levels"), [(0.25, 255), (1.0, 255), (0.5, 16), (0.0625, 16)])
def test_the_table_is_the_distribution_rounded_down(sigma: float, levels: int) -> None:
    table = noise_table(sigma, levels)
    masses = np.diff(table.cumulative.numpy(), prepend=0)
    steps = table.first + np.arange(len(masses))
    assert steps[0] == -steps[-1]
    assert np.array_equal(masses, masses[::-1])
    assert np.all(masses > 0)
    upper = special.ndtr((steps + 0.5) / (levels * sigma))
    law = upper - special.ndtr((steps - 0.5) / (levels * sigma))
    assert np.abs(masses / 2.0**BITS - law).max() < 1e-15
    lost = 2**BITS - int(table.cumulative[-1])
    assert 0 < lost <= len(masses) + 1, "each mass is rounded down by less than one unit"


def test_masses_match_a_reference_of_fifty_digits() -> None:
    """Against mpmath's normal distribution function, not the complement used in the code."""
    table = noise_table(0.5, 255)
    masses = np.diff(table.cumulative.numpy(), prepend=0)
    with mpmath.workdps(50):
        for step in (0, 1, -1, 100, -400, 1000):
            scale = 255 * mpmath.mpf(0.5)
            below, above = (mpmath.ncdf((step + side) / scale) for side in (-0.5, 0.5))
            wanted = int(mpmath.floor((above - below) * 2**BITS))
            assert int(masses[step - table.first]) == wanted


def _steps(noise: ExactNoise, keys: int) -> np.ndarray:
    images = torch.zeros(keys, 1, 8, 8)
    copies, valid = noise.copies(images, [derive_key(0, "exact", key) for key in range(keys)])
    assert valid is not None
    assert bool(valid.all())
    return np.asarray(np.rint(copies.numpy() * noise.levels).astype(int).ravel())


@pytest.mark.parametrize("draw", ["cpu", "gpu words"])
def test_draws_follow_the_distribution(draw: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sigma, levels = 0.5, 16
    noise = ExactNoise(sigma=sigma, levels=levels, compile=False)
    if draw == "gpu words":  # the generator of a GPU, run here

        def words(self: ExactNoise, keys: list[int], count: int, _: torch.device) -> torch.Tensor:
            return words_of_62_bits(stream_words(keys, CPU), counters(2 * count, CPU))[:, :count]

        monkeypatch.setattr(ExactNoise, "_draw", words)
    steps = _steps(noise, 40)
    edges = np.arange(-20, 21) + 0.5
    observed = np.histogram(steps, [-np.inf, *edges, np.inf])[0]
    expected = np.diff(special.ndtr(np.asarray([-np.inf, *edges, np.inf]) / (levels * sigma)))
    assert stats.chisquare(observed, expected * len(steps)).pvalue > 1e-3


def test_words_have_62_bits() -> None:
    words = words_of_62_bits(
        stream_words([derive_key(0, "bits", key) for key in range(50)], CPU), counters(800, CPU)
    )
    assert int(words.min()) >= 0
    assert int(words.max()) < 2**BITS
    assert int(words.max()) > 2**BITS * 0.999
    ones = torch.stack([(words >> bit & 1).double().mean() for bit in range(BITS)])
    assert float((ones - 0.5).abs().max()) < 5 * 0.5 / words.numel() ** 0.5


def test_copies_stay_on_the_grid_and_keep_the_image() -> None:
    levels = 255
    image = torch.randint(0, 256, (1, 3, 4, 4)).float() / levels
    noise = ExactNoise(sigma=0.25, levels=levels, compile=False)
    copies, _ = noise.copies(image, [derive_key(0, "p")])
    whole = (copies.double() * levels).round()
    assert torch.equal(copies, whole.float() / levels), "one float per integer"
    assert float(copies.min()) < 0, "not clipped to [0, 1]"
    shifted, _ = noise.copies(image + 7 / levels, [derive_key(0, "p")])
    assert torch.equal((shifted.double() * levels).round() - whole, torch.full_like(whole, 7))


def _low_bits(x: torch.Tensor) -> torch.Tensor:
    """Class 0 if any number has bits finer than 2**-32, else nearly a coin toss.

    Around the black image float noise has such bits nearly always, around an image of 2**-8 never.
    """
    numbers = x.double() * 2.0**32
    fine = (numbers != numbers.round()).any(dim=1)
    return (fine | (x[:, 0] > 0.01)).float() - 0.5


def _certify(image: torch.Tensor, noise: str, n: int = 2_000) -> Certificate:
    return smoothed(by_score(_low_bits), num_classes=2, noise=noise).certify_one(image, n=n, seed=0)


def test_the_float_attack_breaks_float32_noise_but_not_exact_noise() -> None:
    """float32 noise certifies a ball with an adversarial example in it; exact noise does not."""
    image, attacked = torch.zeros(3, 32, 32), torch.full((3, 32, 32), 2.0**-8)
    distance = float((image - attacked).norm())
    assert distance < 0.22
    false = _certify(image, "float32")
    assert false.prediction == 0
    assert false.radius > 1.0 > distance
    votes = _certify(attacked, "float32", n=20_000).estimation_counts
    assert votes[0] < votes[1], "inside the certified ball the prediction is the other class"
    honest = _certify(image, "exact")
    assert honest.prediction == ABSTAIN
    assert honest.noise == "exact(levels=255)"


@pytest.mark.parametrize("votes", ["hard", "soft"])
def test_draws_beyond_the_table_count_against_the_prediction(
    votes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are drawn but count for no class and score 0, whatever the network returns."""
    whole = noise_table(0.5, 255)
    short = type(whole)(whole.first, (whole.cumulative.double() * 0.9999).long())
    monkeypatch.setattr("sween.engine.exact_noise.noise_table", lambda *_: short)
    classifier = smoothed(WeightedEnsemble([constant(30.0, 0.0)]), num_classes=2, noise="exact")
    row = classifier.certify_one(torch.zeros(1, 10, 10), n=1_000, votes=votes)
    counted = sum(row.estimation_counts)
    assert 960 < counted < 998  # 100 pixels per image, each lost with probability 1/10,000
    assert (row.n, row.samples) == (1_000, 1_100)
    if votes == "hard":
        assert row.radius == float(radius_cohen(counted, 1_000, alpha=0.001, sigma=0.5))
        two = float(radius_two_class(counted, 1_000 - counted, 1_000, alpha=0.001, sigma=0.5))
        assert row.radius_two_class == two
        return
    assert row.estimation_scores is not None
    assert row.selection_scores is not None
    assert sum(row.estimation_scores[1::2]) == counted
    assert sum(row.selection_scores[1::2]) == sum(row.selection_counts)
    zeros = (0, 1_000 - counted, *row.estimation_scores)
    miss = soft_miss(row.selection_scores, zeros, n=1_000, alpha=0.001)
    assert row.radius == float(radius_of_miss(miss, 0.5))


def test_lost_votes_count_for_the_runner_up() -> None:
    full = decide([9, 1, 0], [900, 60, 40], alpha=0.001, sigma=1.0)
    lost = decide([9, 1, 0], [900, 60, 30], n=1000, alpha=0.001, sigma=1.0)
    worst = decide([9, 1, 0], [900, 70, 30], alpha=0.001, sigma=1.0)
    assert lost.radius_cohen == full.radius_cohen
    assert lost.radius_two_class == worst.radius_two_class
    one, _ = decide_radii([9, 1], [900, 90], [0.5], n=1000, largest=2000, alpha=0.01, sigma=1.0)
    two, _ = decide_radii([9, 1], [900, 100], [0.5], largest=2000, alpha=0.01, sigma=1.0)
    assert one == two
    predicted = decide_prediction((90, 5), alpha=0.001, n=100)
    assert predicted == decide_prediction((90, 10), alpha=0.001)
    assert decide_prediction((60, 0), alpha=0.001, n=100)[0] == ABSTAIN


def test_both_noise_distributions_agree_on_a_smooth_classifier() -> None:
    n, shares = 20_000, []
    for noise in ("float32", "exact"):
        bright = smoothed(by_score(lambda x: x.mean(1) - 0.55), num_classes=2, noise=noise)
        row = bright.certify_one(torch.full((1, 8, 8), 153 / 255), n=n)
        shares.append(row.estimation_counts[0] / n)
    truth = float(special.ndtr((0.6 - 0.55) / (0.5 / 8)))
    for share in shares:
        assert abs(share - truth) < 5 * (truth * (1 - truth) / n) ** 0.5
    assert shares[0] != shares[1], "independent draws"


@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (lambda: ExactNoise(sigma=0.001, levels=255, compile=False), ("sigma", "0.001", "raise")),
        (
            lambda: _certify(torch.full((3, 4, 4), 0.3), "exact"),
            ("images", "multiple of 1/255", "float32 noise"),
        ),
        (
            lambda: _certify(torch.full((3, 4, 4), 77 / 255 + 3e-8), "exact"),
            ("images", "multiple of 1/255"),
        ),
        (lambda: smoothed(noise="exact", levels=0), ("levels", "at least 1", "use 255")),
        (lambda: smoothed(noise="exakt"), ("did you mean 'exact'",)),
    ],
)
def test_bad_input_is_refused_in_one_line(
    make: Callable[[], object], parts: tuple[str, ...]
) -> None:
    with pytest.raises(BadInput) as caught:
        make()
    message = str(caught.value)
    assert "\n" not in message
    assert all(part in message for part in parts), message


def test_rounding_is_not_suggested_for_images_off_the_grid() -> None:
    """g(x') is certified, not g(round(x')), which is farther away and has another prediction."""
    levels = 16
    dark = by_score(lambda x: 0.6 / levels - x.mean(1))
    classifier = smoothed(dark, num_classes=2, noise="exact", levels=levels)
    image = torch.zeros(1, 8, 8)
    row = classifier.certify_one(image, n=5_000, seed=0)
    changed = torch.full_like(image, 0.51 / levels)
    assert row.prediction == 0
    assert row.radius > float((changed - image).norm())
    for ask in (classifier.predict, classifier.certify):
        with pytest.raises(BadInput) as caught:
            ask(changed, n=200)
        assert "round" not in str(caught.value)
    rounded = (changed * levels).round() / levels
    answer = classifier.predict_one(rounded, n=5_000)
    assert answer.prediction == 1, "so advice to round would have broken the certificate"
