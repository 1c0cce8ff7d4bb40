"""Early exits: exact always agrees with the full ensemble, paper is Algorithm 1 line by line."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import sween
from sween.data import load_dataset
from sween.engine.exits import ExitVotes, vote_with_exit
from sween.ensemble import ExitPolicy
from sween.ensemble.early_exit import EXACT_MARGIN, exact_margin, parse_exit, read_exit
from sween.errors import BadInput
from sween.interleave import Steps, done
from sween.seeding import numpy_generator
from tests.smoothing.small import ZOO, smoothed
from tests.stepping import finish


def _vote(probabilities: torch.Tensor, weights: list[float], policy: ExitPolicy) -> ExitVotes:
    """Votes for given member probabilities (K, B, M), evaluated on undecided rows only."""
    asked = 0

    def evaluate(member: int, undecided: torch.Tensor | None) -> Steps[torch.Tensor]:
        nonlocal asked
        own = probabilities[member]
        if undecided is None:
            undecided = torch.ones(len(own), dtype=torch.bool)
        asked += int(undecided.sum())
        # Rows that were not requested get nonsense, which must not be used.
        return done(torch.where(undecided[:, None], own, torch.full_like(own, 1e6).cumsum(dim=1)))

    votes = finish(vote_with_exit(evaluate, weights=weights, policy=policy))
    assert asked == int(votes.evaluations.sum())
    assert int(votes.evaluations.min()) >= policy.rule.fewest_members(weights)
    return votes


def _random_members(
    members: int, rows: int, classes: int, seed: int
) -> tuple[torch.Tensor, list[float]]:
    """Probabilities of members that agree in part, with low to high confidence, and weights."""
    generator = numpy_generator(seed, "member probabilities")
    shared = generator.normal(size=(1, rows, classes))
    own = generator.normal(size=(members, rows, classes))
    sharpness = generator.uniform(0.2, 6.0, size=(1, rows, 1))
    logits = torch.from_numpy(sharpness * (shared + 0.8 * own))
    weights = numpy_generator(seed, "weights").dirichlet([1.5] * members)
    return torch.softmax(logits, dim=2).float(), weights.tolist()


def algorithm_1(
    p: list[list[float]], w: list[float], alpha: float, threshold: float
) -> tuple[int, int]:
    """The paper's Algorithm 1 as printed, for one input: the label and how many were evaluated."""
    K, M = len(w), len(p[0])  # noqa: N806 the paper's names
    z = float(stats.norm.ppf(1 - alpha / 2))
    pi = sorted(range(K), key=lambda k: -w[k])
    i = 0
    while True:
        i += 1
        total = sum(w[pi[j]] for j in range(i))
        p_hat = [sum(w[pi[j]] * p[pi[j]][k] for j in range(i)) / total for k in range(M)]
        k_i = max(range(M), key=lambda k: p_hat[k])
        if i == 1 and p_hat[k_i] > threshold:
            break
        if 1 < i < K:
            root = math.sqrt(sum(w[pi[j]] ** 2 for j in range(i))) / total
            spread = sum(w[pi[j]] * (p[pi[j]][k_i] - p_hat[k_i]) ** 2 for j in range(i)) / total
            if p_hat[k_i] > 0.5 + z * root * math.sqrt(spread):
                break
        if i == K:
            break
    return k_i, i


@pytest.mark.parametrize("members", [1, 2, 3, 6])
@pytest.mark.parametrize(("threshold", "alpha"), [(0.999, 0.05), (0.7, 0.3)])
def test_paper_exit_is_algorithm_1(members: int, threshold: float, alpha: float) -> None:
    probabilities, weights = _random_members(members, 1500, 5, seed=members)
    votes = _vote(probabilities, weights, ExitPolicy("paper", threshold, alpha))
    for row in range(probabilities.shape[1]):
        label, evaluated = algorithm_1(
            probabilities[:, row].double().tolist(), weights, alpha, threshold
        )
        assert (int(votes.labels[row]), int(votes.evaluations[row])) == (label, evaluated)
    if members > 2:
        assert len(set(votes.evaluations.tolist())) >= members - 1  # its lines were all taken


@pytest.mark.parametrize(("threshold", "share"), [(0.9, 0.5), (0.99, 0.7), (0.6, 1.0)])
def test_mixed_exit_stops_at_confidence_or_at_a_share_of_the_rest(
    threshold: float, share: float
) -> None:
    probabilities, weights = _random_members(6, 1500, 5, seed=7)
    votes = _vote(probabilities, weights, ExitPolicy("mixed", threshold, share=share))
    order = sorted(range(6), key=lambda k: -weights[k])
    for row in range(probabilities.shape[1]):
        scores, held, evaluated = [0.0] * 5, 0.0, 0
        for member in order:
            evaluated += 1
            own = probabilities[member, row].tolist()
            scores = [s + weights[member] * p for s, p in zip(scores, own, strict=True)]
            held += weights[member]
            second, first = sorted(scores)[-2:]
            if first / held > threshold or first - second > share * (1 - held) + EXACT_MARGIN:
                break
        label = max(range(5), key=lambda k: scores[k])
        assert (int(votes.labels[row]), int(votes.evaluations[row])) == (label, evaluated)
    assert len(set(votes.evaluations.tolist())) >= 4


