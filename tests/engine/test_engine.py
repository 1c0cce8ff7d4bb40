"""The vote engine: counts independent of the batch, constant memory, fresh noise."""

from typing import Any

import pytest
import torch
from torch import nn

from sween.engine import VoteRequest
from sween.engine.engine import VoteEngine
from sween.engine.voters import Ballot
from sween.ensemble import ExitPolicy, WeightedEnsemble
from sween.errors import BadInput, ContractError, PreparationWarning
from sween.interleave import Steps
from sween.models import create_model
from sween.philox import normal_draws
from sween.sampling import CertifySettings
from sween.seeding import NOISE_BLOCK
from sween.smoothing import SmoothedClassifier
from tests.smoothing.small import PROBED, SETTINGS, SHAPE
from tests.smoothing.small import counts as _counts
from tests.smoothing.small import ensemble as _ensemble
from tests.smoothing.small import images as _images
from tests.smoothing.small import members as _members


@pytest.mark.parametrize("exit_name", ["none", "paper", "exact"])
def test_counts_do_not_depend_on_the_batch_or_the_order(exit_name: str) -> None:
    images = _images()
    policy = ExitPolicy(exit_name, threshold=0.6)
    results = []
    for batch_size in (7, 100, 1000, 5000):  # 5000 counts all images together
        smoothed = SmoothedClassifier(
            _ensemble(), sigma=0.5, num_classes=10, exit=policy, batch_size=batch_size
        )
        together = smoothed.certify(images, settings=SETTINGS, indices=[4, 9, 2])
        results.append(_counts(together))
        alone = [
            smoothed.certify(images[i : i + 1], settings=SETTINGS, indices=[key])[0]
            for i, key in enumerate((4, 9, 2))
        ]
        results.append(_counts(alone))
        backwards = smoothed.certify(images.flip(0), settings=SETTINGS, indices=[2, 9, 4])
        results.append(_counts(backwards)[::-1])
    assert all(result == results[0] for result in results)
    counts = results[0][0][1]
    assert sum(counts) == SETTINGS.n
    assert max(counts) < SETTINGS.n  # the case is not trivial


@pytest.mark.parametrize("exit_name", ["none", "paper", "exact"])
def test_counts_do_not_depend_on_member_votes(exit_name: str) -> None:
    images, policy = _images(), ExitPolicy(exit_name, threshold=0.6)
    alone = SmoothedClassifier(_ensemble(), sigma=0.5, num_classes=10, exit=policy)
    panel = SmoothedClassifier(
        _ensemble(), sigma=0.5, num_classes=10, exit=policy, member_names=["a", "b", "c"]
    )
    groups = panel.certify_voters(images, SETTINGS)
    assert list(groups[0]) == ["a", "b", "c", "model"]
    assert _counts([group["model"] for group in groups]) == _counts(
        alone.certify(images, settings=SETTINGS)
    )
    for name, member in zip("abc", _members(), strict=True):
        lone = SmoothedClassifier(member, sigma=0.5, num_classes=10)
        own = lone.certify(images, settings=SETTINGS)
        assert [group[name].estimation_counts for group in groups] == [
            row.estimation_counts for row in own
        ]


@pytest.mark.parametrize("exit_name", ["none", "paper", "exact"])
def test_other_weightings_vote_as_they_would_alone(exit_name: str) -> None:
    """One pass over the noise counts every candidate and every weighting."""
    images, policy = _images(), ExitPolicy(exit_name, threshold=0.6)
    others = {"even": [1 / 3] * 3, "first": [1.0, 0.0, 0.0]}
    panel = SmoothedClassifier(
        _ensemble(),
        sigma=0.5,
        num_classes=10,
        exit=policy,
        member_names=["a", "b", "c"],
        weightings=others,
    )
    groups = panel.certify_voters(images, SETTINGS)
    assert list(groups[0]) == ["a", "b", "c", "even", "first", "model"]
    assert [row.exit for row in groups[0].values()] == ["none"] * 3 + [policy.describe()] * 3
    for name, weights in (others | {"model": [0.2, 0.5, 0.3]}).items():
        ensemble = WeightedEnsemble(_members(), weights)
        alone = SmoothedClassifier(ensemble, sigma=0.5, num_classes=10, exit=policy)
        assert _counts([group[name] for group in groups]) == _counts(
            alone.certify(images, settings=SETTINGS)
        )
    assert [row["a"].estimation_counts for row in groups] == [
        row["first"].estimation_counts for row in groups
    ]


