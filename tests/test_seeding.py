"""Noise streams depend on seed, purpose, example and block, and on nothing else."""

import concurrent.futures

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sween.errors import BadInput
from sween.seeding import (
    NOISE_BLOCK,
    derive_key,
    noise_blocks,
    noisy_copies,
    numpy_generator,
    standard_normal,
    torch_seed,
)

CPU = torch.device("cpu")
WORDS = st.integers(-(2**63), 2**63 - 1)
KEYS = st.tuples(WORDS, st.text(max_size=12), WORDS, WORDS)


def draw(seed: int, purpose: str, example: int, block: int, size: int = 8) -> torch.Tensor:
    return standard_normal(
        (size,), seed=seed, purpose=purpose, example=example, block=block, device=CPU
    )


@given(KEYS, KEYS)
def test_different_keys_give_different_streams(
    one: tuple[int, str, int, int], other: tuple[int, str, int, int]
) -> None:
    assert (derive_key(*one) == derive_key(*other)) == (one == other)
    assert torch.equal(draw(*one), draw(*other)) == (one == other)


@given(st.lists(KEYS, min_size=1, max_size=4), st.integers(1, 9))
def test_a_stream_starts_as_a_new_philox_generator_does(
    keys: list[tuple[int, str, int, int]], size: int
) -> None:
    """Whatever the thread has drawn before, odd numbers of draws included."""
    for key in keys:
        wanted = numpy_generator(*key).standard_normal(size, dtype=np.float32)
        assert draw(*key, size=size).tolist() == wanted.tolist()


def test_threads_do_not_share_a_stream() -> None:
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda block: draw(1, "noise", 2, block, 50_000), range(64)))
    assert all(torch.equal(found[k], draw(1, "noise", 2, k, 50_000)) for k in range(64))


@given(KEYS, st.integers(0, 3), st.integers(1, 2**40))
def test_changing_one_part_changes_the_stream(
    key: tuple[int, str, int, int], part: int, step: int
) -> None:
    def move(value: int) -> int:
        return value - step if value > 0 else value + step

    seed, purpose, example, block = key
    other = (
        (move(seed), purpose, example, block),
        (seed, purpose + "x", example, block),
        (seed, purpose, move(example), block),
        (seed, purpose, example, move(block)),
    )[part]
    assert derive_key(*other) != derive_key(*key)


def test_no_two_streams_of_a_run_share_a_key() -> None:
    keys = [
        derive_key(seed, purpose, example, block)
        for seed in range(3)
        for purpose in ("selection", "estimation", "prediction", "", "1")
        for example in range(20)
        for block in range(100)
    ]
    keys += [derive_key(10, "", 11, 12), derive_key(11, "", 10, 12), derive_key(10, "", 12, 11)]
    assert len(set(keys)) == len(keys)
    assert all(0 <= key < 2**128 for key in keys)
    assert max(key.bit_length() for key in keys) == 128, "the key is narrower than it says"


@given(KEYS)
def test_one_key_always_gives_the_same_draw(key: tuple[int, str, int, int]) -> None:
    first, again = draw(*key), draw(*key)
    assert torch.equal(first, again)
    assert first.dtype == torch.float32
    assert np.array_equal(numpy_generator(*key).random(4), numpy_generator(*key).random(4))
    assert 0 <= torch_seed(*key) < 2**63
    torch.Generator().manual_seed(torch_seed(*key))


def test_a_shorter_draw_is_the_start_of_a_longer_one() -> None:
    assert torch.equal(draw(1, "p", 2, 3, size=10), draw(1, "p", 2, 3, size=100)[:10])


def test_keys_are_stable_across_versions() -> None:
    """Recorded votes are reproducible only while these hold."""
    assert derive_key(0, "estimation") == 0x939B1F02290492084F3DE4D11CB17AA4
    assert derive_key(-1, "estimation", 7, 3) == 0x466DF3F7D8CE2AADD89EE557F522049B
    expected = torch.tensor([0.4228418171405792, -1.0947743654251099, -0.0800376906991005])
    assert torch.equal(draw(0, "estimation", 0, 0, size=3), expected)