def test_mixed_exit_with_all_of_the_rest_errs_by_confidence_alone() -> None:
    probabilities, weights = _random_members(6, 20_000, 10, seed=8)
    full = _vote(probabilities, weights, ExitPolicy()).labels
    exact = _vote(probabilities, weights, ExitPolicy("exact"))
    wrong, evaluations = [], [int(exact.evaluations.sum())]
    for threshold in (0.9999999, 0.99, 0.9):
        votes = _vote(probabilities, weights, ExitPolicy("mixed", threshold, share=1.0))
        wrong.append(int((votes.labels != full).sum()))
        evaluations.append(int(votes.evaluations.sum()))
    assert wrong[0] == 0
    assert wrong == sorted(wrong)
    assert evaluations == sorted(evaluations, reverse=True)


@torch.inference_mode()
def test_exact_exit_agrees_with_the_full_ensemble_on_a_hundred_thousand_inputs() -> None:
    """Through real members and compacted forward passes, not only on given probabilities."""
    images = load_dataset("digits").test.images(range(100))
    full, exact = (
        smoothed(sween.load(ZOO), exit=exit_name, forward_rows=100).engine
        for exit_name in ("none", "exact")
    )
    generator, disagreements, evaluations = torch.Generator().manual_seed(0), 0, 0
    for engine in (full, exact):
        engine.prepare(images[0])
    for image in images:
        noisy = image + 0.5 * torch.randn(1000, 1, 8, 8, generator=generator)
        ballot, wanted = finish(exact._voters.vote(noisy)), finish(full._voters.vote(noisy))
        disagreements += int((ballot.labels != wanted.labels).sum())
        evaluations += int(ballot.evaluations.sum())
    assert disagreements == 0
    assert 100_000 < evaluations < 0.9 * 3 * 100_000  # and it does save work


@settings(max_examples=200)
@given(st.integers(1, 6), st.integers(2, 5), st.integers(1, 4), st.integers(0, 10**6))
def test_exact_exit_agrees_when_ties_are_common(
    members: int, classes: int, levels: int, seed: int
) -> None:
    """Coarse probabilities and weights make exact ties, which would reveal an unsafe margin."""
    generator = numpy_generator(seed, "ties")
    raw = generator.integers(0, levels + 1, size=(members, 50, classes)) + 1e-9
    probabilities = torch.from_numpy(raw / raw.sum(axis=2, keepdims=True)).float()
    coarse = generator.integers(1, 4, size=members).astype(float)
    weights = (coarse / coarse.sum()).tolist()
    full = _vote(probabilities, weights, ExitPolicy("none"))
    exact = _vote(probabilities, weights, ExitPolicy("exact"))
    assert torch.equal(full.labels, exact.labels)
    assert torch.all(full.evaluations == members)


def test_no_exit_equals_the_ensemble_bit_for_bit() -> None:
    probabilities, weights = _random_members(4, 400, 7, seed=1)
    expected = sum(w * p.double() for w, p in zip(weights, probabilities, strict=True))
    assert isinstance(expected, torch.Tensor)
    assert torch.equal(_vote(probabilities, weights, ExitPolicy()).labels, expected.argmax(1))


@pytest.mark.parametrize("name", ["paper", "exact", "mixed"])
def test_each_input_exits_separately(name: str) -> None:
    """An input exits at the same member alone, in a batch, and in any order."""
    probabilities, weights = _random_members(5, 300, 4, seed=3)
    policy = ExitPolicy(name, threshold=0.8)
    together = _vote(probabilities, weights, policy)
    order = torch.randperm(300, generator=torch.Generator().manual_seed(0))
    for rows in (order, *order[:50, None]):
        alone = _vote(probabilities[:, rows], weights, policy)
        assert torch.equal(alone.labels, together.labels[rows])
        assert torch.equal(alone.evaluations, together.evaluations[rows])


