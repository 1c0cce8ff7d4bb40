"""The vote engine: counts independent of the batch, constant memory, fresh noise."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from sween.engine import VoteRequest
from sween.engine.engine import VoteEngine
from sween.engine.voters import Ballot
from sween.ensemble import EXITS, ExitPolicy, WeightedEnsemble
from sween.errors import BadInput, ContractError, PreparationWarning
from sween.interleave import Steps
from sween.models import create_model
from sween.philox import normal_draws
from sween.sampling import CertifySettings
from sween.seeding import NOISE_BLOCK
from sween.smoothing import SmoothedClassifier
from tests.smoothing import small
from tests.smoothing.small import PROBED, SETTINGS, SHAPE, counts, images, members, smoothed


@pytest.mark.parametrize(
    ("exit_name", "noise"), [*((name, "float32") for name in EXITS), ("none", "exact")]
)
def test_counts_do_not_depend_on_the_batch_or_the_order(exit_name: str, noise: str) -> None:
    batch, keys, results = (images() * 255).round() / 255, [4, 9, 2], []
    policy = ExitPolicy(exit_name, threshold=0.6)
    for batch_size in (7, 100, 1000, 5000):  # 5000 counts all images together
        classifier = smoothed(exit=policy, noise=noise, batch_size=batch_size)
        results.append(counts(classifier.certify(batch, settings=SETTINGS, indices=keys)))
        alone = [
            classifier.certify(image[None], settings=SETTINGS, indices=[key])[0]
            for image, key in zip(batch, keys, strict=True)
        ]
        results.append(counts(alone))
        backwards = classifier.certify(batch.flip(0), settings=SETTINGS, indices=keys[::-1])
        results.append(counts(backwards)[::-1])
    assert all(result == results[0] for result in results)
    estimation = results[0][0][1]
    assert sum(estimation) == SETTINGS.n
    assert max(estimation) < SETTINGS.n  # the case is not trivial


@pytest.mark.parametrize("exit_name", EXITS)
def test_members_and_weightings_vote_in_one_pass_as_they_would_alone(exit_name: str) -> None:
    policy = ExitPolicy(exit_name, threshold=0.6)
    others = {"even": [1 / 3] * 3, "first": [1.0, 0.0, 0.0]}
    panel = smoothed(exit=policy, member_names=["a", "b", "c"], weightings=others)
    groups = panel.certify_voters(images(), SETTINGS)
    assert list(groups[0]) == ["a", "b", "c", "even", "first", "model"]
    assert [row.exit for row in groups[0].values()] == ["none"] * 3 + [policy.describe()] * 3
    alone = {name: smoothed(member) for name, member in zip("abc", members(), strict=True)}
    for name, weights in (others | {"model": [0.2, 0.5, 0.3]}).items():
        alone[name] = smoothed(WeightedEnsemble(members(), weights), exit=policy)
    for name, own in alone.items():
        wanted = counts(own.certify(images(), settings=SETTINGS))
        assert counts([group[name] for group in groups]) == wanted


def test_other_exits_vote_in_one_pass_as_they_would_alone() -> None:
    exits = [ExitPolicy("exact"), ExitPolicy("paper", threshold=0.6)]
    panel = smoothed(other_exits=exits)
    groups = panel.certify_voters(images(), SETTINGS)
    described = ["exact", "paper(threshold=0.6,alpha=0.05)", "none"]
    assert list(groups[0]) == ["model+exact", "model+paper", "model"]
    assert [row.exit for row in groups[0].values()] == described
    assert not panel.engine._voters.compacts
    for name, policy in zip(groups[0], [*exits, ExitPolicy()], strict=True):
        wanted = counts(smoothed(exit=policy).certify(images(), settings=SETTINGS))
        assert counts([group[name] for group in groups]) == wanted
    with pytest.raises(BadInput, match="a different exit each, got exact 2 times"):
        smoothed(other_exits=[exits[0], exits[0]])


def test_more_votes_extend_fewer_votes() -> None:
    """Counts of disjoint blocks add: the first 300 votes are the same in 300 and in 750."""
    engine, image = smoothed().engine, images(1)
    engine.prepare(image[0])
    few, many, rest = (
        engine.count_one(VoteRequest(image, [0], "estimation", [size], first), seed=0).counts
        for size, first in ((300, None), (750, None), (450, [3]))
    )
    assert torch.equal(few + rest, many)
    assert int(many.sum()) == 750


@pytest.mark.parametrize(
    "given", [{"examples": [0]}, {"sizes": [5]}, {"first": [1, 2, 3]}, {"scored": []}], ids=str
)
def test_requests_have_a_number_for_each_image(given: dict[str, Any]) -> None:
    """Missing ones would leave images without votes."""
    fields: dict[str, Any] = {"examples": [0, 1], "sizes": [5, 5]} | given
    with pytest.raises(BadInput, match=rf"{next(iter(given))}.*each of 2 images"):
        VoteRequest(images(2), purpose="estimation", **fields)


def _recorded(**options: Any) -> tuple[list[torch.Tensor], SmoothedClassifier]:
    """A classifier of two classes, and a list of the batches that it has evaluated."""
    model, seen = small.by_score(lambda x: x.sum(1)), list[torch.Tensor]()
    model.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].clone()))
    options = {"num_classes": 2, "forward_rows": NOISE_BLOCK} | options
    return seen, smoothed(WeightedEnsemble([model]), **options)


def test_forward_passes_have_one_shape_and_memory_is_constant_in_n(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The noisy copies of an image are never all in memory."""
    seen, classifier = _recorded(batch_size=200)
    held: list[int] = []
    vote = classifier.engine._voters.vote

    def watch(noisy: torch.Tensor) -> Steps[Ballot]:
        held.append(len(noisy))
        return vote(noisy)

    monkeypatch.setattr(classifier.engine._voters, "vote", watch)
    classifier.certify(images(), settings=CertifySettings(n0=100, n=5_050))
    assert {tuple(batch.shape) for batch in seen[PROBED:]} == {(NOISE_BLOCK, *SHAPE)}
    assert max(held) == 200
    assert sum(held) >= 3 * 5_150


