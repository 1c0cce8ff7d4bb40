"""Attacking a data set's test images batch by batch, into a folder that can be resumed."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from sween.attack.autoattack import check_installed
from sween.attack.batch import Target, attack_batch, gradients_of_images_alone
from sween.attack.gradients import probabilities_of
from sween.data.dataset import Dataset
from sween.ensemble.loaded import LoadedEnsemble
from sween.errors import BadInput, CheckFailed
from sween.paths import AnyPath
from sween.progress import track
from sween.records import Certificate
from sween.runs.attack import AttackConfig, AttackRun
from sween.runs.attack_outcome import AttackOutcome, radius_of_label
from sween.runs.attack_settings import PARTS, AttackSettings, answers_of_an_image
from sween.runs.attacked_certificates import digest, digest_of_radii
from sween.runs.rows import resuming
from sween.runs.shards import Shard
from sween.smoothing import SmoothedClassifier
from sween.smoothing.chosen_images import ChosenImages
from sween.smoothing.prediction import check_predict_settings
from sween.smoothing.run_config import engine_config, subject_config


def attack_dataset(
    loaded: LoadedEnsemble,
    dataset: Dataset,
    positions: Sequence[int],
    settings: AttackSettings,
    out: AnyPath,
    *,
    classifier: SmoothedClassifier,
    certificates: Mapping[int, Certificate] | None = None,
    candidate_of: LoadedEnsemble | None = None,
    skipped: Sequence[int] = (),
    shard: Shard | None = None,
    quiet: bool = False,
) -> list[AttackOutcome]:
    """Attack test images and append the outcomes to `out`; an interrupted run resumes.

    Args:
        loaded: the ensemble whose gradients the attack uses.
        dataset: of its members.
        positions: indices of the test images, attacked in batches of `settings.batch_size`.
        settings: of the attack.
        out: folder for config, environment and outcomes.
        classifier: the smoothed classifier of that ensemble, which judges attacked images.
        certificates: by index; a misclassification within a certified radius is an alarm.
        candidate_of: the ensemble that `loaded` is a candidate of, if its certificates are among
            that ensemble's; the config then names both.
        skipped: test images that were asked for but could not be read, for the config.
        shard: attack only this part of the batches, into a folder for `merge_runs`.
        quiet: no progress display.

    Returns:
        All outcomes of the run, or of the shard, in the order of the file.

    Example:
        >>> import sween
        >>> from sween.attack import AttackSettings, attack_dataset, contradicts
        >>> from sween.attack import empirical_accuracy, outcomes_file, verify_attacks
        >>> from sween.attack import without_attack
        >>> digits = sween.load_dataset("digits")
        >>> loaded = sween.load("digits-sween3-gaussian-sigma0.50")
        >>> smoothed = sween.SmoothedClassifier(loaded, sigma=loaded.sigma, num_classes=10)
        >>> settings = AttackSettings(attack="pgd", eps=(0.1,), samples=8, steps=2, n=500)
        >>> outcomes = attack_dataset(
        ...     loaded, digits, [0, 1], settings, "attacks", classifier=smoothed, quiet=True
        ... )
        >>> clean, robust = without_attack(outcomes), empirical_accuracy(outcomes)
        >>> empirical_accuracy(clean) >= robust
        True
        >>> [contradicts(outcome, certificate=None) for outcome in outcomes]
        [False, False]
        >>> outcomes_file("attacks").name, verify_attacks("attacks").rows
        ('attacks.jsonl', 2)
    """
    if not positions or len(set(positions)) < len(positions):
        raise BadInput(
            "positions", expected="some images, each once", got=len(positions), fix="name some"
        )
    share = answers_of_an_image(settings, classes=loaded.num_classes, rows=loaded.image_shape[1])
    check_predict_settings(n=settings.n, alpha=settings.alpha / share, sigma=loaded.sigma)
    if settings.attack in PARTS:
        check_installed()
    image = dataset.test.images(positions[:1])[0].to(classifier.device)
    classifier.engine.prepare(image)
    with gradients_of_images_alone(loaded):
        probabilities = probabilities_of(loaded, classifier.engine, image)
    config = attack_config(
        loaded, dataset, positions, settings, classifier, certificates, candidate_of, skipped
    )
    config["gradients"] = probabilities.name
    target = Target(loaded, classifier, probabilities)
    batches = [*enumerate(settings.batches(positions))]
    if shard is not None:
        batches = shard.take(batches, AttackConfig.UNITS)
    labels = {index: int(dataset.test.labels[index]) for index in positions}
    radii = radii_given(certificates, dataset, positions)
    with resuming(AttackRun, out, config, shard=shard, label=labels, certified_radius=radii) as run:
        left, total = set(run.left), sum(len(batch) for _, batch in batches)
        with track(f"attack {loaded.name} ({settings.attack})", total, quiet=quiet) as advance:
            for number, batch in batches:
                if left.intersection(batch):
                    run.append(
                        attack_batch(target, dataset, batch, number, settings, certificates or {})
                    )
                advance(len(batch), "images")
        return run.rows


def refuse_alarms(outcomes: Sequence[AttackOutcome], out: AnyPath) -> None:
    """Fail if a prediction changed inside its certified radius.

    Raises:
        CheckFailed: one did; either the certificate is among the few that may be wrong, or there is
            a bug.

    Example:
        >>> from sween.attack import refuse_alarms
        >>> refuse_alarms([], "attacks")
    """
    alarms = [row for row in outcomes if row.alarm]
    if alarms:
        first = alarms[0]
        raise CheckFailed(
            f"{len({row.index for row in alarms})} predictions changed inside their certified "
            f"radius, first that of image {first.index} at distance {first.distance:.6g} with "
            f"radius {first.certified_radius:.6g}; the adversarial examples are in the rows with "
            f"an alarm in {out}/attacks.jsonl"
        )


def radii_given(
    certificates: Mapping[int, Certificate] | None, dataset: Dataset, positions: Sequence[int]
) -> dict[int, float | None]:
    """The radius certified for the true class of each attacked image; None without one."""
    known, labels = certificates or {}, dataset.test.labels
    return {index: radius_of_label(known.get(index), int(labels[index])) for index in positions}


def attack_config(
    loaded: LoadedEnsemble,
    dataset: Dataset,
    positions: Sequence[int],
    settings: AttackSettings,
    classifier: SmoothedClassifier,
    certificates: Mapping[int, Certificate] | None,
    candidate_of: LoadedEnsemble | None = None,
    skipped: Sequence[int] = (),
) -> dict[str, Any]:
    """The config of an attack, for its folder; the classifier must be prepared."""
    engine, certified = classifier.engine, {}
    if certificates is not None:
        certified = {"certified": digest_of_radii(radii_given(certificates, dataset, positions))}
    return {
        "kind": "attacks",
        **subject_config(
            candidate_of or loaded,
            ChosenImages(dataset.test, positions, dataset, skipped),
            name=loaded.name,
            sigma=loaded.sigma,
        ),
        "exit": engine.exits[engine.name],
        "norm": "l2",
        **dataclasses.asdict(settings),
        "eps": list(settings.eps),
        "certificates": digest(certificates),
        **certified,
        **engine_config(engine),
    }
