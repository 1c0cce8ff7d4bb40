"""Attacking one batch of images."""

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import nn

from sween.attack.autoattack import autoattack
from sween.attack.ddn import ddn
from sween.attack.geometry import distances, inside
from sween.attack.gradients import deterministic_convolutions
from sween.attack.pgd import along, pgd
from sween.attack.record import outcome_of
from sween.attack.scoring import Judge, Scored, is_broken, worst
from sween.data.dataset import Dataset
from sween.ensemble.loaded import LoadedEnsemble
from sween.errors import BadInput
from sween.models.device import evaluating, is_out_of_memory
from sween.records import Certificate
from sween.runs.attack_outcome import AttackOutcome
from sween.runs.attack_settings import (
    SURROGATE_ROWS,
    TRIES,
    AttackSettings,
    answers_of_an_image,
    parts_of,
)
from sween.smoothing import Prediction, SmoothedClassifier
from sween.smoothing.smoothed_logits import PlainProbabilities, Probabilities, SmoothedLogits

Attack = Callable[..., torch.Tensor]
"""From images and labels, and eps by name, to attacked images."""

Found = list[tuple[Scored | None, int]]
"""At each radius the attacked image, if any, and the number of predictions that share alpha."""


@dataclasses.dataclass(frozen=True)
class Target:
    """What is attacked.

    Attributes:
        loaded: the ensemble.
        classifier: its smoothed classifier, which judges attacked images.
        probabilities: what the attack follows the gradients of.
    """

    loaded: LoadedEnsemble
    classifier: SmoothedClassifier
    probabilities: Probabilities


def attack_batch(
    target: Target,
    dataset: Dataset,
    unit: Sequence[int],
    number: int,
    settings: AttackSettings,
    certificates: Mapping[int, Certificate],
) -> list[AttackOutcome]:
    """The outcomes of one batch, image by image and radius by radius.

    Radii ascend; an image that is broken at one counts as broken at larger ones without an attack.

    Args:
        target: what is attacked.
        dataset: of the images.
        unit: indices of the test images.
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
                batch = _Batch(target, images, labels, unit, number, settings, rows)
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
            # Compiled passes have one fixed size, which may itself not fit.
            target = dataclasses.replace(target, probabilities=PlainProbabilities(target.loaded))
            if device.type == "cuda":
                torch.cuda.empty_cache()
    seconds = (time.perf_counter() - began) / len(unit) / len(settings.eps)
    return [
        outcome_of(
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
            gradients=target.probabilities.name,
            surrogate_rows=rows,
            seconds=seconds,
        )
        for index, label, clean, answer, per_eps in zip(unit, labels, *found, strict=True)
        for eps, (scored, tries) in zip(settings.eps, per_eps, strict=True)
    ]


@contextlib.contextmanager
def gradients_of_images_alone(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, without gradients of the weights."""
    learning = [part for part in model.parameters() if part.requires_grad]
    with evaluating(model):
        model.requires_grad_(False)
        try:
            yield
        finally:
            for parameter in learning:
                parameter.requires_grad_(True)


class _Batch:
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
        self.settings, self.classes = settings, target.classifier.num_classes
        self.share = answers_of_an_image(settings, classes=self.classes, rows=images.shape[2])
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
        """Predictions on clean images, and the result of the attack for each image and radius.

        A certificate's prediction takes precedence unless it abstains: it has more votes.
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
        points, share = dict[int, list[Scored]](), self.share
        if right:
            with deterministic_convolutions():
                attacked = ddn(
                    self.surrogate,
                    images,
                    labels,
                    steps=self.settings.steps,
                    start=self.surrogate.sigma,
                )
            indices = [self.indices[i] for i in right]
            rays = self.judge.along_rays(images, attacked, labels, indices, share=share)
            points = dict(zip(right, rays, strict=True))
        for position, eps in enumerate(self.settings.eps):
            self._further(points, eps, attempt=TRIES + position, share=share)
            for i, own in enumerate(found):
                scored = worst(_inside(points.get(i, ()), eps), int(self.labels[i]))
                own.append((scored, 0 if scored is None else share))

    def _further(
        self, points: dict[int, list[Scored]], eps: float, *, attempt: int, share: int
    ) -> None:
        """Also score the point at distance eps, where none within the ball is misclassified."""
        short = dict[int, Scored]()
        for i, own in points.items():
            points_inside = [point for point in _inside(own, eps) if point.distance > 0]
            scored = worst(points_inside, int(self.labels[i]))
            if scored is not None and not self._is_broken([scored], i):
                short[i] = scored
        if not short:
            return
        images = self.images[list(short)]
        reached = torch.stack([scored.image for scored in short.values()])
        border = inside(images, along(images, reached, eps / distances(images, reached)), eps)
        indices = [self.indices[i] for i in short]
        scores = self.judge.score(images, border, indices, attempt=attempt, share=share)
        for i, scored in zip(short, scores, strict=True):
            points[i].append(scored)

    def _in_balls(self, right: list[int], found: list[Found]) -> None:
        """One attack after another, each on the images that no earlier one broke.

        An attack judges its own success by few noise samples. A one-off misclassification does not
        count: if the judge disagrees, the image goes on to the next attack.
        """
        attacks, share = self._attacks(), self.share
        points = {i: list[Scored]() for i in right}
        for position, eps in enumerate(self.settings.eps):
            tried = set[int]()
            for number, (attack, on_all) in enumerate(attacks):
                left = [i for i in right if not self._is_broken(points[i], i)]
                left = [i for i in left if on_all or i not in tried]
                scores = self._scored(attack, left, eps, position * len(attacks) + number, share)
                tried |= set(scores)
                for i, scored in scores.items():
                    points[i].append(scored)
            for i, own in enumerate(found):
                result = worst(points.get(i, ()), int(self.labels[i]))
                own.append((result, 0 if result is None else share))

    def _is_broken(self, points: Sequence[Scored], i: int) -> bool:
        return any(is_broken(point.answer, int(self.labels[i])) for point in points)

    def _attacks(self) -> list[tuple[Attack, bool]]:
        """The attacks to run, and whether each also runs on images that others perturbed."""
        settings = self.settings
        by_pgd = functools.partial(pgd, self.surrogate, steps=settings.steps)
        if settings.attack == "pgd":
            return [(by_pgd, True)]
        version = functools.partial(
            autoattack, self.surrogate, version=settings.attack, seed=settings.seed
        )
        parts = parts_of(settings.attack, classes=self.classes, rows=self.images.shape[2])
        # PGD last: AutoAttack returns images unchanged that its first evaluation gets wrong.
        attacks = [(functools.partial(version, part=part), True) for part in parts]
        return [*attacks, (by_pgd, False)]

    def _scored(
        self, attack: Attack, left: list[int], eps: float, attempt: int, share: int
    ) -> dict[int, Scored]:
        """Predictions on the images that an attack perturbed."""
        if not left:
            return {}
        images = self.images[left]
        with deterministic_convolutions():
            attacked = inside(images, attack(images, self.labels[left], eps=eps), eps)
        moved = (distances(images, attacked) > 0).nonzero()[:, 0].tolist()
        if not moved:
            return {}
        indices = [self.indices[left[place]] for place in moved]
        scores = self.judge.score(
            images[moved], attacked[moved], indices, attempt=attempt, share=share
        )
        return {left[place]: scored for place, scored in zip(moved, scores, strict=True)}


def _inside(points: Sequence[Scored], eps: float) -> list[Scored]:
    return [point for point in points if point.distance <= eps]