def test_other_exits_vote_as_they_would_alone() -> None:
    images = _images()
    exits = [ExitPolicy("exact"), ExitPolicy("paper", threshold=0.6)]
    panel = SmoothedClassifier(_ensemble(), sigma=0.5, num_classes=10, other_exits=exits)
    groups = panel.certify_voters(images, SETTINGS)
    assert list(groups[0]) == ["model+exact", "model+paper", "model"]
    assert [row.exit for row in groups[0].values()] == [
        "exact",
        "paper(threshold=0.6,alpha=0.05)",
        "none",
    ]
    assert not panel.engine._voters.compacts
    for name, policy in zip(groups[0], [*exits, ExitPolicy()], strict=True):
        alone = SmoothedClassifier(_ensemble(), sigma=0.5, num_classes=10, exit=policy)
        rows = alone.certify(images, settings=SETTINGS)
        own = [group[name] for group in groups]
        assert _counts(own) == _counts(rows)
        assert [row.member_evaluations for row in own] == [row.member_evaluations for row in rows]
    with pytest.raises(BadInput, match=r"distinct names, got model\+exact, model\+exact"):
        SmoothedClassifier(_ensemble(), sigma=0.5, num_classes=10, other_exits=[exits[0], exits[0]])


def test_more_votes_extend_fewer_votes() -> None:
    """Counts of disjoint blocks add: the first 300 votes are the same in 300 and in 750."""
    smoothed = SmoothedClassifier(_ensemble(), sigma=0.5, num_classes=10)
    engine, images = smoothed.engine, _images(1)
    engine.prepare(images[0])
    few = engine.count_one(VoteRequest(images, [0], "estimation", [300]), seed=0).counts
    many = engine.count_one(VoteRequest(images, [0], "estimation", [750]), seed=0).counts
    rest = engine.count_one(VoteRequest(images, [0], "estimation", [450], [3]), seed=0)
    assert torch.equal(few + rest.counts, many)
    assert int(many.sum()) == 750


class _Recorder(nn.Module):
    """Remembers what it was shown."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(x.clone())
        return torch.stack([x.flatten(1).sum(1), torch.zeros(len(x))], dim=1)


def test_forward_passes_have_one_shape_and_memory_is_constant_in_n(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The noisy copies of an image are never all in memory."""
    recorder = _Recorder()
    smoothed = SmoothedClassifier(
        recorder, sigma=0.5, num_classes=2, batch_size=200, forward_rows=NOISE_BLOCK
    )
    held: list[int] = []
    vote = smoothed.engine._voters.vote

    def watch(noisy: torch.Tensor) -> Steps[Ballot]:
        held.append(len(noisy))
        return vote(noisy)

    monkeypatch.setattr(smoothed.engine._voters, "vote", watch)
    smoothed.certify(_images(), settings=CertifySettings(n0=100, n=5_050))
    assert {tuple(batch.shape) for batch in recorder.seen} == {(NOISE_BLOCK, *SHAPE)}
    assert max(held) == 200
    assert sum(held) >= 3 * 5_150


def test_a_smaller_forward_shape_is_padded() -> None:
    recorder = _Recorder()
    smoothed = SmoothedClassifier(recorder, sigma=0.5, num_classes=2, forward_rows=64)
    (row,) = smoothed.certify(_images(1), settings=SETTINGS)
    assert {len(batch) for batch in recorder.seen} == {64}
    assert sum(row.estimation_counts) == 750
    assert row.forward_rows == 64


@pytest.mark.parametrize(
    "options",
    [
        {"n": 400},
        {"n": 2_000, "sampling": "decide", "radii": (1.4,)},
        {"n": 2_000, "sampling": "tolerance", "tolerance": 0.05},
    ],
    ids=["fixed", "decide", "tolerance"],
)
def test_selection_and_estimation_never_share_noise(options: dict[str, Any]) -> None:
    """No noisy image is used for both, nor twice for either."""
    recorder = _Recorder()
    smoothed = SmoothedClassifier(recorder, sigma=0.5, num_classes=2, forward_rows=NOISE_BLOCK)
    (row,) = smoothed.certify(_images(1), settings=CertifySettings(n0=200, **options))
    rows = torch.cat(recorder.seen[PROBED:]).flatten(1)
    assert len(rows) == row.samples >= 500  # more than one look
    assert len(torch.unique(rows, dim=0)) == row.samples


