"""The noise kernels, emulated on a CPU: the same draws as plain torch operations."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from sween.engine.engine import VoteEngine
from sween.engine.exact_noise import ExactNoise, noise_table, words_of_62_bits
from sween.engine.kernels import NoiseKernels
from sween.engine.kernels.noise import LaunchNoise
from sween.engine.kernels.source import NOISE, read_source
from sween.engine.noise import GaussianNoise, Noise
from sween.errors import PreparationWarning
from sween.philox import counters, normal_draws, stream_words
from sween.seeding import derive_key, noisy_copies, philox_normals
from tests.engine.kernels.conftest import compiler
from tests.engine.kernels.emulation import NoiseEmulator
from tests.engine.kernels.networks import default_dtype
from tests.smoothing.small import smoothed

CPU = torch.device("cpu")
KEYS = [derive_key(7, "kernel", example) for example in range(3)]


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> NoiseKernels:
    return NoiseKernels(NoiseEmulator(tmp_path_factory.mktemp("noise"), compiler()))


def _images(shape: tuple[int, int, int]) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (len(KEYS), *shape), generator=generator) / 255


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 5, 7), (1, 1, 1)])
def test_gaussian_copies_match_plain_operations(
    kernels: NoiseKernels, shape: tuple[int, int, int]
) -> None:
    images = _images(shape)
    wanted = noisy_copies(images, KEYS, sigma=0.5, normals=philox_normals)
    noisy, valid = GaussianNoise(sigma=0.5, kernels=kernels).copies(images, KEYS)
    assert valid is None
    assert noisy.shape == wanted.shape
    assert float((noisy - wanted).abs().max()) < 1e-6
    # If the draws are not a multiple of four, the last counter is used in part.
    streams = stream_words(KEYS, CPU)
    few = kernels.gaussian(images, streams, sigma=0.5, copies=3)
    draws = philox_normals(KEYS, (3, *shape), CPU)
    assert torch.allclose(few, (images[:, None] + 0.5 * draws).flatten(0, 1), atol=1e-6)


def test_draws_at_large_counters_and_streams(kernels: NoiseKernels) -> None:
    """The high bits of every word of a stream's identifier matter."""
    keys = [(2**128 - 1) ^ (1 << bit) for bit in (0, 31, 63, 64, 127)]
    zeros = torch.zeros(5, 1, 16, 16)
    noisy = kernels.gaussian(zeros, stream_words(keys, CPU), sigma=1.0, copies=100)
    wanted = philox_normals(keys, (100, 1, 16, 16), CPU).flatten(0, 1)
    assert torch.allclose(noisy, wanted, atol=1e-6)
    assert len(set(noisy.flatten().tolist())) > 0.99 * noisy.numel()


def _plain_exact(
    images: torch.Tensor, cumulative: torch.Tensor, first: int, levels: int, copies: int
) -> tuple[torch.Tensor, torch.Tensor]:
    count = copies * images[0].numel()
    words = words_of_62_bits(stream_words(KEYS, CPU), counters(2 * count, CPU))
    drawn = torch.searchsorted(cumulative, words[:, :count].contiguous(), right=True)
    valid = (drawn < len(cumulative)).view(len(images) * copies, -1).all(dim=1)
    steps = (drawn + first).view(len(images), copies, *images.shape[1:])
    positions = (images * levels).round().long()[:, None] + steps
    return (positions.float() / levels).flatten(0, 1), valid


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 5, 7)])
@pytest.mark.parametrize("sigma", [0.25, 1.0])
def test_exact_copies_match_plain_operations(
    kernels: NoiseKernels, shape: tuple[int, int, int], sigma: float
) -> None:
    images, table = _images(shape), noise_table(sigma, 255)
    noisy, valid = ExactNoise(sigma=sigma, levels=255, kernels=kernels).copies(images, KEYS)
    wanted, counting = _plain_exact(images, table.cumulative, table.first, 255, 100)
    assert valid is not None
    assert bool(valid.all())
    assert torch.equal(valid, counting)
    assert torch.equal(noisy, wanted)