@pytest.mark.parametrize(
    "options",
    [
        {"n": 400},
        {"n": 2_000, "sampling": "decide", "radii": (1.4,)},
        {"n": 2_000, "sampling": "tolerance", "tolerance": 0.05},
        {"n": 4_000, "sampling": "budget", "budget": 6_000},
    ],
    ids=["fixed", "decide", "tolerance", "budget"],
)
def test_selection_and_estimation_never_share_noise(options: dict[str, Any]) -> None:
    """No noisy image is used for both, nor twice for either."""
    seen, classifier = _recorded()
    rows = classifier.certify(images(), settings=CertifySettings(n0=200, **options))
    noisy = torch.cat(seen[PROBED:]).flatten(1)
    assert min(row.samples for row in rows) >= 500  # more than one look
    assert len(noisy) == sum(row.samples for row in rows) <= options.get("budget", 10**6)
    assert len(torch.unique(noisy, dim=0)) == len(noisy)


def test_soft_votes_never_use_the_pilot_in_the_bound() -> None:
    """The pilot's scores are collected once the class is known; the bound uses fresh ones."""
    seen, classifier = _recorded()
    (row,) = classifier.certify(images(1), settings=CertifySettings(n0=200, n=400, votes="soft"))
    pilot, again, fresh = torch.split(torch.cat(seen[PROBED:]).flatten(1), [200, 200, 400])
    assert torch.equal(pilot, again)
    assert len(torch.unique(torch.cat([pilot, fresh]), dim=0)) == row.samples == 600


def test_sigma_is_in_pixel_units() -> None:
    """The noise is added to pixels in [0,1], before the model's own normalisation."""
    seen, classifier = _recorded(sigma=0.25)
    classifier.certify(images(1), settings=CertifySettings(n0=100, n=2_000))
    noise = torch.cat(seen[PROBED:]) - images(1)
    assert abs(float(noise.mean())) < 0.01
    assert float(noise.std()) == pytest.approx(0.25, rel=0.01)


def test_one_image_gives_one_result_and_a_batch_a_list() -> None:
    classifier, image = smoothed(), images(1)[0]
    single = classifier.certify_one(image, n=200, seed=0, indices=0)
    batch = classifier.certify(image[None], n=200, seed=0, indices=[0])
    assert batch[0].estimation_counts == single.estimation_counts
    (answer,) = classifier.predict(image)
    assert sum(answer.counts) == sum(classifier.predict_one(image).counts) == 100
    with pytest.raises(BadInput, match="a batch of 2"):
        classifier.certify_one(images(2), n=200)