@pytest.mark.parametrize("members", [50, 200, 1000])
def test_exact_exit_of_hundreds_of_members_whose_sum_rounds_up(members: int) -> None:
    """Each of many small votes for the runner-up is rounded up by almost half a unit."""
    unit = 2.0**-25  # of float32 numbers in [1/4, 1/2)
    small = (2**22 // members // 64) * unit + unit / 2 + 2.0**-36
    left = members - 1
    rest = left * small
    first = 1 - rest
    rows, runner_up = [], 0.45
    for lead in range(0, 1200, 2):  # the leader's lead over all that is left, in units
        leader = runner_up + rest + lead * unit
        rows.append([runner_up / first, leader / first, 1 - (runner_up + leader) / first])
    large = torch.tensor(rows, dtype=torch.float64).float()
    assert float(large.min()) > 0
    against = torch.tensor([1.0, 0.0, 0.0]).expand(len(rows), 3)
    probabilities = torch.stack([large, *[against] * left])
    weights = [first, *[small] * left]
    full = _vote(probabilities, weights, ExitPolicy())
    exact = _vote(probabilities, weights, ExitPolicy("exact"))
    assert torch.equal(full.labels, exact.labels)
    assert bool((exact.evaluations < members).any()), "some exits were taken"
    overtaken = int((full.labels == 0).sum())
    assert overtaken * 2 * unit > (EXACT_MARGIN if members >= 200 else 0), (
        "rounding alone overtakes a lead that the smallest margin would take for safe"
    )


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([20, 200, 600]))
def test_exact_exit_of_near_ties_among_hundreds(seed: int, members: int) -> None:
    generator = numpy_generator(seed, "near ties")
    weights = [float(weight) for weight in generator.dirichlet([0.5] * members)]
    sides = torch.from_numpy(generator.integers(0, 2, (members, 300))).float()
    probabilities = torch.stack([sides, 1 - sides], dim=2)
    full = _vote(probabilities, weights, ExitPolicy())
    assert torch.equal(_vote(probabilities, weights, ExitPolicy("exact")).labels, full.labels)


def test_the_margin_of_a_few_members_is_the_smallest() -> None:
    assert {exact_margin(left) for left in range(1, 7)} == {EXACT_MARGIN} == {1e-6}
    assert all(exact_margin(left) >= (left + 10) * 2**-24 for left in range(1, 5_000))


def test_the_paper_exits_strictly_above_its_thresholds() -> None:
    """Line 9 of Algorithm 1 has >: at the threshold, or at 1/2, evaluation continues."""
    even = torch.tensor([[[0.5, 0.5]]]).repeat(3, 1, 1)
    assert int(_vote(even, [0.5, 0.25, 0.25], ExitPolicy("paper")).evaluations) == 3
    at = torch.tensor([[[0.75, 0.25]], [[0.25, 0.75]], [[0.25, 0.75]]])
    for threshold in (0.75, math.nextafter(0.75, 0)):
        votes = _vote(at, [0.5, 0.25, 0.25], ExitPolicy("paper", threshold))
        assert (int(votes.evaluations) == 1) == (threshold < 0.75)


def test_uneven_weights_make_exact_cheap() -> None:
    probabilities, _ = _random_members(6, 4000, 10, seed=5)
    even = _vote(probabilities, [1 / 6] * 6, ExitPolicy("exact"))
    uneven = _vote(probabilities, [0.35, 0.25, 0.15, 0.12, 0.07, 0.06], ExitPolicy("exact"))
    assert uneven.evaluations.double().mean() < even.evaluations.double().mean()


def test_policies_describe_themselves() -> None:
    assert ExitPolicy().describe() == "none"
    assert ExitPolicy("exact").describe() == "exact"
    assert ExitPolicy("paper").describe() == "paper(threshold=0.999,alpha=0.05)"
    assert ExitPolicy("mixed", 0.99).describe() == "mixed(threshold=0.99,share=0.7)"


def test_an_exit_is_read_with_or_without_parameters() -> None:
    assert read_exit("paper", threshold=0.9) == ExitPolicy("paper", 0.9)
    assert read_exit("mixed(share=.5, threshold=.9)") == ExitPolicy("mixed", 0.9, share=0.5)
    assert parse_exit("mixed(threshold=0.9,share=0.5)") == ExitPolicy("mixed", 0.9, share=0.5)
    for text in (
        "mixed(alpha=0.1)",
        "exact(share=1)",
        "paper(threshold)",
        "mixed(share=1",
        "none()",
    ):
        with pytest.raises(BadInput, match="exit"):
            read_exit(text)
    with pytest.raises(BadInput, match="as records write it"):
        parse_exit("mixed(threshold=.9,share=.5)")


def test_several_settings_of_one_exit_vote_under_their_own_names() -> None:
    others = [read_exit(f"mixed(share={share})") for share in (0.3, 0.9)]
    classifier = smoothed(exit="none", other_exits=[*others, ExitPolicy("exact")], name="E")
    names = ("E+mixed(threshold=0.999,share=0.3)", "E+mixed(threshold=0.999,share=0.9)", "E+exact")
    assert classifier.engine.voters == (*names, "E")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "exakt"}, "did you mean 'exact'"),
        ({"threshold": 0.0}, "exit threshold"),
        ({"threshold": 1.0}, "exit threshold"),
        ({"alpha": 1.5}, "exit alpha"),
        ({"share": 0.0}, "exit share"),
    ],
)
def test_impossible_policies_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        ExitPolicy(**{"name": "paper"} | options)
