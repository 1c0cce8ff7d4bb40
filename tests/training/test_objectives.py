"""Training objectives against plain, slow transcriptions of their formulas, gradients included."""

import dataclasses
import math
from collections.abc import Callable

import pytest
import torch
from scipy import special

from sween.training.objectives import (
    OBJECTIVES,
    TAIL,
    Guide,
    ObjectiveOptions,
    catrs,
    consistency,
    gaussian,
    inverse_normal,
    macer,
    remember,
    temporal,
)

OPTIONS = ObjectiveOptions(sigma=0.5, regulariser=4.0)


def logits(copies: int, count: int = 12, classes: int = 5, scale: float = 0.3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(copies)
    shared = torch.randn(1, count, classes, generator=generator, dtype=torch.float64)
    own = torch.randn(copies, count, classes, generator=generator, dtype=torch.float64)
    return (scale * (shared + 0.7 * own)).requires_grad_()


def labels(count: int = 12, classes: int = 5) -> torch.Tensor:
    return torch.arange(count) % classes


def softmax(row: torch.Tensor, sharpness: float = 1.0) -> list[torch.Tensor]:
    terms = [torch.exp(sharpness * (value - row.max())) for value in row]
    total = sum(terms, torch.zeros((), dtype=row.dtype))
    return [term / total for term in terms]


def mean(rows: list[list[torch.Tensor]]) -> list[torch.Tensor]:
    zero = torch.zeros((), dtype=torch.float64)
    return [sum((row[k] for row in rows), zero) / len(rows) for k in range(len(rows[0]))]


def slow_gaussian(z: torch.Tensor, y: torch.Tensor, _: ObjectiveOptions) -> torch.Tensor:
    total = torch.zeros((), dtype=z.dtype)
    for copy in z:
        for row, label in zip(copy, y.tolist(), strict=True):
            total = total - torch.log(softmax(row)[label])
    return total / (z.shape[0] * z.shape[1])


def slow_macer(z: torch.Tensor, y: torch.Tensor, options: ObjectiveOptions) -> torch.Tensor:
    """Zhai et al. 2020, one image at a time."""
    total = torch.zeros((), dtype=z.dtype)
    for i, label in enumerate(y.tolist()):
        total = total - torch.log(mean([softmax(z[j, i]) for j in range(len(z))])[label])
        sharp = mean([softmax(z[j, i], options.sharpness) for j in range(len(z))])
        ranked = sorted(range(len(sharp)), key=lambda k: -sharp[k].item())
        if ranked[0] != label:
            continue
        difference = torch.special.ndtri(sharp[label]) - torch.special.ndtri(sharp[ranked[1]])
        if difference.item() <= options.margin:
            hinge = options.sigma / 2 * (options.margin - difference)
            total = total + options.regulariser * hinge
    return total / len(y)


def slow_consistency(z: torch.Tensor, y: torch.Tensor, options: ObjectiveOptions) -> torch.Tensor:
    """Jeong and Shin 2020, one image at a time."""
    total = torch.zeros((), dtype=z.dtype)
    zero = torch.zeros((), dtype=z.dtype)
    for i in range(len(y)):
        each = [softmax(z[j, i]) for j in range(len(z))]
        average = mean(each)
        for one in each:
            divergence = sum(
                (p * (torch.log(p) - torch.log(q)) for p, q in zip(average, one, strict=True)), zero
            )
            total = total + options.regulariser * divergence / len(each)
        total = total - options.entropy * sum((p * torch.log(p) for p in average), zero)
    return slow_gaussian(z, y, options) + total / len(y)


def slow_catrs(
    z: torch.Tensor, y: torch.Tensor, options: ObjectiveOptions, guide: Guide
) -> torch.Tensor:
    """Jeong, Kim and Shin 2023, one image at a time."""
    total, copies = torch.zeros((), dtype=z.dtype), len(z)
    for i, label in enumerate(y.tolist()):
        losses = [-torch.log(softmax(z[j, i])[label]) for j in range(copies)]
        share = sum(int(z[j, i].argmax()) == label for j in range(copies)) / copies
        drawn = sum(float(guide.uniforms[j, i]) < share for j in range(copies))
        accepted = max(drawn, 1)
        for loss in sorted(losses, key=lambda own: own.item())[:accepted]:
            total = total + loss / copies
        if accepted == copies:
            divergences = []
            for j in range(copies):
                divergence = torch.zeros((), dtype=z.dtype)
                for q, p in zip(guide.targets[i], softmax(guide.attacked[j, i]), strict=True):
                    if q > 0:
                        divergence = divergence + q * (torch.log(q) - torch.log(p))
                divergences.append(divergence)
            total = total + options.regulariser * max(divergences, key=lambda own: own.item())
    return total / len(y)


def slow_temporal(
    z: torch.Tensor, y: torch.Tensor, options: ObjectiveOptions, memory: torch.Tensor
) -> torch.Tensor:
    """Consistency with remembered probabilities, one image at a time."""
    total, zero = torch.zeros((), dtype=z.dtype), torch.zeros((), dtype=z.dtype)
    for i in range(len(y)):
        each = [softmax(z[j, i]) for j in range(len(z))]
        total = total - options.entropy * sum((p * torch.log(p) for p in mean(each)), zero)
        kept = memory[i].tolist()
        if sum(kept) == 0:
            continue
        kept = [own ** (1 / options.temperature) for own in kept]
        remembered = [own / sum(kept) for own in kept]
        for one in each:
            for q, p in zip(remembered, one, strict=True):
                if q > 0:
                    term = q * (math.log(q) - torch.log(p))
                    total = total + options.regulariser * term / len(each)
    return slow_gaussian(z, y, options) + total / len(y)


def remembering(loss: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """With a memory of which some rows are of images that were never seen, and some are young."""

    def of_logits(z: torch.Tensor, y: torch.Tensor, options: ObjectiveOptions) -> torch.Tensor:
        generator = torch.Generator().manual_seed(6)
        memory = torch.rand(z.shape[1:], generator=generator, dtype=z.dtype)
        memory = (
            memory
            / memory.sum(dim=1, keepdim=True)
            * torch.tensor([[0.1], [0.9]]).repeat(len(memory) // 2, 1)
        )
        memory[::3], memory[:, 1] = 0.0, 0.0
        return loss(z, y, options, memory)

    return of_logits


def sharpened(loss: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """With a memory, at a lower temperature."""
    plain = remembering(loss)
    return lambda z, y, options: plain(z, y, dataclasses.replace(options, temperature=0.7))


def guide(attacked: torch.Tensor) -> Guide:
    """Targets with zeros among them, and draws that accept all copies of some images."""
    generator = torch.Generator().manual_seed(5)
    copies, count, classes = attacked.shape
    targets = torch.rand(count, classes, generator=generator, dtype=attacked.dtype)
    targets[:, 1] = 0.0
    targets /= targets.sum(dim=1, keepdim=True)
    return Guide(attacked, targets, 0.6 * torch.rand(copies, count, generator=generator))


def guided(loss: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Of plain and attacked logits, one after the other."""

    def of_both(z: torch.Tensor, y: torch.Tensor, options: ObjectiveOptions) -> torch.Tensor:
        plain, attacked = z.chunk(2)
        return loss(plain, y, options, guide(attacked))

    return of_both


def averaged(loss: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The mean over the images, which is what training minimises."""

    def of_all(*given: object) -> torch.Tensor:
        each = loss(*given)
        assert each.ndim == 1
        return each.mean()

    return of_all


PAIRS: dict[str, tuple[Callable[..., torch.Tensor], Callable[..., torch.Tensor], int]] = {
    "gaussian": (averaged(gaussian), slow_gaussian, 2),
    "macer": (averaged(macer), slow_macer, 4),
    "consistency": (averaged(consistency), slow_consistency, 2),
    "temporal": (averaged(remembering(temporal)), remembering(slow_temporal), 2),
    "temporal, sharpened": (averaged(sharpened(temporal)), sharpened(slow_temporal), 2),
    "acr": (averaged(OBJECTIVES["acr"].loss), slow_gaussian, 4),
    "catrs": (averaged(guided(catrs)), guided(slow_catrs), 8),
}


def test_every_objective_has_a_transcription() -> None:
    assert PAIRS.keys() >= OBJECTIVES.keys()


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("scale", [0.05, 0.3, 1.0])
def test_values_and_gradients_match_the_transcription(name: str, scale: float) -> None:
    fast, slow, copies = PAIRS[name]
    z = logits(copies, scale=scale)
    ours, theirs = fast(z, labels(), OPTIONS), slow(z, labels(), OPTIONS)
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-10)
    (one,) = torch.autograd.grad(ours, z)
    (other,) = torch.autograd.grad(theirs, z)
    assert float(other.abs().max()) > 1e-4
    torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-12)


def test_macer_counts_correct_images_within_the_margin_only() -> None:
    """A wrong image, and one whose difference exceeds gamma, add nothing but cross-entropy."""
    wrong = torch.tensor([[[0.0, 1.0, 0.0]]] * 4, dtype=torch.float64)
    sure = torch.tensor([[[9.0, 0.0, 0.0]]] * 4, dtype=torch.float64)
    for z in (wrong, sure):
        z = z.requires_grad_()
        with_hinge = macer(z, torch.tensor([0]), OPTIONS)
        without = macer(z, torch.tensor([0]), ObjectiveOptions(sigma=0.5))
        assert with_hinge.item() == without.item()
    near = torch.tensor([[[0.01, 0.0, 0.0]]] * 4, dtype=torch.float64)
    plain = macer(near, torch.tensor([0]), ObjectiveOptions(sigma=0.5))
    assert macer(near, torch.tensor([0]), OPTIONS).item() > plain.item() + 1


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e2, 1e4, 1e30])
@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_nan_or_infinity_in_value_or_gradient(
    name: str, scale: float, dtype: torch.dtype
) -> None:
    """Trap 13: sharp softmaxes reach exactly 0 and 1, where the inverse normal is infinite."""
    fast, _, copies = PAIRS[name]
    z = (scale * logits(copies).detach()).to(dtype).requires_grad_()
    loss = fast(z, labels(), OPTIONS)
    (gradient,) = torch.autograd.grad(loss, z)
    assert torch.isfinite(loss)
    assert torch.isfinite(gradient).all()


def test_inverse_normal_is_scipys_inside_and_finite_at_the_ends() -> None:
    inside = torch.linspace(0.001, 0.999, 200, dtype=torch.float64)
    expected = torch.from_numpy(special.ndtri(inside.numpy()))
    torch.testing.assert_close(inverse_normal(inside), expected)
    for dtype in (torch.float32, torch.float64):
        ends = torch.tensor([0.0, TAIL / 10, 1.0 - TAIL / 10, 1.0], dtype=dtype).requires_grad_()
        values = inverse_normal(ends)
        (gradient,) = torch.autograd.grad(values.sum(), ends)
        assert torch.isfinite(values).all()
        assert torch.isfinite(gradient).all()
        assert values[0].item() < -5 < 5 < values[3].item()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_one_copy_is_cross_entropy_with_label_smoothing(smoothing: float) -> None:
    """Of macer without its hinge too: the mean softmax of one copy is that copy's."""
    z = logits(1)
    options = ObjectiveOptions(sigma=0.5, label_smoothing=smoothing)
    expected = torch.nn.functional.cross_entropy(z[0], labels(), label_smoothing=smoothing)
    for loss in (gaussian, macer):
        assert loss(z, labels(), options).mean().item() == pytest.approx(expected.item())
    assert OPTIONS.label_smoothing == 0
    flat = torch.zeros(3, 4, 7)
    assert gaussian(flat, labels(4), OPTIONS).mean().item() == pytest.approx(math.log(7))


@pytest.mark.parametrize("name", PAIRS)
def test_gradcheck(name: str) -> None:
    fast, _, copies = PAIRS[name]
    z = logits(copies, count=4, classes=3, scale=0.1)
    assert torch.autograd.gradcheck(lambda x: fast(x, labels(4, 3), OPTIONS), (z,))


def test_catrs_trains_on_the_easier_copies_of_an_image_it_is_unsure_of() -> None:
    """And on the teacher's probabilities where all copies are accepted, and only there."""
    z = torch.zeros(4, 2, 3, dtype=torch.float64)
    z[:, :, 0] = torch.tensor([3.0, 2.0, 1.0, -1.0])[:, None]  # three of four copies are correct
    z.requires_grad_()
    attacked = torch.zeros(4, 2, 3, dtype=torch.float64, requires_grad=True)
    targets = torch.tensor([[0.0, 1.0, 0.0]] * 2, dtype=torch.float64)
    # Draws below .75 are accepted: two of the first image's, all of the second's.
    uniforms = torch.tensor([[0.1, 0.1], [0.9, 0.2], [0.3, 0.3], [0.8, 0.7]])
    loss = catrs(z, torch.tensor([0, 0]), OPTIONS, Guide(attacked, targets, uniforms)).sum()
    own, other = torch.autograd.grad(loss, [z, attacked])
    assert [bool(row.any()) for row in own[:, 0]] == [True, True, False, False]
    assert all(row.any() for row in own[:, 1])
    assert not other[:, 0].any()
    assert other[:, 1].any()


def test_a_memory_is_the_mean_of_what_was_said_lately() -> None:
    looks = [logits(2, count=3).detach() + 0.5 * look for look in range(4)]
    memory = torch.zeros(3, 5, dtype=torch.float64)
    expected = torch.zeros(3, 5, dtype=torch.float64)
    for age, look in enumerate(reversed(looks)):
        expected += 0.1 * 0.9**age * torch.softmax(look, dim=2).mean(dim=0)
    for look in looks:
        memory = remember(memory, look)
    torch.testing.assert_close(memory, expected)
    torch.testing.assert_close(memory.sum(dim=1), torch.full((3,), 1 - 0.9**4).double())


@pytest.mark.parametrize("temperature", [0.02, 0.05])
def test_temporal_keeps_its_regulariser_at_low_temperatures(temperature: float) -> None:
    """Small probabilities to a high power are 0 in float32, which reads as never seen."""
    z, y = torch.randn(2, 4, 1000), torch.arange(4)
    memory = torch.full((4, 1000), 1e-4)
    memory[:, 0] = 2e-4
    cold = dataclasses.replace(OPTIONS, temperature=temperature)
    found, without = (temporal(z, y, cold, own) for own in (memory, torch.zeros(4, 1000)))
    towards_the_first = -torch.log_softmax(z, dim=2)[:, :, 0].mean(dim=0)
    gained = (found - without) / cold.regulariser
    torch.testing.assert_close(gained, towards_the_first, rtol=1e-2, atol=0.01)


def test_temporal_agrees_with_consistency_where_the_memory_is_the_mean_copy() -> None:
    z, y = logits(2), labels()
    seen = torch.softmax(z, dim=2).mean(dim=0).detach()
    torch.testing.assert_close(temporal(z, y, OPTIONS, 0.3 * seen), consistency(z, y, OPTIONS))
    unseen = torch.zeros_like(seen)
    without = dataclasses.replace(OPTIONS, regulariser=0.0)
    torch.testing.assert_close(temporal(z, y, OPTIONS, unseen), consistency(z, y, without))
