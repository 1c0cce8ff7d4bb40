"""One batch of images under attack."""

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import nn

from sween.attack.auto import autoattack
from sween.attack.ddn import ddn
from sween.attack.geometry import distances, inside
from sween.attack.gradients import PlainProbabilities, Probabilities, same_each_time
from sween.attack.outcome import AttackOutcome, encode_image, judge
from sween.attack.pgd import along, pgd
from sween.attack.scoring import TRIES, Judge, Scored, is_broken
from sween.attack.settings import AttackSettings
from sween.attack.surrogate import SmoothedLogits
from sween.data.dataset import Dataset
from sween.ensemble.loaded import LoadedEnsemble
from sween.errors import BadInput
from sween.models.device import evaluating
from sween.records import Certificate
from sween.smoothing import SmoothedClassifier
from sween.smoothing.settings import Prediction
from sween.smoothing.votes import is_out_of_memory

SURROGATE_ROWS = 4096
"""Noisy images in one pass of the attacker; halved where memory runs out."""

Found = list[tuple[Scored | None, int]]
"""What an attack came to at each radius, and how many attacked images were scored for it."""


@dataclasses.dataclass(frozen=True)
class Target:
    """Who is attacked.

    Attributes:
        loaded: the ensemble.
        classifier: the smoothed classifier made of it, which judges.
        probabilities: what the attacker follows the gradients of.
    """

    loaded: LoadedEnsemble
    classifier: SmoothedClassifier
    probabilities: Probabilities


def attack_unit(
    target: Target,
    dataset: Dataset,
    unit: Sequence[int],
    number: int,
    settings: AttackSettings,
    certificates: Mapping[int, Certificate],
) -> list[AttackOutcome]:
    """The outcomes of one batch, image by image and radius by radius.

    Radii go up; an image that is broken stays so at the larger ones and is not attacked again.

    Args:
        target: who is attacked.
        dataset: the images' own.
        unit: which test images.
        number: of the batch, which keys its noise.
        settings: of the attack.
        certificates: by index.
    """
    device = target.classifier.engine.device
    images = dataset.test.images(unit).to(device)
    labels = torch.tensor([int(dataset.test.labels[index]) for index in unit], device=device)
    known = [certificates.get(index) for index in unit]
    began, rows = time.perf_counter(), SURROGATE_ROWS
    while True:
        try:
            with gradients_of_images_alone(target.loaded):
                batch = _Unit(target, images, labels, unit, number, settings, rows)
                found = batch.run(known)
            break
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            if rows <= len(unit):
                raise BadInput(
                    "memory",
                    expected=f"room for the gradient of {len(unit)} images",
                    got=f"out of memory on {device}",
                    fix="use a smaller --batch-size",
                ) from None
            rows //= 2
            # Compiled passes have one size, which may be what was too much.
            target = dataclasses.replace(target, probabilities=PlainProbabilities(target.loaded))
            if device.type == "cuda":
                torch.cuda.empty_cache()
    seconds = (time.perf_counter() - began) / len(unit) / len(settings.eps)
    return [
        _outcome(
            index,
            int(label),
            eps,
            clean,
            answer,
            certificates.get(index),
            scored,
            tries,
            settings=settings,
            loaded=target.loaded,
            seconds=seconds,
        )
        for index, label, clean, answer, per_eps in zip(unit, labels, *found, strict=True)
        for eps, (scored, tries) in zip(settings.eps, per_eps, strict=True)
    ]


