"""`sween attack`"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from sween.attack import (
    ATTACKS,
    AttackOutcome,
    AttackSettings,
    attack_dataset,
    empirical_accuracy,
    refuse_alarms,
)
from sween.attack.run import attack_config
from sween.cli.completion import complete_from
from sween.cli.options import (
    Alpha,
    Compile,
    CompileMode,
    Convert,
    DataRoot,
    Device,
    Exit,
    ExitAlpha,
    ExitThreshold,
    ForwardRows,
    Indices,
    Precision,
    Quiet,
    Seed,
    ShardOption,
    SkipUnreadable,
    Source,
    TrustedArch,
    TrustedDataset,
    choose_compilation,
    choose_device,
    choose_exits,
    choose_images,
    dataset_of,
    read_shard_option,
)
from sween.data import Dataset, parse_indices
from sween.errors import BadInput
from sween.records import Certificate
from sween.run_folder import read_config
from sween.runs import CertificationRun
from sween.runs.attacked_certificates import certified_name, differences
from sween.smoothing import SmoothedClassifier
from sween.zoo import load


def run(
    source: Source,
    eps: Annotated[list[float], typer.Option(help="largest l2 perturbation; may be repeated")],
    out: Annotated[Path, typer.Option(help="folder for the outcomes")],
    attack: Annotated[
        str,
        typer.Option(
            help=f"one of {', '.join(ATTACKS)}", autocompletion=complete_from(lambda: ATTACKS)
        ),
    ] = "rand",
    indices: Indices = None,
    every: Annotated[int | None, typer.Option(help="every k-th test image")] = None,
    everything: Annotated[bool, typer.Option("--all", help="all test images")] = False,
    samples: Annotated[int, typer.Option(help="noise draws per gradient of the attack")] = 128,
    steps: Annotated[int, typer.Option(help="of pgd and ddn; AutoAttack has its own")] = 100,
    n: Annotated[int, typer.Option(help="votes that judge an adversarial example")] = 10_000,
    alpha: Alpha = 0.001,
    certificates: Annotated[
        Path | None,
        typer.Option(help="folder of certificates; an attack success inside a radius is an alarm"),
    ] = None,
    member: Annotated[
        str | None, typer.Option(help="attack this member instead of the ensemble")
    ] = None,
    exit_name: Exit = "none",
    exit_threshold: ExitThreshold = None,
    exit_alpha: ExitAlpha = None,
    trusted: TrustedDataset = None,
    data_root: DataRoot = None,
    convert: Convert = False,
    skip_unreadable: SkipUnreadable = False,
    arch: TrustedArch = None,
    batch_size: Annotated[
        int, typer.Option(help="images per batch; an interrupted run loses at most one batch")
    ] = 32,
    forward_rows: ForwardRows = None,
    precision: Precision = "auto",
    compile: Compile = None,
    compile_mode: CompileMode = None,
    seed: Seed = 0,
    shard: ShardOption = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Search for adversarial examples of test images.

    Each one is judged by the smoothed classifier with fresh noise. An interrupted run resumes.
    """
    settings = AttackSettings(
        attack=attack,
        eps=tuple(sorted(eps)),
        samples=samples,
        steps=steps,
        n=n,
        alpha=alpha,
        seed=seed,
        batch_size=batch_size,
    )
    part = read_shard_option(shard)
    ensemble = load(source, archs=arch or ())
    loaded = ensemble if member is None else ensemble.alone(member)
    if member is not None and exit_name != "none":
        raise BadInput("--exit", expected="none with --member", got=exit_name, fix="leave it out")
    dataset = dataset_of(loaded, data_root, trusted=trusted, convert=convert, test_only=True)
    positions, skipped = choose_images(
        dataset,
        indices=indices,
        every=every,
        everything=everything,
        skip_unreadable=skip_unreadable,
        quiet=quiet,
    )
    classifier = SmoothedClassifier(
        loaded.to(choose_device(device)),
        sigma=loaded.sigma,
        num_classes=loaded.num_classes,
        exit=choose_exits([exit_name], exit_threshold, exit_alpha)[0],
        name=loaded.name,
        forward_rows=forward_rows,
        precision=precision,
        compile=choose_compilation(compile, compile_mode),
        levels=dataset.test.white,
    )
    known = None
    if certificates is not None:
        classifier.engine.prepare(dataset.test.images(positions[:1])[0])
        own = attack_config(loaded, dataset, positions, settings, classifier, None, ensemble)
        known = _certificates_of(certificates, own, positions, dataset)
    outcomes = attack_dataset(
        loaded,
        dataset,
        positions,
        settings,
        out,
        classifier=classifier,
        certificates=known,
        candidate_of=ensemble,
        skipped=skipped,
        shard=part,
        quiet=quiet,
    )
    if part is None:
        for radius in settings.eps:
            typer.echo(_line(radius, [row for row in outcomes if row.eps == radius]))
    else:  # a part's accuracy is not the run's
        images = len(outcomes) // len(settings.eps)
        typer.echo(f"shard {part}: {images} images attacked in {out}; next: sween merge")
    refuse_alarms(outcomes, out)


def _line(radius: float, rows: list[AttackOutcome]) -> str:
    shares = {
        name: f"{100 * sum(row.outcome == name for row in rows) / len(rows):.1f}%"
        for name in ("abstained", "broken", "wrong", "declined")
    }
    return (
        f"eps {radius:g}: robust accuracy {100 * empirical_accuracy(rows):.1f}% of {len(rows)} "
        f"images ({shares['abstained']} abstain under attack); attack success {shares['broken']}; "
        f"clean images misclassified {shares['wrong']}, abstained {shares['declined']}"
    )


def _certificates_of(
    folder: Path, own: Mapping[str, Any], positions: Sequence[int], dataset: Dataset
) -> Mapping[int, Certificate]:
    config = read_config(folder)
    if "contents" in config and isinstance(config.get("indices"), str):
        certified = parse_indices(
            indices=config["indices"], every=None, everything=False, size=len(dataset.test)
        )
        contents = dataset.test.pixels.contents(certified)
        own = {**own, "indices": config["indices"], "contents": contents}
    others = differences(own, config)
    run = CertificationRun.read(folder)
    certificates = {row.index: row for row in run.of(certified_name(own, config) or own["model"])}
    if not others:
        run.check_values("label", dict(enumerate(dataset.test.labels.tolist())), "the data set")
    if not certificates and not others:
        others = [f"none of {own['model']}"]
    if others:
        raise BadInput(
            str(folder),
            expected="certificates of the classifier under attack",
            got="; ".join(others),
            fix="certify it on this device with the same options and float32 noise, or leave "
            "--certificates out",
        )
    missing = [position for position in positions if position not in certificates]
    if missing:
        raise BadInput(
            str(folder),
            expected="a certificate for every attacked image",
            got=f"none for {len(missing)} of them, such as image {missing[0]}",
            fix="certify those too, or choose others with --indices",
        )
    return certificates
