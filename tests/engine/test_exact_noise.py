"""Exact noise: rounded Gaussian noise, and certificates that rounding errors cannot break."""

import numpy as np
import pytest
import torch
from scipy import special, stats
from torch import nn

from sween.bounds.decision import decide, decide_prediction, decide_radii
from sween.bounds.radius import radius_cohen, radius_of_miss, radius_two_class
from sween.bounds.scores import soft_miss
from sween.engine import VoteRequest
from sween.engine.engine import VoteEngine
from sween.engine.exact_noise import BITS, ExactNoise, noise_table, words_of_62_bits
from sween.ensemble import WeightedEnsemble
from sween.errors import BadInput, UnknownName
from sween.philox import counters, stream_words
from sween.records import ABSTAIN, Certificate
from sween.seeding import derive_key
from sween.smoothing import SmoothedClassifier

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


def test_a_few_masses_to_fifty_digits() -> None:
    """Against mpmath's normal distribution function, not the complement used in the code."""
    import mpmath

    table = noise_table(0.5, 255)
    masses = np.diff(table.cumulative.numpy(), prepend=0)
    with mpmath.workdps(50):
        for step in (0, 1, -1, 100, -400, 1000):
            scale = 255 * mpmath.mpf(0.5)
            law = mpmath.ncdf((step + mpmath.mpf(0.5)) / scale) - mpmath.ncdf(
                (step - mpmath.mpf(0.5)) / scale
            )
            assert int(masses[step - table.first]) == int(mpmath.floor(law * 2**BITS))


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


class LowBits(nn.Module):
    """Answers 0 where some number has bits finer than 2**-32, else nearly tosses a coin.

    Around the black image float noise has such bits nearly always, around an image of 2**-8 never.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        numbers = x.flatten(1).double() * 2.0**32
        fine = (numbers != numbers.round()).any(dim=1)
        coin = x.flatten(1)[:, 0] > 0.01
        first = (fine | coin).float()
        return torch.stack([first, 1 - first], dim=1)


def _certify(image: torch.Tensor, noise: str, n: int = 2_000) -> Certificate:
    smoothed = SmoothedClassifier(LowBits(), sigma=0.5, num_classes=2, noise=noise)
    return smoothed.certify_one(image, n=n, seed=0)


def test_the_float_attack() -> None:
    """float32 noise certifies a ball with an adversarial example in it; exact noise does not."""
    image, attacked = torch.zeros(3, 32, 32), torch.full((3, 32, 32), 2.0**-8)
    distance = float((image - attacked).norm())
    assert distance < 0.22
    false = _certify(image, "float32")
    assert false.prediction == 0
    assert false.radius > 1.0 > distance
    votes = _certify(attacked, "float32", n=20_000).estimation_counts
    assert votes[0] < votes[1], "inside the certified ball the answer is the other class"
    honest = _certify(image, "exact")
    assert honest.prediction == ABSTAIN
    assert honest.noise == "exact(levels=255)"


def test_lost_draws_count_against_the_prediction(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a table that loses a hundredth: those votes are drawn but count for no class."""
    whole = noise_table(0.5, 255)
    short = type(whole)(whole.first, (whole.cumulative.double() * 0.9999).long())
    monkeypatch.setattr("sween.engine.exact_noise.noise_table", lambda *_: short)

    class Always(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tensor([1.0, 0.0]).expand(len(x), 2)

    smoothed = SmoothedClassifier(Always(), sigma=0.5, num_classes=2, noise="exact")
    row = smoothed.certify_one(torch.zeros(1, 10, 10), n=1_000)
    counted = sum(row.estimation_counts)
    assert 960 < counted < 998  # a hundred numbers an image, a ten-thousandth of them lost
    assert (row.n, row.samples) == (1_000, 1_100)
    assert row.radius == float(radius_cohen(counted, 1_000, alpha=0.001, sigma=0.5))
    two = float(radius_two_class(counted, 1_000 - counted, 1_000, alpha=0.001, sigma=0.5))
    assert row.radius_two_class == two


def test_lost_draws_score_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """With soft votes too: a draw beyond the table scores 0, whatever the network returns."""
    whole = noise_table(0.5, 255)
    short = type(whole)(whole.first, (whole.cumulative.double() * 0.9999).long())
    monkeypatch.setattr("sween.engine.exact_noise.noise_table", lambda *_: short)

    class Always(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tensor([30.0, 0.0]).expand(len(x), 2)

    ensemble = WeightedEnsemble([Always()])
    smoothed = SmoothedClassifier(ensemble, sigma=0.5, num_classes=2, noise="exact")
    row = smoothed.certify_one(torch.zeros(1, 10, 10), n=1_000, votes="soft")
    assert row.estimation_scores is not None
    assert row.selection_scores is not None
    scored = sum(row.estimation_scores[1::2])
    assert 960 < scored < 998
    assert scored == sum(row.estimation_counts)
    assert sum(row.selection_scores[1::2]) == sum(row.selection_counts)
    zeros = (0, 1_000 - scored, *row.estimation_scores)
    miss = soft_miss(row.selection_scores, zeros, n=1_000, alpha=0.001)
    assert row.radius == float(radius_of_miss(miss, 0.5))


def test_decisions_give_lost_votes_to_the_runner_up() -> None:
    full = decide([9, 1, 0], [900, 60, 40], alpha=0.001, sigma=1.0)
    lost = decide([9, 1, 0], [900, 60, 30], n=1000, alpha=0.001, sigma=1.0)
    worst = decide([9, 1, 0], [900, 70, 30], alpha=0.001, sigma=1.0)
    assert lost.radius_cohen == full.radius_cohen
    assert lost.radius_two_class == worst.radius_two_class
    one, _ = decide_radii([9, 1], [900, 90], [0.5], n=1000, largest=2000, alpha=0.01, sigma=1.0)
    two, _ = decide_radii([9, 1], [900, 100], [0.5], largest=2000, alpha=0.01, sigma=1.0)
    assert one == two


def test_both_noise_distributions_agree_on_a_smooth_classifier() -> None:
    class Bright(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            total = x.flatten(1).mean(1) - 0.55
            return torch.stack([total, -total], dim=1)

    image = torch.full((1, 8, 8), 153 / 255)
    n, shares = 20_000, []
    for noise in ("float32", "exact"):
        row = SmoothedClassifier(Bright(), sigma=0.5, num_classes=2, noise=noise).certify_one(
            image, n=n
        )
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
            lambda: SmoothedClassifier(LowBits(), sigma=0.5, num_classes=2, noise="exact").certify(
                torch.full((3, 4, 4), 0.3), n=200
            ),
            ("images", "multiple of 1/255", "--noise float32"),
        ),
        (
            lambda: SmoothedClassifier(LowBits(), sigma=0.5, num_classes=2, noise="exact").certify(
                torch.full((3, 4, 4), 77 / 255 + 3e-8), n=200
            ),
            ("images", "multiple of 1/255"),
        ),
        (
            lambda: SmoothedClassifier(
                LowBits(), sigma=0.5, num_classes=2, noise="exact", levels=0
            ),
            ("levels", "at least 1", "use 255"),
        ),
    ],
)
def test_bad_input_is_one_line(make, parts) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(BadInput) as caught:
        make()
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    for part in parts:
        assert part in message


