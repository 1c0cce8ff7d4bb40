"""The surrogate, the attacks on it, and what the judge makes of their images."""

import pytest
import torch
from torch import nn

from sween.attack import Judge, SmoothedLogits, autoattack, ddn, pgd
from sween.attack.geometry import inside, norms
from sween.attack.pgd import margins
from sween.attack.scoring import Scored, worst
from sween.ensemble import WeightedEnsemble
from sween.records import ABSTAIN
from sween.runs.attack_settings import TRIES
from sween.seeding import standard_normal
from sween.smoothing import Prediction
from tests.attack.linear import SIGMA, Linear, dataset, loaded, smoothed
from tests.smoothing.small import SHAPE, ensemble, images


def _surrogate(model: nn.Module, **options: object) -> SmoothedLogits:
    settings = {"sigma": 0.5, "samples": 16, "seed": 0, **options}
    return SmoothedLogits(model.eval(), **settings)  # type: ignore[arg-type]


def test_the_surrogate_is_the_log_of_the_mean_probability_over_keyed_noise() -> None:
    model, batch = ensemble().eval(), images(2)
    noise = standard_normal(
        (16, *SHAPE), seed=3, purpose="attack", example=5, block=0, device=torch.device("cpu")
    )
    wanted = torch.stack([model(batch + 0.5 * one) for one in noise]).mean(dim=0).log()
    surrogate = _surrogate(model, seed=3, unit=5)
    assert torch.allclose(surrogate(batch), wanted, atol=1e-5)
    assert not torch.allclose(surrogate(batch), wanted, atol=1e-5)  # fresh noise
    fixed = _surrogate(model, seed=3, unit=5, fresh=False)
    assert torch.equal(fixed(batch), fixed(batch))
    lone = _surrogate(model.members[0], seed=3, unit=5)  # logits, which are made probabilities
    own = torch.stack([torch.softmax(model.members[0](batch + 0.5 * one), 1) for one in noise])
    assert torch.allclose(lone(batch), own.mean(dim=0).log(), atol=1e-5)


@pytest.mark.parametrize("rows", [1, 7, 4096])
def test_its_gradient_does_not_depend_on_the_parts(rows: int) -> None:
    """Against automatic differentiation through all draws at once."""
    model, batch = ensemble().eval(), images(3).requires_grad_()
    noise = standard_normal(
        (16, *SHAPE), seed=0, purpose="attack", example=0, block=0, device=torch.device("cpu")
    )
    plain = torch.stack([model(batch + 0.5 * one) for one in noise]).mean(dim=0).log()[:, 2].sum()
    (wanted,) = torch.autograd.grad(plain, batch)
    (got,) = torch.autograd.grad(_surrogate(model, rows=rows)(batch)[:, 2].sum(), batch)
    assert torch.allclose(got, wanted, rtol=1e-4, atol=1e-6)


def test_the_surrogate_does_not_touch_the_global_generators() -> None:
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    surrogate, batch = _surrogate(ensemble(), fresh=False), images(2)
    labels = surrogate(batch).argmax(dim=1)
    autoattack(surrogate, batch, labels, eps=0.1, version="rand", seed=1)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_margins_are_leads_over_the_best_other_class() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0], [5.0, 0.0, 4.0]])
    assert margins(logits, torch.tensor([1, 1])).tolist() == [1.0, -5.0]


def test_points_are_moved_into_the_ball_and_the_box() -> None:
    start = torch.rand(20, 1, 3, 3, generator=torch.Generator().manual_seed(0))
    far = start + 3 * torch.randn(start.shape, generator=torch.Generator().manual_seed(1))
    moved = inside(start, far, 0.3)
    assert float(norms(moved - start).max()) <= 0.3
    assert float(norms(moved - start).min()) > 0.29
    assert float(moved.min()) >= 0
    assert float(moved.max()) <= 1
    for eps in (1e-4, 0.01, 0.3):  # also where rounding is as large as the slack
        large = torch.rand(8, 3, 64, 64, generator=torch.Generator().manual_seed(2))
        pushed = inside(large, large + torch.randn_like(large), eps)
        assert float(norms(pushed.double() - large.double()).max()) <= eps
        assert float(norms(pushed.double() - large.double()).min()) > 0.9 * eps
    near = (start + 0.001).clamp(0, 1)
    assert torch.equal(inside(start, near, 0.3), near)