def test_soft_votes_never_use_the_pilot_in_the_bound() -> None:
    """The pilot's scores are collected once the class is known; the bound uses fresh ones."""
    recorder = _Recorder()
    ensemble = WeightedEnsemble([recorder])
    smoothed = SmoothedClassifier(ensemble, sigma=0.5, num_classes=2, forward_rows=NOISE_BLOCK)
    (row,) = smoothed.certify(_images(1), settings=CertifySettings(n0=200, n=400, votes="soft"))
    rows = torch.cat(recorder.seen[PROBED:]).flatten(1)
    pilot, again, fresh = torch.split(rows, [200, 200, 400])
    assert torch.equal(pilot, again)
    assert len(torch.unique(torch.cat([pilot, fresh]), dim=0)) == row.samples == 600


def test_a_budget_is_the_number_of_evaluations() -> None:
    """The pilots that plan the budget also select the class: no forward pass is repeated."""
    recorder = _Recorder()
    smoothed = SmoothedClassifier(recorder, sigma=0.5, num_classes=2, forward_rows=NOISE_BLOCK)
    rows = smoothed.certify(_images(3), n=4_000, n0=200, sampling="budget", budget=6_000)
    seen = torch.cat(recorder.seen[PROBED:]).flatten(1)
    assert len(seen) == sum(row.samples for row in rows) <= 6_000
    assert len(torch.unique(seen, dim=0)) == len(seen)


def test_noise_has_the_right_size_in_pixel_units() -> None:
    """The noise is added to pixels in [0,1], before the model's own normalisation."""
    recorder = _Recorder()
    image = _images(1)
    smoothed = SmoothedClassifier(recorder, sigma=0.25, num_classes=2, forward_rows=NOISE_BLOCK)
    smoothed.certify(image, settings=CertifySettings(n0=100, n=2_000))
    noise = torch.cat(recorder.seen[PROBED:]) - image
    assert abs(float(noise.mean())) < 0.01
    assert float(noise.std()) == pytest.approx(0.25, rel=0.01)


def test_one_image_gives_one_result_and_a_batch_a_list() -> None:
    smoothed = SmoothedClassifier(_ensemble(), sigma=0.5, num_classes=10)
    image = _images(1)[0]
    single = smoothed.certify_one(image, n=200, seed=0, indices=0)
    batch = smoothed.certify(image[None], n=200, seed=0, indices=[0])
    assert batch[0].estimation_counts == single.estimation_counts
    (answer,) = smoothed.predict(image)
    assert sum(answer.counts) == sum(smoothed.predict_one(image).counts) == 100
    with pytest.raises(BadInput, match="a batch of 2"):
        smoothed.certify_one(_images(2), n=200)