def test_rounding_is_not_suggested_for_images_off_the_grid() -> None:
    """g(x') is certified, not g(round(x')), which is farther away and has another prediction."""
    levels = 16

    class Dark(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            score = 0.6 / levels - x.flatten(1).mean(1)
            return torch.stack([score, -score], dim=1)

    smoothed = SmoothedClassifier(Dark(), sigma=0.5, num_classes=2, noise="exact", levels=levels)
    image = torch.zeros(1, 8, 8)
    row = smoothed.certify_one(image, n=5_000, seed=0)
    changed = torch.full_like(image, 0.51 / levels)
    assert row.prediction == 0
    assert row.radius > float((changed - image).norm())
    for ask in (smoothed.predict, smoothed.certify):
        with pytest.raises(BadInput) as caught:
            ask(changed, n=200)
        assert "round" not in str(caught.value)
    rounded = (changed * levels).round() / levels
    answer = smoothed.predict_one(rounded, n=5_000)
    assert answer.prediction == 1, "so advice to round would have broken the certificate"


def test_an_unknown_noise_suggests_the_closest_name() -> None:
    with pytest.raises(UnknownName, match="did you mean 'exact'"):
        SmoothedClassifier(LowBits(), sigma=0.5, num_classes=2, noise="exakt")


def test_exact_votes_do_not_depend_on_the_batch() -> None:
    class Mean(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            total = x.flatten(1).sum(1)
            return torch.stack([total, 32 - total], dim=1)

    images = torch.randint(0, 256, (3, 1, 8, 8)).float() / 255
    results = []
    for batch_size in (100, 1000):
        smoothed = SmoothedClassifier(
            Mean(), sigma=0.5, num_classes=2, noise="exact", batch_size=batch_size
        )
        engine: VoteEngine = smoothed.engine
        engine.prepare(images[0])
        results.append(
            engine.count_one(VoteRequest(images, [0, 1, 2], "estimation", [330] * 3), seed=0).counts
        )
    assert torch.equal(results[0], results[1])


def test_predictions_give_lost_votes_to_the_runner_up() -> None:
    assert decide_prediction((90, 5), alpha=0.001, n=100) == decide_prediction(
        (90, 10), alpha=0.001
    )
    assert decide_prediction((60, 0), alpha=0.001, n=100)[0] == ABSTAIN