def test_the_global_generators_are_left_alone() -> None:
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state(legacy=False)
    draw(1, "p", 2, 3)
    noisy_copies(torch.zeros(1, 1, 2, 2), [derive_key(0, "p")], sigma=0.5)
    assert torch.equal(torch_state, torch.get_rng_state())
    after = np.random.get_state(legacy=False)
    assert isinstance(numpy_state, dict)
    assert isinstance(after, dict)
    assert np.array_equal(numpy_state["state"]["key"], after["state"]["key"])
    assert numpy_state["state"]["pos"] == after["state"]["pos"]


@pytest.mark.parametrize("seed", [0, 7, -3])
def test_torchs_cpu_generator_would_repeat_streams(seed: int) -> None:
    """torch's CPU generator keeps 32 bits of its seed, so that far seeds repeat its draws."""
    far = seed + 2**32
    near_draw = torch.randn(100, generator=torch.Generator().manual_seed(seed))
    far_draw = torch.randn(100, generator=torch.Generator().manual_seed(far))
    assert torch.equal(near_draw, far_draw), "then torch could be used, and seeding.py says so"
    assert not torch.equal(draw(seed, "p", 0, 0), draw(far, "p", 0, 0))
    assert not torch.equal(draw(0, "p", seed, 0), draw(0, "p", far, 0))
    assert not torch.equal(draw(0, "p", 0, seed), draw(0, "p", 0, far))


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 10**30, 1.5, None, "7"])
def test_numbers_that_do_not_fit_are_refused_in_one_line(value: int) -> None:
    for parts in ((value, 0, 0), (0, value, 0), (0, 0, value)):
        with pytest.raises(BadInput, match=r"-2\*\*63 to 2\*\*63 - 1") as caught:
            derive_key(parts[0], "p", parts[1], parts[2])
        assert str(value) in str(caught.value)
        assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("value", [-(2**63), -1, 2**63 - 1, np.int64(5)])
def test_every_number_of_64_bits_is_a_seed(value: int) -> None:
    assert torch.isfinite(draw(value, "p", 0, 0)).all()


@given(st.integers(0, 5000))
def test_blocks_cover_exactly_n_draws(n: int) -> None:
    blocks = list(noise_blocks(n))
    assert [block for block, _ in blocks] == list(range(len(blocks)))
    assert sum(used for _, used in blocks) == n
    assert all(used == NOISE_BLOCK for _, used in blocks[:-1])
    assert all(1 <= used <= NOISE_BLOCK for _, used in blocks)


def test_draws_are_standard_normal() -> None:
    sample = torch.cat([draw(11, "estimation", 5, block, 3000) for block in range(100)]).double()
    size = len(sample)
    assert abs(sample.mean().item()) < 5 / size**0.5
    assert abs(sample.var().item() - 1) < 5 * (2 / size) ** 0.5
    assert abs((sample**3).mean().item()) < 5 * (15 / size) ** 0.5
    assert abs((sample**4).mean().item() - 3) < 5 * (96 / size) ** 0.5
    assert stats.kstest(sample.numpy(), "norm").pvalue > 1e-4


def test_blocks_examples_and_purposes_are_uncorrelated() -> None:
    rows = [draw(3, "estimation", 0, block, 4000) for block in range(15)]
    rows += [draw(3, "estimation", example, 0, 4000) for example in range(1, 15)]
    rows += [draw(3, "selection", 0, 0, 4000), draw(4, "estimation", 0, 0, 4000)]
    correlations = torch.corrcoef(torch.stack(rows)).fill_diagonal_(0)
    assert correlations.abs().max().item() < 5 / 4000**0.5
    # The bounds rest on independence, not on zero correlation alone: sizes must not go together.
    sizes = torch.corrcoef(torch.stack(rows) ** 2).fill_diagonal_(0)
    assert sizes.abs().max().item() < 5 / 4000**0.5


def test_noisy_copies_add_sigma_times_the_block_to_the_image() -> None:
    image = torch.linspace(0, 1, 12).view(3, 2, 2)
    copies = noisy_copies(image[None], [derive_key(1, "p", 2, 3)], sigma=0.25)
    noise = standard_normal(
        (NOISE_BLOCK, 3, 2, 2), seed=1, purpose="p", example=2, block=3, device=CPU
    )
    assert torch.equal(copies, image + 0.25 * noise)
    assert copies.shape == (NOISE_BLOCK, 3, 2, 2)
