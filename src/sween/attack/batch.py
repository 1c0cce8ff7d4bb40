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
from sween.attack.scoring import Judge, Scored, is_broken, worst
from sween.data.dataset import Dataset
from sween.ensemble.loaded import LoadedEnsemble
from sween.errors import BadInput, is_out_of_memory
from sween.models.evaluation_mode import evaluating
from sween.records import Certificate
from sween.runs.attack_outcome import (
    AttackOutcome,
    encode_image,
    is_alarm,
    judge,
    radius_of_label,
)
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

Found = list[dict[int, Scored]]
"""At each radius, the attacked images by their position in the batch."""


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
    device, rows = target.classifier.engine.device, SURROGATE_ROWS
    images = dataset.test.images(unit).to(device)
    labels = torch.tensor([int(dataset.test.labels[index]) for index in unit], device=device)
    known = [certificates.get(index) for index in unit]
    began = time.perf_counter()
    while True:
        try:
            with gradients_of_images_alone(target.loaded):
                batch = _Batch(target, images, labels, unit, known, number, settings, rows)
                outcomes = batch.run()
            break
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            if rows <= len(unit):
                raise BadInput(
                    "memory",
                    expected=f"room for the gradient of {len(unit)} images",
                    got=f"out of memory on {device}",
                    fix="use a smaller batch size",
                ) from None
            rows //= 2
            # Compiled passes have one fixed size, which may itself not fit.
            target = dataclasses.replace(target, probabilities=PlainProbabilities(target.loaded))
            if device.type == "cuda":
                torch.cuda.empty_cache()
    seconds = (time.perf_counter() - began) / len(outcomes)
    return [dataclasses.replace(outcome, seconds=seconds) for outcome in outcomes]


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
        certificates: Sequence[Certificate | None],
        number: int,
        settings: AttackSettings,
        rows: int,
    ) -> None:
        self.target, self.images, self.labels = target, images, labels
        self.indices, self.certificates, self.settings = indices, certificates, settings
        self.classes = target.classifier.num_classes
        self.judge = Judge(
            target.classifier,
            n=settings.n,
            alpha=settings.alpha,
            seed=settings.seed,
            share=answers_of_an_image(settings, classes=self.classes, rows=images.shape[2]),
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

    def run(self) -> list[AttackOutcome]:
        """The outcomes, without their time."""
        clean = self.judge.predict(self.images, self.indices)
        # A certificate's prediction takes precedence unless it abstains: it has more votes.
        predictions = [
            own.prediction if known is None or known.abstained else known.prediction
            for own, known in zip(clean, self.certificates, strict=True)
        ]
        right = [i for i, class_ in enumerate(predictions) if class_ == int(self.labels[i])]
        found = self._nearest(right) if self.settings.attack == "ddn" else self._in_balls(right)
        return [
            self._outcome(i, eps, predictions[i], clean[i], at_eps.get(i))
            for i in range(len(clean))
            for eps, at_eps in zip(self.settings.eps, found, strict=True)
        ]

    def _outcome(
        self, i: int, eps: float, clean_prediction: int, clean: Prediction, scored: Scored | None
    ) -> AttackOutcome:
        """The row of one image at one radius; `scored` is its attacked version, if there is one."""
        label, settings = int(self.labels[i]), self.settings
        judged = clean if scored is None else scored.answer
        distance = 0.0 if scored is None else scored.distance
        outcome = judge(label, clean_prediction, judged.prediction)
        certified = radius_of_label(self.certificates[i], label)
        alarm = is_alarm(outcome, distance, certified)
        return AttackOutcome(
            index=self.indices[i],
            label=label,
            attack=settings.attack,
            eps=eps,
            outcome=outcome,
            clean_prediction=clean_prediction,
            prediction=judged.prediction,
            counts=tuple(judged.counts),
            distance=distance,
            n=settings.n,
            alpha=settings.alpha,
            tries=0 if scored is None else self.judge.share,
            judge_alpha=judged.alpha,
            judge_seed=judged.seed,
            samples=settings.samples,
            gradients=self.target.probabilities.name,
            surrogate_rows=self.surrogate.rows,
            steps=settings.steps,
            sigma=self.target.loaded.sigma,
            seed=settings.seed,
            model=self.target.loaded.name,
            certified_radius=certified,
            alarm=alarm,
            attacked_image=None if scored is None or not alarm else encode_image(scored.image),
        )

    def _nearest(self, right: list[int]) -> Found:
        """A minimum-norm attack, which is the same at all radii."""
        images, labels = self.images[right], self.labels[right]
        points = dict[int, list[Scored]]()
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
            rays = self.judge.along_rays(images, attacked, labels, indices)
            points = dict(zip(right, rays, strict=True))
        found = Found()
        for position, eps in enumerate(self.settings.eps):
            self._further(points, eps, attempt=TRIES + position)
            found.append(self._worst({i: _inside(own, eps) for i, own in points.items()}))
        return found

    def _further(self, points: dict[int, list[Scored]], eps: float, *, attempt: int) -> None:
        """Also score the point at distance eps if none within the ball is misclassified."""
        moved = {
            i: [point for point in _inside(own, eps) if point.distance > 0]
            for i, own in points.items()
        }
        short = {
            i: scored
            for i, scored in self._worst(moved).items()
            if not self._is_broken([scored], i)
        }
        if not short:
            return
        images = self.images[list(short)]
        reached = torch.stack([scored.image for scored in short.values()])
        border = inside(images, along(images, reached, eps / distances(images, reached)), eps)
        indices = [self.indices[i] for i in short]
        scores = self.judge.score(images, border, indices, attempt=attempt)
        for i, scored in zip(short, scores, strict=True):
            points[i].append(scored)

    def _in_balls(self, right: list[int]) -> Found:
        """One attack after another, each on the images that no earlier one broke.

        An attack judges its own success by few noise samples. A one-off misclassification does not
        count: if the judge disagrees, the image goes on to the next attack.
        """
        attacks, found = self._attacks(), Found()
        points = {i: list[Scored]() for i in right}
        for position, eps in enumerate(self.settings.eps):
            tried = set[int]()
            for number, (attack, on_all) in enumerate(attacks):
                left = [i for i in right if not self._is_broken(points[i], i)]
                left = [i for i in left if on_all or i not in tried]
                scores = self._scored(attack, left, eps, position * len(attacks) + number)
                tried |= set(scores)
                for i, scored in scores.items():
                    points[i].append(scored)
            found.append(self._worst(points))
        return found

    def _worst(self, points: Mapping[int, Sequence[Scored]]) -> dict[int, Scored]:
        worsts = {i: worst(own, int(self.labels[i])) for i, own in points.items()}
        return {i: scored for i, scored in worsts.items() if scored is not None}

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
        self, attack: Attack, left: list[int], eps: float, attempt: int
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
        scores = self.judge.score(images[moved], attacked[moved], indices, attempt=attempt)
        return {left[place]: scored for place, scored in zip(moved, scores, strict=True)}


def _inside(points: Sequence[Scored], eps: float) -> list[Scored]:
    return [point for point in points if point.distance <= eps]