def test_draws_beyond_the_table_do_not_count(kernels: NoiseKernels) -> None:
    images, table = _images((1, 3, 3)), noise_table(0.25, 255)
    short = table.cumulative[: len(table.cumulative) // 2 + 100].contiguous()
    streams = stream_words(KEYS, CPU)
    noisy, valid = kernels.exact(
        images, streams, cumulative=short, first=table.first, levels=255, copies=50
    )
    wanted, counting = _plain_exact(images, short, table.first, 255, 50)
    assert torch.equal(valid, counting)
    assert 0 < int(valid.sum()) < len(valid)
    assert torch.equal(noisy, wanted)


def test_the_default_dtype_does_not_matter(kernels: NoiseKernels) -> None:
    """The kernels read memory as float32: sigma in another type would be misread."""
    images = _images((1, 8, 8))
    laws: tuple[Noise, ...] = (
        GaussianNoise(sigma=0.5, kernels=kernels),
        ExactNoise(sigma=0.5, levels=255, kernels=kernels),
    )
    wanted = [law.copies(images, KEYS)[0] for law in laws]
    with default_dtype(torch.float64):
        for law, noisy in zip(laws, wanted, strict=True):
            assert torch.equal(law.copies(images, KEYS)[0], noisy)
            with pytest.raises(ValueError, match="float32"):
                law.copies(images.double(), KEYS)


BOTH = ("exact", "float32")


@pytest.mark.parametrize(
    ("true", "false", "kinds"),
    [
        ("images[own.stream * numbers", "images[0 * numbers", BOTH),
        ("round < 10", "round < 9", BOTH),
        ("k1 += 0xBB67AE85u", "k1 += 0", BOTH),
        ("stream[3])", "stream[2])", BOTH),
        ("<= drawn[k]", "< drawn[k] - 1000000000000000ull", ["exact"]),
        ("(words.a) << 30", "(words.a) << 29", ["exact"]),
    ],
)
def test_faulty_noise_kernels_are_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, true: str, false: str, kinds: Sequence[str]
) -> None:
    """Every engine compares with plain draws, which must reveal the fault."""
    source = read_source(NOISE)
    assert true in source
    emulator = NoiseEmulator(tmp_path, compiler(), source.replace(true, false))
    for kind in kinds:
        engine = _engine_of_a_gpu(monkeypatch, emulator, kind)
        with pytest.warns(PreparationWarning, match="cannot be drawn by custom kernels, .*apart"):
            engine.prepare(torch.rand(1, 8, 8))
        assert not _uses_kernels(engine)


@pytest.mark.parametrize("kind", BOTH)
def test_correct_noise_kernels_are_used(
    kernels: NoiseKernels, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    engine = _engine_of_a_gpu(monkeypatch, kernels._launch, kind)
    engine.prepare(torch.rand(1, 8, 8))
    assert _uses_kernels(engine)


def _uses_kernels(engine: VoteEngine) -> bool:
    assert isinstance(engine.noise, ExactNoise | GaussianNoise)
    return engine.noise._kernels is not None


def _engine_of_a_gpu(monkeypatch: pytest.MonkeyPatch, launch: LaunchNoise, kind: str) -> VoteEngine:
    """A CPU engine whose noise, plain and fast, is that of a GPU."""

    def draw(_: ExactNoise, keys: list[int], count: int, device: torch.device) -> torch.Tensor:
        words = words_of_62_bits(stream_words(keys, device), counters(2 * count, device))
        return words[:, :count].contiguous()

    monkeypatch.setattr(ExactNoise, "_draw", draw)
    monkeypatch.setattr("sween.engine.noise.normals_of", philox_normals)
    monkeypatch.setattr("sween.engine.noise._compiled_draws", lambda: normal_draws)
    monkeypatch.setattr("sween.engine.exact_noise._compiled_words", lambda: words_of_62_bits)
    monkeypatch.setattr("sween.engine.compiled_noise.supports", lambda _: True)
    monkeypatch.setattr("sween.engine.compiled_noise.NoiseLauncher", lambda: launch)
    monkeypatch.setattr(VoteEngine, "compiled", property(lambda _: True))
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 2))
    return smoothed(model, num_classes=2, noise=kind).engine
