"""One batch of images under attack."""

import time
from collections.abc import Mapping, Sequence

import torch

from sween.attack.auto import autoattack
from sween.attack.ddn import ddn
from sween.attack.geometry import inside, norms
from sween.attack.outcome import AttackOutcome, encode_image, judge
from sween.attack.pgd import pgd
from sween.attack.scoring import TRIES, Judge, Scored, is_broken
from sween.attack.settings import AttackSettings
from sween.attack.surrogate import SmoothedLogits
from sween.data.dataset import Dataset
from sween.ensemble.loaded import LoadedEnsemble
from sween.models.device import evaluating
from sween.records import Certificate
from sween.smoothing import SmoothedClassifier
from sween.smoothing.settings import Prediction
from sween.smoothing.votes import is_out_of_memory

SURROGATE_ROWS = 4096
"""Noisy images in one pass of the attacker; halved where memory runs out."""

Found = list[tuple[Scored | None, int]]
"""What an attack came to at each radius, and how many attacked images were scored for it."""


def attack_unit(
    loaded: LoadedEnsemble,
    dataset: Dataset,
    unit: Sequence[int],
    number: int,
    settings: AttackSettings,
    classifier: SmoothedClassifier,
    certificates: Mapping[int, Certificate],
) -> list[AttackOutcome]:
    """The outcomes of one batch, image by image and radius by radius.

    Radii go up; an image that is broken stays so at the larger ones and is not attacked again.

    Args:
        loaded: whose gradients the attacker has.
        dataset: the images' own.
        unit: which test images.
        number: of the batch, which keys its noise.
        settings: of the attack.
        classifier: that judges.
        certificates: by index.
    """
    device = classifier.engine.device
    images = dataset.test.images(unit).to(device)
    labels = torch.tensor([int(dataset.test.labels[index]) for index in unit], device=device)
    began, rows = time.perf_counter(), SURROGATE_ROWS
    while True:
        try:
            with evaluating(loaded):
                found = _Unit(
                    loaded, images, labels, unit, number, settings, classifier, rows
                ).run()
            break
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error) or rows == 1:
                raise
            rows //= 2
    seconds = (time.perf_counter() - began) / len(unit) / len(settings.eps)
    return [
        _outcome(
            index, int(label), eps, clean, scored, tries, settings, loaded, certificates, seconds
        )
        for index, label, clean, per_eps in zip(unit, labels, *found, strict=True)
        for eps, (scored, tries) in zip(settings.eps, per_eps, strict=True)
    ]


class _Unit:
    """One batch of images under attack."""

    def __init__(
        self,
        loaded: LoadedEnsemble,
        images: torch.Tensor,
        labels: torch.Tensor,
        indices: Sequence[int],
        number: int,
        settings: AttackSettings,
        classifier: SmoothedClassifier,
        rows: int,
    ) -> None:
        self.images, self.labels, self.indices = images, labels, indices
        self.settings = settings
        self.judge = Judge(classifier, n=settings.n, alpha=settings.alpha, seed=settings.seed)
        self.surrogate = SmoothedLogits(
            loaded,
            sigma=loaded.sigma,
            samples=settings.samples,
            seed=settings.seed,
            unit=number,
            fresh=settings.attack != "standard",
            rows=rows,
        )

    def run(self) -> tuple[list[Prediction], list[Found]]:
        """The answers without an attack, and for each image and radius what the attack came to."""
        clean = self.judge.answers(self.images, self.indices, attempt=-1)
        right = [i for i, answer in enumerate(clean) if answer.prediction == int(self.labels[i])]
        found: list[Found] = [[] for _ in clean]
        if self.settings.attack == "ddn":
            self._nearest(right, found)
        else:
            self._in_balls(right, found)
        return clean, found

    def _nearest(self, right: list[int], found: list[Found]) -> None:
        images, labels = self.images[right], self.labels[right]
        nearest = dict[int, Scored]()
        if right:
            attacked = ddn(
                self.surrogate,
                images,
                labels,
                steps=self.settings.steps,
                start=self.surrogate.sigma,
            )
            indices = [self.indices[i] for i in right]
            best = self.judge.nearest(images, attacked, labels, indices)
            nearest = dict(zip(right, best, strict=True))
        for i, own in enumerate(found):
            scored = nearest.get(i)
            for eps in self.settings.eps:
                reached = scored is not None and scored.distance <= eps
                own.append((scored if reached else None, TRIES if reached else 0))

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
                own.append((result, 1 if result is not None else 0))

    def _attack(self, left: list[int], eps: float, position: int) -> dict[int, Scored]:
        images, labels, settings = self.images[left], self.labels[left], self.settings
        if settings.attack == "pgd":
            attacked = pgd(self.surrogate, images, labels, eps=eps, steps=settings.steps)
        else:
            attacked = autoattack(
                self.surrogate, images, labels, eps=eps, version=settings.attack, seed=settings.seed
            )
        attacked = inside(images, attacked, eps)
        moved = [j for j, length in enumerate(norms(attacked - images).tolist()) if length > 0]
        scored = self.judge.score(
            images[moved], attacked[moved], [self.indices[left[j]] for j in moved], attempt=position
        )
        return {left[j]: own for j, own in zip(moved, scored, strict=True)}


def _outcome(
    index: int,
    label: int,
    eps: float,
    clean: Prediction,
    scored: Scored | None,
    tries: int,
    settings: AttackSettings,
    loaded: LoadedEnsemble,
    certificates: Mapping[int, Certificate],
    seconds: float,
) -> AttackOutcome:
    answer = clean if scored is None else scored.answer
    distance = 0.0 if scored is None else scored.distance
    certificate = certificates.get(index)
    certified = (
        certificate.radius if certificate is not None and certificate.prediction == label else None
    )
    outcome = judge(label, clean.prediction, answer.prediction)
    alarm = outcome == "broken" and certified is not None and distance < certified
    return AttackOutcome(
        index=index,
        label=label,
        attack=settings.attack,
        eps=eps,
        outcome=outcome,
        clean_prediction=clean.prediction,
        prediction=answer.prediction,
        counts=tuple(answer.counts),
        distance=distance,
        n=settings.n,
        alpha=settings.alpha,
        tries=tries,
        samples=settings.samples,
        steps=settings.steps,
        sigma=loaded.sigma,
        seed=settings.seed,
        model=loaded.name,
        certified_radius=certified,
        alarm=alarm,
        attacked_image=encode_image(scored.image) if alarm and scored is not None else None,
        seconds=seconds,
    )