def test_attacks_lead_away_from_the_label_inside_their_ball() -> None:
    batch = images(4)
    model = WeightedEnsemble([ensemble().members[0]])
    labels = _surrogate(model, samples=64)(batch).argmax(dim=1)
    by_pgd = pgd(_surrogate(model, samples=64), batch, labels, eps=0.5, steps=20)
    by_autoattack = autoattack(
        _surrogate(model, samples=16), batch, labels, eps=0.5, version="rand", seed=0
    )
    for attacked in (by_pgd, by_autoattack):
        assert float(norms(attacked - batch).max()) <= 0.5 * (1 + 1e-5)
        judge = _surrogate(model, samples=2000, seed=9)
        before, after = (margins(judge(each).detach(), labels) for each in (batch, attacked))
        assert float((after - before).mean()) < 0


def test_ddn_and_the_judge_find_the_border_of_a_linear_classifier() -> None:
    """Within 5% of the true distance, scored with n = 100,000, for 95% of the images."""
    model = Linear(0)
    data, classifier = dataset(model, 40, seed=0), smoothed(loaded(model))
    positions = list(range(40))
    batch, labels = data.test.images(positions), data.test.labels
    surrogate = SmoothedLogits(classifier.engine.model, sigma=SIGMA, samples=128, seed=0)
    attacked = ddn(surrogate, batch, labels, start=SIGMA)
    judge = Judge(classifier, n=100_000, alpha=0.001, seed=0)
    rays = judge.along_rays(batch, attacked, labels, positions)
    assert all(len(points) == TRIES for points in rays)
    found = [worst(points, int(label)) for points, label in zip(rays, labels, strict=True)]
    true = model.signed_distance(batch).abs().tolist()
    assert min(true) > 0.49 * SIGMA
    near = [
        scored is not None
        and scored.answer.prediction == 1 - int(labels[i])
        and 1 < scored.distance / true[i] < 1.05
        for i, scored in enumerate(found)
    ]
    assert sum(near) >= 0.95 * len(near)


def test_the_worst_point_is_the_nearest_break_then_the_nearest_abstention() -> None:
    def scored(prediction: int, distance: float) -> Scored:
        counts = (10, 0) if prediction == 0 else (0, 10)
        answer = Prediction(
            index=0,
            prediction=prediction,
            counts=counts,
            p_value=0.01,
            n=10,
            alpha=0.001,
            sigma=0.5,
            seed=0,
        )
        return Scored(torch.zeros(1, 4, 4), distance, answer)

    robust, unsure, far_unsure = scored(0, 0.1), scored(ABSTAIN, 0.5), scored(ABSTAIN, 0.7)
    far, near = scored(1, 0.9), scored(1, 0.8)
    assert worst([robust, far, unsure, near], 0) is near
    assert worst([robust, far_unsure, unsure], 0) is unsure
    assert worst([robust], 0) is robust
    assert worst([], 0) is None


def test_answers_to_one_image_share_alpha_and_have_noise_of_their_own() -> None:
    classifier = smoothed(loaded(Linear(0)))
    judge = Judge(classifier, n=200, alpha=0.03, seed=0, share=3)
    grey = torch.full((1, 1, 4, 4), 0.5)
    answers = [judge.predict(grey, [7], attempt=attempt)[0] for attempt in range(3)]
    assert [answer.alpha for answer in answers] == [0.01] * 3
    assert len({answer.counts for answer in answers}) > 1
    assert judge.predict(grey, [7])[0].alpha == 0.03, "the clean prediction does not share it"
    assert judge.predict(grey[:0], []) == []