def test_a_tie_of_logits_votes_for_the_lowest_class() -> None:
    """So that the prediction depends on the votes alone."""

    class Constant(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tensor([0.0, 1.0, 1.0]).expand(len(x), 3)

    smoothed = SmoothedClassifier(Constant(), sigma=0.5, num_classes=3)
    (row,) = smoothed.certify(_images(1), settings=CertifySettings(n=200))
    assert row.estimation_counts == (0, 200, 0)
    assert row.prediction == 1


class _MixesItsBatch(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.flatten(1)[:, :3]
        if self.how == "mean":
            return flat - flat.mean(0)
        if self.how == "range":
            return (flat - x.min()) / (x.max() - x.min())
        if self.how == "tiny":
            return 1e-6 * flat * x.mean()
        return torch.cat([flat[1:], flat[:1]])  # the answer of the next row


@pytest.mark.parametrize("how", ["mean", "range", "tiny", "next"])
def test_a_module_that_mixes_its_batch_is_refused(how: str) -> None:
    """Such a module is not a function of one image."""
    model = _MixesItsBatch(how)
    with pytest.raises(ContractError, match="batch"):
        SmoothedClassifier(model, sigma=0.5, num_classes=3).certify(_images(1)[0], n=200)
    ensemble = WeightedEnsemble([model])
    with pytest.raises(ContractError, match="batch"):
        SmoothedClassifier(ensemble, sigma=0.5, num_classes=3).predict(_images(1)[0])


def test_a_model_is_evaluated_in_evaluation_mode_and_restored() -> None:
    """Training between two certificates must not switch batch norm to batch statistics."""
    model = create_model("digits-conv", num_classes=10, image_shape=SHAPE).eval()
    norms = [part for part in model.modules() if isinstance(part, nn.BatchNorm2d)]
    smoothed = SmoothedClassifier(model, sigma=0.5, num_classes=10)
    first = smoothed.certify(_images(1), settings=CertifySettings(n=200), indices=[0])
    model.train()
    norms[0].eval()
    second = smoothed.certify(_images(1), settings=CertifySettings(n=200), indices=[0])
    assert first[0].estimation_counts == second[0].estimation_counts
    assert model.training
    assert [norm.training for norm in norms] == [False, True, True]


@pytest.mark.parametrize("wrong", [float("inf"), float("-inf")])
@pytest.mark.parametrize("ensembled", [False, True])
def test_an_infinite_answer_is_not_counted(wrong: float, ensembled: bool) -> None:
    """argmax, or softmax for -inf, would turn it into a vote; here for one copy in 700."""

    class Overflows(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            first = torch.where(x[:, 0, 0, 0] > 1.5, wrong, 1.0)
            return torch.stack([first, torch.zeros_like(first)], dim=1)

    model = WeightedEnsemble([Overflows()]) if ensembled else Overflows()
    smoothed = SmoothedClassifier(model, sigma=0.5, num_classes=2)
    for ask in (smoothed.certify, smoothed.predict):
        with pytest.raises(ContractError, match="finite numbers for every noisy image"):
            ask(torch.zeros(*SHAPE), n=5_000)


def test_a_nan_answer_is_not_counted() -> None:
    class NotANumber(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.full((len(x), 3), float("nan"))

    with pytest.raises(ContractError, match="finite"):
        SmoothedClassifier(NotANumber(), sigma=0.5, num_classes=3).predict(_images(1)[0])


def test_exits_need_an_ensemble() -> None:
    with pytest.raises(BadInput, match="WeightedEnsemble"):
        SmoothedClassifier(_members()[0], sigma=0.5, num_classes=10, exit="exact")


class _Standardised(nn.Module):
    """Scales each image by its own spread: NaN for an all-zero image, as used for padding."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.flatten(1)
        score = (flat[:, :32].sum(1) - flat[:, 32:].sum(1)) / flat.std(1)
        return torch.stack([score, -score], dim=1)


def test_non_finite_outputs_for_padding_are_ignored() -> None:
    smoothed = SmoothedClassifier(_Standardised(), sigma=0.5, num_classes=2, forward_rows=64)
    (row,) = smoothed.certify(_images(1), settings=SETTINGS)
    assert sum(row.estimation_counts) == SETTINGS.n


def test_a_replaced_member_votes() -> None:
    """The voters follow the ensemble, not the list it was built from."""
    ensemble, images = _ensemble(), _images(1)
    smoothed = SmoothedClassifier(ensemble, sigma=0.5, num_classes=10)
    before = smoothed.certify(images, settings=SETTINGS, indices=[0])
    ensemble.members[1] = create_model("digits-conv", num_classes=10, image_shape=SHAPE, seed=9)
    after = smoothed.certify(images, settings=SETTINGS, indices=[0])
    fresh = SmoothedClassifier(ensemble, sigma=0.5, num_classes=10)
    assert _counts(after) == _counts(fresh.certify(images, settings=SETTINGS))
    assert _counts(after) != _counts(before)


def test_wrongly_compiled_noise_falls_back_to_plain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a CPU the compiled noise is that of a GPU, which differs: it must not be used."""
    images, smoothed = _images(1), SmoothedClassifier(_ensemble(), sigma=0.5, num_classes=10)
    wanted = _counts(smoothed.certify(images, settings=SETTINGS))
    monkeypatch.setattr(VoteEngine, "compiled", property(lambda _: True))
    monkeypatch.setattr("sween.engine.noise._compiled_draws", lambda: normal_draws)
    other = SmoothedClassifier(_ensemble(), sigma=0.5, num_classes=10)
    with pytest.warns(PreparationWarning, match=r"noise cannot be compiled, .* apart"):
        assert _counts(other.certify(images, settings=SETTINGS)) == wanted
    again = other.certify(images, settings=SETTINGS, indices=[0])  # one warning is enough
    assert _counts(again) == wanted
