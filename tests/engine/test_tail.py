"""The truncated tail of float32 noise, and numbers of votes at which it would matter."""

import math
from pathlib import Path

import pytest
import torch

from sween.bounds.binomial import upper_bound
from sween.engine.exact_noise import ExactNoise
from sween.engine.noise import CPU_MISSING, GPU_MISSING, GaussianNoise
from sween.errors import BadInput
from sween.philox import _box_muller
from sween.sampling.settings import CertifySettings
from sween.smoothing.tail import MOST_MISSING, check_tail
from tests.certifying import certify_digits
from tests.smoothing.small import constant, smoothed

GPU, CPU = torch.device("cuda"), torch.device("cpu")
CIFAR, LARGE = 3 * 32 * 32, 3 * 224 * 224


def test_a_gpu_pair_is_truncated_at_a_tail_of_two_to_the_minus_33() -> None:
    words = torch.tensor([0, 1, 2**20, 2**31, 2**32 - 1])
    along, across = _box_muller(words, torch.zeros_like(words))
    assert torch.equal(across, torch.zeros_like(across))
    assert bool((along.diff() < 0).all()), "the word 0 gives the largest radius"
    assert float(along[0]) == pytest.approx(6.764, abs=5e-4)
    assert math.exp(-(float(along[0]) ** 2) / 2) == pytest.approx(GPU_MISSING, rel=1e-5)


def test_a_cpu_number_is_truncated_at_its_stated_tail() -> None:
    """numpy: r + E / r with r = 3.654, E = -log of a uniform number of at least 2**-23."""
    end = 3.6541528853610088 + 23 * math.log(2) / 3.6541528853610088
    assert math.erfc(end / math.sqrt(2)) <= CPU_MISSING


@pytest.mark.parametrize(("numbers", "within"), [(CIFAR, 9_600_000), (LARGE, 190_000)])
def test_votes_beyond_what_the_tail_allows_are_refused(numbers: int, within: int) -> None:
    noise = GaussianNoise(sigma=0.5)
    check_tail(noise, GPU, CertifySettings(n=100_000), numbers)
    check_tail(noise, GPU, CertifySettings(n=within), numbers)
    for bound in ("cohen", "two-class"):
        with pytest.raises(
            BadInput, match=r"n: expected at most [\d,]+ with float32 .*exact"
        ) as at:
            check_tail(noise, GPU, CertifySettings(n=2 * within, bound=bound), numbers)
        most = int(str(at.value).split("at most ")[1].split(" ")[0].replace(",", ""))
        check_tail(noise, GPU, CertifySettings(n=most, bound=bound), numbers)
        with pytest.raises(BadInput):
            check_tail(noise, GPU, CertifySettings(n=round(most * 1.00001), bound=bound), numbers)
    # What is accepted is at most this share of the smallest bound on the miss probability.
    assert numbers * GPU_MISSING <= MOST_MISSING * float(upper_bound(0, within, 0.001))


def test_a_cpu_and_exact_noise_allow_all_votes() -> None:
    most = CertifySettings(n=10**9)
    check_tail(GaussianNoise(sigma=0.5), CPU, most, LARGE)
    for device in (CPU, GPU):
        check_tail(ExactNoise(sigma=0.5, levels=16), device, most, LARGE)


def test_certify_checks_the_tail_before_drawing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(GaussianNoise, "missing", lambda *_: GPU_MISSING)

    with pytest.raises(BadInput, match="images of 3,072 "):
        smoothed(constant(1.0, 0.0), num_classes=2).certify(torch.zeros(3, 32, 32), n=10**9)
    with pytest.raises(BadInput, match="images of 64 "):
        certify_digits(tmp_path / "out", CertifySettings(n=10**9))
    assert not (tmp_path / "out").exists()
