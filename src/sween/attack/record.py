"""The row of one image at one radius."""

from sween.attack.scoring import Scored
from sween.ensemble.loaded import LoadedEnsemble
from sween.records import Certificate
from sween.runs.attack_outcome import (
    AttackOutcome,
    encode_image,
    is_alarm,
    judge,
    radius_of_label,
)
from sween.runs.attack_settings import AttackSettings
from sween.smoothing import Prediction


def outcome_of(
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
    gradients: str,
    surrogate_rows: int,
    seconds: float,
) -> AttackOutcome:
    """The row of one image at one radius.

    Args:
        index: of the image.
        label: its true class.
        eps: the radius.
        clean: the judge's prediction on the clean image.
        clean_answer: the same, or that of the certificate if there is one.
        certificate: of the image, if any.
        scored: the attacked image and its prediction, if any.
        tries: predictions that share alpha.
        settings: of the attack.
        loaded: the ensemble.
        gradients: compiled or plain.
        surrogate_rows: noisy images per pass of the attack.
        seconds: per image and radius.
    """
    answer = clean if scored is None else scored.answer
    distance = 0.0 if scored is None else scored.distance
    certified = radius_of_label(certificate, label)
    outcome = judge(label, clean_answer, answer.prediction)
    alarm = is_alarm(outcome, distance, certified)
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
        gradients=gradients,
        surrogate_rows=surrogate_rows,
        steps=settings.steps,
        sigma=loaded.sigma,
        seed=settings.seed,
        model=loaded.name,
        certified_radius=certified,
        alarm=alarm,
        attacked_image=encode_image(image) if alarm and image is not None else None,
        seconds=seconds,
    )