@contextlib.contextmanager
def gradients_of_images_alone(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, and no gradients of weights."""
    learning = [part for part in model.parameters() if part.requires_grad]
    with evaluating(model):
        model.requires_grad_(False)
        try:
            yield
        finally:
            for parameter in learning:
                parameter.requires_grad_(True)


class _Unit:
    """One batch of images under attack."""

    def __init__(
        self,
        target: Target,
        images: torch.Tensor,
        labels: torch.Tensor,
        indices: Sequence[int],
        number: int,
        settings: AttackSettings,
        rows: int,
    ) -> None:
        self.images, self.labels, self.indices = images, labels, indices
        self.settings = settings
        self.judge = Judge(
            target.classifier, n=settings.n, alpha=settings.alpha, seed=settings.seed
        )
        self.surrogate = SmoothedLogits(
            target.probabilities,
            sigma=target.loaded.sigma,
            samples=settings.samples,
            seed=settings.seed,
            unit=number,
            fresh=settings.attack != "standard",
            rows=rows,
        )

    def run(
        self, certificates: Sequence[Certificate | None]
    ) -> tuple[list[Prediction], list[int], list[Found]]:
        """The answers without an attack, and for each image and radius what the attack came to.

        A certificate's answer stands where it does not abstain: it has more votes.
        """
        clean = self.judge.answers(self.images, self.indices, attempt=-1)
        answers = [
            answer.prediction if known is None or known.abstained else known.prediction
            for answer, known in zip(clean, certificates, strict=True)
        ]
        right = [i for i, answer in enumerate(answers) if answer == int(self.labels[i])]
        found: list[Found] = [[] for _ in clean]
        if self.settings.attack == "ddn":
            self._nearest(right, found)
        else:
            self._in_balls(right, found)
        return clean, answers, found

    def _nearest(self, right: list[int], found: list[Found]) -> None:
        images, labels = self.images[right], self.labels[right]
        nearest, share = dict[int, Scored](), TRIES + len(self.settings.eps)
        if right:
            with same_each_time():
                attacked = ddn(
                    self.surrogate,
                    images,
                    labels,
                    steps=self.settings.steps,
                    start=self.surrogate.sigma,
                )
            indices = [self.indices[i] for i in right]
            best = self.judge.nearest(images, attacked, labels, indices, share=share)
            nearest = dict(zip(right, best, strict=True))
        for position, eps in enumerate(self.settings.eps):
            nearest |= self._further(nearest, eps, attempt=TRIES + position, share=share)
            for i, own in enumerate(found):
                scored = nearest.get(i)
                reached = scored is not None and scored.distance <= eps
                own.append((scored if reached else None, share if reached else 0))

    def _further(
        self, nearest: dict[int, Scored], eps: float, *, attempt: int, share: int
    ) -> dict[int, Scored]:
        """What breaks at the ball's border of those that came to an abstention inside it."""
        short = [
            i
            for i, scored in nearest.items()
            if 0 < scored.distance < eps and not is_broken(scored.answer, int(self.labels[i]))
        ]
        if not short:
            return {}
        images = self.images[short]
        reached = torch.stack([nearest[i].image for i in short])
        points = inside(images, along(images, reached, eps / distances(images, reached)), eps)
        indices = [self.indices[i] for i in short]
        scored = self.judge.score(images, points, indices, attempt=attempt, share=share)
        return {
            i: own
            for i, own in zip(short, scored, strict=True)
            if is_broken(own.answer, int(self.labels[i]))
        }

    def _in_balls(self, right: list[int], found: list[Found]) -> None:
        broken = dict[int, Scored]()
        for position, eps in enumerate(self.settings.eps):
            left = [i for i in right if i not in broken]
            scored = self._attack(left, eps, position) if left else {}
            broken |= {
                i: own for i, own in scored.items() if is_broken(own.answer, int(self.labels[i]))
            }
            for i, own in enumerate(found):
                result = broken.get(i) or scored.get(i)
                own.append((result, 0 if result is None else len(self.settings.eps)))

    def _attack(self, left: list[int], eps: float, position: int) -> dict[int, Scored]:
        images = self.images[left]
        with same_each_time():
            attacked = self._in_ball(images, self.labels[left], eps)
        scored = self.judge.score(
            images,
            inside(images, attacked, eps),
            [self.indices[i] for i in left],
            attempt=position,
            share=len(self.settings.eps),
        )
        return dict(zip(left, scored, strict=True))

    def _in_ball(self, images: torch.Tensor, labels: torch.Tensor, eps: float) -> torch.Tensor:
        settings = self.settings
        if settings.attack == "pgd":
            return pgd(self.surrogate, images, labels, eps=eps, steps=settings.steps)
        attacked = autoattack(
            self.surrogate, images, labels, eps=eps, version=settings.attack, seed=settings.seed
        )
        still = (distances(images, attacked) == 0).nonzero()[:, 0].tolist()
        if still:  # so that each image is attacked, and judged, at each radius
            attacked[still] = pgd(
                self.surrogate, images[still], labels[still], eps=eps, steps=settings.steps
            )
        return attacked


def _outcome(
    index: int,
    label: int,
    eps: float,
    clean: Prediction,
    clean_answer: int,
    certificate: Certificate | None,
    scored: Scored | None,
    tries: int,
    *,
    settings: AttackSettings,
    loaded: LoadedEnsemble,
    seconds: float,
) -> AttackOutcome:
    answer = clean if scored is None else scored.answer
    distance = 0.0 if scored is None else scored.distance
    certified = (
        certificate.radius if certificate is not None and certificate.prediction == label else None
    )
    outcome = judge(label, clean_answer, answer.prediction)
    alarm = outcome == "broken" and certified is not None and distance < certified
    image = None if scored is None else scored.image
    return AttackOutcome(
        index=index,
        label=label,
        attack=settings.attack,
        eps=eps,
        outcome=outcome,
        clean_prediction=clean_answer,
        prediction=answer.prediction,
        counts=tuple(answer.counts),
        distance=distance,
        n=settings.n,
        alpha=settings.alpha,
        tries=tries,
        judge_alpha=answer.alpha,
        judge_seed=answer.seed,
        samples=settings.samples,
        steps=settings.steps,
        sigma=loaded.sigma,
        seed=settings.seed,
        model=loaded.name,
        certified_radius=certified,
        alarm=alarm,
        attacked_image=encode_image(image) if alarm and image is not None else None,
        seconds=seconds,
    )
