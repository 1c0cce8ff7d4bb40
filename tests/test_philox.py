"""Philox4x32-10: the published words, and normals that are normal."""

import numpy as np
import pytest
import torch
from scipy import stats

from sween.philox import Words, counters, normal_draws, philox, random_words, stream_words
from sween.seeding import NOISE_BLOCK, derive_key, noisy_copies, normals_of, philox_normals

CPU = torch.device("cpu")
ONES = 0xFFFFFFFF


def words(*values: int) -> tuple[torch.Tensor, ...]:
    return tuple(torch.tensor([value]) for value in values)


def one_word_at_a_time(counter: list[int], key: list[int]) -> list[int]:
    """The generator as printed by Salmon et al., in Python integers."""
    c, k = list(counter), list(key)
    for _ in range(10):
        p0, p1 = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & ONES, (p0 >> 32) ^ c[3] ^ k[1], p0 & ONES]
        k = [(k[0] + 0x9E3779B9) & ONES, (k[1] + 0xBB67AE85) & ONES]
    return c


@pytest.mark.parametrize(
    ("counter", "key", "answer"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_known_answers(
    counter: tuple[int, ...], key: tuple[int, ...], answer: tuple[int, ...]
) -> None:
    """The test vectors of Random123, the authors' library."""
    drawn: Words = philox(words(*counter), words(*key))  # type: ignore[arg-type]
    assert tuple(int(word) for word in drawn) == answer
    assert one_word_at_a_time(list(counter), list(key)) == list(answer)


def test_all_128_bits_of_a_stream_reach_the_generator() -> None:
    stream = derive_key(3, "p", 5, 7)
    k0, k1, c2, c3 = (int(word) for word in stream_words([stream], CPU)[0])
    assert k0 | k1 << 32 | c2 << 64 | c3 << 96 == stream
    drawn = random_words(stream_words([stream], CPU), torch.tensor([0, 9]))
    for position, step in enumerate((0, 9)):
        wanted = one_word_at_a_time([step, 0, c2, c3], [k0, k1])
        assert [int(word[0, position]) for word in drawn] == wanted
    for bit in (0, 40, 70, 127):
        other = random_words(stream_words([stream ^ 1 << bit], CPU), torch.tensor([0]))
        assert all(int(a[0, 0]) != int(b[0, 0]) for a, b in zip(drawn, other, strict=True))


def test_normals_are_normal_and_streams_are_independent() -> None:
    keys = [derive_key(0, "normality", example) for example in range(500)]
    draws = normal_draws(stream_words(keys, CPU), counters(4000, CPU)).double().numpy()
    assert draws.shape == (500, 4000)
    assert np.isfinite(draws).all()
    assert stats.kstest(draws.ravel(), "norm").pvalue > 1e-3
    assert stats.kstest(draws.mean(axis=1) * 4000**0.5, "norm").pvalue > 1e-3
    assert stats.kstest((draws**2).sum(axis=1), "chi2", args=(4000,)).pvalue > 1e-3
    # Neighbours in a stream, the halves of one Box-Muller pair, and the same place in two streams.
    for one, other in (
        (draws[:, :-1], draws[:, 1:]),
        (draws[:, :1000], draws[:, 1000:2000]),
        (draws[:-1], draws[1:]),
    ):
        assert abs(float(np.corrcoef(one.ravel(), other.ravel())[0, 1])) < 5 / one.size**0.5


def test_extreme_words_give_finite_normals(monkeypatch: pytest.MonkeyPatch) -> None:
    extremes = torch.tensor([[0, 0, ONES, ONES, 1, ONES - 1]])
    other = torch.tensor([[0, ONES, 0, ONES, ONES // 2, 1]])
    monkeypatch.setattr("sween.philox.random_words", lambda *_: (extremes, other, other, extremes))
    draws = normal_draws(torch.zeros(1, 4, dtype=torch.long), counters(24, CPU))
    assert torch.isfinite(draws).all()
    assert 6.7 < float(draws.abs().max()) < 6.8


def test_draws_do_not_depend_on_their_number_or_on_other_streams() -> None:
    keys = [derive_key(0, "p", example) for example in range(3)]
    together = philox_normals(keys, (5, 2), CPU)
    assert torch.equal(together[1], philox_normals(keys[1:2], (5, 2), CPU)[0])
    assert together.shape == (3, 5, 2)


def test_a_block_of_noise_may_come_from_either_generator() -> None:
    images = torch.rand(2, 3, 4, 4)
    keys = [derive_key(0, "p", example) for example in range(2)]
    for normals in (normals_of, philox_normals):
        copies = noisy_copies(images, keys, sigma=0.5, normals=normals)
        noise = normals(keys, (NOISE_BLOCK, 3, 4, 4), CPU)
        assert torch.equal(copies[NOISE_BLOCK:], images[1] + 0.5 * noise[1])