def test_a_tie_of_logits_votes_for_the_lowest_class() -> None:
    """So that the prediction depends on the votes alone."""
    classifier = smoothed(small.constant(0.0, 1.0, 1.0), num_classes=3)
    (row,) = classifier.certify(images(1), settings=CertifySettings(n=200))
    assert row.estimation_counts == (0, 200, 0)
    assert row.prediction == 1


MIXERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "mean": lambda x: x - x.mean(0),
    "range": lambda x: (x - x.min()) / (x.max() - x.min()),
    "tiny": lambda x: 1e-6 * x * x.mean(),
    "next row": lambda x: torch.cat([x[1:], x[:1]]),
}


@pytest.mark.parametrize("how", MIXERS)
def test_a_module_that_mixes_its_batch_is_refused(how: str) -> None:
    """Such a module is not a function of one image, in however small batches."""
    model = small.Computed(lambda x: MIXERS[how](x.flatten(1))[:, :3])
    for rows in (None, 4, 3, 2):
        with pytest.raises(ContractError, match="batch"):
            smoothed(model, num_classes=3, forward_rows=rows).certify(images(1)[0], n=200)
    with pytest.raises(ContractError, match="batch"):
        smoothed(WeightedEnsemble([model]), num_classes=3).predict(images(1)[0])


def test_a_model_is_evaluated_in_evaluation_mode_and_restored() -> None:
    """Training between two certificates must not switch batch norm to batch statistics."""
    model = create_model("digits-conv", num_classes=10, image_shape=SHAPE).eval()
    norms = [part for part in model.modules() if isinstance(part, nn.BatchNorm2d)]
    classifier = smoothed(model)
    first = classifier.certify(images(1), n=200, seed=0, indices=[0])
    model.train()
    norms[0].eval()
    second = classifier.certify(images(1), n=200, seed=0, indices=[0])
    assert first[0].estimation_counts == second[0].estimation_counts
    assert model.training
    assert [norm.training for norm in norms] == [False, True, True]


@pytest.mark.parametrize("wrong", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("ensembled", [False, True])
def test_a_non_finite_output_is_not_counted(wrong: float, ensembled: bool) -> None:
    """argmax, or softmax for -inf, would turn it into a vote; here for one copy in 700."""

    def rarely_wrong(x: torch.Tensor) -> torch.Tensor:
        first = torch.where(x[:, 0, 0, 0] > 1.5, wrong, 1.0)
        return torch.stack([first, torch.zeros_like(first)], dim=1)

    model = small.Computed(rarely_wrong)
    classifier = smoothed(WeightedEnsemble([model]) if ensembled else model, num_classes=2)
    for ask in (classifier.certify, classifier.predict):
        with pytest.raises(ContractError, match="finite numbers for every noisy image"):
            ask(torch.zeros(*SHAPE), n=5_000)


def test_a_smaller_forward_shape_is_padded_and_outputs_for_the_padding_are_ignored() -> None:
    """Here each image is scaled by its own spread: NaN for the all-zero images of the padding."""
    model, seen = small.by_score(lambda x: x.diff(dim=1).sum(1) / x.std(1)), list[int]()
    model.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    (row,) = smoothed(model, num_classes=2, forward_rows=64).certify(images(1), settings=SETTINGS)
    assert {*seen[PROBED:]} == {row.forward_rows} == {64}
    assert sum(row.estimation_counts) == SETTINGS.n


def test_wrongly_compiled_noise_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU the compiled noise is that of a GPU, which differs."""
    wanted = counts(smoothed().certify(images(1), settings=SETTINGS))
    monkeypatch.setattr(VoteEngine, "compiled", property(lambda _: True))
    monkeypatch.setattr("sween.engine.noise._compiled_draws", lambda: normal_draws)
    other = smoothed()
    with pytest.warns(PreparationWarning, match=r"noise cannot be compiled, .* apart"):
        assert counts(other.certify(images(1), settings=SETTINGS)) == wanted
    again = other.certify(images(1), settings=SETTINGS, indices=[0])  # one warning is enough
    assert counts(again) == wanted
