"""Recounts the votes of a finished run, with its model and its data.

A folder alone shows whether its rows follow from their votes, not whether those votes were ever
cast. Noise is keyed by seed, purpose and image, and forward passes have a fixed shape, so the same
kind of device reproduces the votes bit for bit. Invented votes, or those of another seed, sigma,
image or label, are not reproduced.
"""

import dataclasses
import math
import secrets
from collections.abc import Sequence
from typing import Any

from torch import nn

from sween.data import Dataset, as_image_set
from sween.engine import NoiseKind, Preparation, VoteEngine
from sween.ensemble import LoadedEnsemble
from sween.ensemble.early_exit import parse_exit
from sween.errors import BadInput, CheckFailed
from sween.models.device import device_of
from sween.paths import AnyPath
from sween.progress import track
from sween.records import Certificate
from sween.run_folder import config_differences
from sween.runs import CertificationRun
from sween.sampling.strategy import Plan
from sween.seeding import numpy_generator
from sween.smoothing import pipeline
from sween.smoothing.chosen_images import ChosenImages
from sween.smoothing.classifier import SmoothedClassifier
from sween.smoothing.run_config import subject_config

NOT_COUNTED = frozenset({"seconds", "run"})
"""Fields that recounting does not reproduce: the time, and the tag of the config."""


@dataclasses.dataclass(frozen=True)
class RecountedRun:
    """The result of a recount without differences.

    Attributes:
        rows: how many were reproduced.
        indices: of their images, ascending.
        seed: with which these images were chosen.

    Example:
        See `recount_folder`.
    """

    rows: int
    indices: tuple[int, ...]
    seed: int


def recount_folder(
    folder: AnyPath,
    model: nn.Module,
    data: object,
    *,
    images: int | None = None,
    seed: int | None = None,
    member_names: Sequence[str] | None = None,
    quiet: bool = False,
) -> RecountedRun:
    """Certify images of a finished run again and compare every field but the time.

    The folder must be complete and pass `CertificationRun.read`; a recount complements
    `verify_folder`. It says nothing about images that were not chosen. With a budget the pilot
    votes on all images are recounted, since every size depends on them.

    Args:
        folder: written by `sween certify`.
        model: the certified model, on the kind of device that certified it.
        data: the certified data with labels, as for `certify_dataset`.
        images: how many to recount; all by default.
        seed: with which images are chosen; by default from the operating system, so that nobody
            can predict which rows will be recounted.
        member_names: of the model's members, in their order; by default those of a loaded
            ensemble, which rows must not exchange. Of other modules nobody but the config knows
            the names.
        quiet: no progress display.

    Raises:
        BadInput: the model, data, kind of device or arithmetic is not the run's.
        CheckFailed: names the first row that differs, with both values.

    Example:
        >>> import sween
        >>> from sween.smoothing import recount_folder
        >>> digits = sween.load_dataset("digits")
        >>> ensemble = sween.load("digits-sween3-gaussian-sigma0.50")
        >>> smoothed = sween.SmoothedClassifier(ensemble, sigma=0.5, num_classes=10)
        >>> run = sween.certify_dataset(
        ...     smoothed, digits, out="run", indices=range(3), n=200, quiet=True
        ... )
        >>> recount_folder("run", ensemble, digits, images=2, quiet=True).rows
        2
    """
    run = CertificationRun.read(folder, part=True)
    run.check_complete()
    config, settings = run.config, run.config.settings
    subject = _Subject(run, model, data, member_names, quiet)
    subject.check()
    seed = secrets.randbits(31) if seed is None else seed
    chosen = _choice(run.indices, images, seed)
    places = {(row.model, row.index): place for place, row in enumerate(run.rows)}
    source = subject.chosen.source
    with track(f"recount {config.model}", len(chosen), quiet=quiet) as advance:
        for rows, keys in _by_forward_rows(run, chosen).items():
            engine = subject.engine(rows, keys[0])
            numbers = math.prod(source.image_shape)
            pipeline.check_engine(engine, settings, numbers=numbers)
            plans = pipeline.plan_all(engine, source, config.indices, settings)
            _check_pilots(run, plans)
            for certificates in pipeline.certify(
                [engine], source, config.indices, settings, left=keys, plans=plans
            ):
                for certificate in certificates:
                    _compare(run, places[certificate.model, certificate.index], certificate)
                advance(1, "images")
    return RecountedRun(len(chosen) * len(config.voters), tuple(chosen), seed)


def _choice(indices: Sequence[int], images: int | None, seed: int) -> list[int]:
    if images is None or images >= len(indices):
        return sorted(indices)
    if images < 1:
        raise BadInput("images", expected="at least 1", got=images, fix="recount 20, or all")
    # Raw words, since numpy may change how it draws a choice.
    words = numpy_generator(seed, "recount").bit_generator.random_raw(len(indices))
    order = sorted(range(len(indices)), key=lambda place: (int(words[place]), place))
    return sorted(indices[place] for place in order[:images])


class _Subject:
    """The model and the data to recount a run with."""

    def __init__(
        self,
        run: CertificationRun,
        model: nn.Module,
        data: object,
        member_names: Sequence[str] | None,
        quiet: bool,
    ) -> None:
        self.run, self.model = run, model
        if member_names is None and not isinstance(model, LoadedEnsemble):
            member_names = run.config.content["candidates"]
        self.member_names = member_names
        indices = run.config.indices
        images = as_image_set(data, name=run.config.dataset, indices=indices, quiet=quiet)
        dataset = data if isinstance(data, Dataset) else None
        self.chosen = ChosenImages(images, indices, dataset)
        self.sigma, self.name = run.config.sigma, run.config.model

    def check(self) -> None:
        """Refuse a model or data other than the config names.

        If the fingerprints of model and data match but the config contradicts them elsewhere, it
        was altered, and the check fails.
        """
        content, folder = self.run.config.content, self.run.folder
        now = subject_config(
            self.model,
            self.chosen,
            name=self.name,
            sigma=self.sigma,
            member_names=self.member_names,
        )
        now.pop("source_code", None)  # the votes themselves are compared
        then = {name: content[name] for name in now if name in content}
        differences = config_differences(then, {name: now[name] for name in then})
        if differences and all(now[name] == then.get(name) for name in ("fingerprint", "data")):
            raise CheckFailed(f"{folder}/config.toml: {'; '.join(differences)} of the model")
        if differences:
            raise BadInput(
                f"{folder}/config.toml",
                expected="the model and the data that were certified",
                got="; ".join(differences),
                fix="pass them as `model` and `data`",
            )
        device, known = device_of(self.model).type, self.run.config.device
        if known is None:
            raise BadInput(
                f"{folder}/config.toml",
                expected="the kind of device that certified it: other kinds draw different noise",
                got="no device",
                fix="certify again with this version",
            )
        if known != device:
            raise BadInput(
                "device",
                expected=f"{known}, which certified {folder}: other kinds draw different noise",
                got=device,
                fix=f"recount on a machine with {known}",
            )

    def engine(self, rows: int, first: int) -> VoteEngine:
        """The engine that certified the run, with `rows` rows per pass; refused if it differs."""
        config = self.run.config
        preparation, noise = (
            Preparation.recorded(config.precision),
            NoiseKind.recorded(config.noise),
        )
        exits = config.content.get("exits", {})
        own = {config.model, *exits}
        engine = SmoothedClassifier(
            self.model,
            sigma=self.sigma,
            num_classes=len(self.run.rows[0].selection_counts),
            exit=parse_exit(config.exits[config.model]),
            name=self.name,
            forward_rows=rows,
            member_names=config.members or None,
            weightings={name: w for name, w in config.weights.items() if name not in own},
            other_exits=[parse_exit(text) for text in exits.values()],
            precision=preparation.precision,
            compile=preparation.compile,
            noise=noise.name,
            levels=noise.levels,
        ).engine
        engine.prepare(self.chosen.source.images([first])[0])
        for name, now, then in (
            ("precision", engine.precision, config.precision),
            ("forward_rows", engine.forward_rows, rows),
            ("noise", engine.noise.name, config.noise),
            ("models", engine.voters, config.voters),
        ):
            if now != then:
                raise BadInput(
                    f"{name} on {engine.device}",
                    expected=f"{then}, as {self.run.folder} was certified with",
                    got=now,
                    fix="recount on a machine like the one in its environment.json",
                )
        return engine


def _by_forward_rows(run: CertificationRun, chosen: Sequence[int]) -> dict[int, list[int]]:
    """The images by the number of rows per forward pass with which they were certified.

    A run that ran out of memory continued with fewer.
    """
    rows = {certificate.index: certificate.forward_rows for certificate in run.rows}
    if run.config.settings.strategy.planned and {*rows.values()} != {run.config.forward_rows}:
        raise BadInput(
            str(run.file),
            expected="votes of a budget that all come from forward passes of one shape",
            got=f"passes of {', '.join(map(str, sorted({*rows.values()})))} rows",
            fix="it ran out of memory and cannot be recounted; certify it with fewer forward rows",
        )
    groups: dict[int, list[int]] = {}
    for index in chosen:
        groups.setdefault(rows[index], []).append(index)
    return groups


def _check_pilots(run: CertificationRun, plans: dict[int, Plan]) -> None:
    """With a budget, compare the pilot votes on all images and the sizes they call for."""
    for place, certificate in enumerate(run.rows):
        plan = plans.get(certificate.index)
        if plan is None:
            continue
        for name, now, then in (
            ("selection_counts", plan.pilot[run.config.model].counts, certificate.selection_counts),
            ("n", plan.size, certificate.n),
        ):
            if now != then:
                raise _differs(run, place, [f"{name} {_text(then)}, recounted {_text(now)}"])


def _compare(run: CertificationRun, place: int, again: Certificate) -> None:
    recorded = run.rows[place]
    if again.forward_rows != recorded.forward_rows:
        raise BadInput(
            "memory",
            expected=f"enough for forward passes of {recorded.forward_rows} rows, as in the run",
            got=f"enough for {again.forward_rows}",
            fix="free some memory, or recount on a machine like the one in its environment.json",
        )
    problems = [
        f"{field.name} {_text(then)}, recounted {_text(now)}"
        for field in dataclasses.fields(Certificate)
        if field.name not in NOT_COUNTED
        and (then := getattr(recorded, field.name)) != (now := getattr(again, field.name))
    ]
    if problems:
        raise _differs(run, place, problems)


def _differs(run: CertificationRun, place: int, problems: Sequence[str]) -> CheckFailed:
    certificate = run.rows[place]
    return CheckFailed(f"{run.where(place)}, {certificate.model}: {'; '.join(problems)}")


def _text(value: Any) -> str:
    return str(list(value) if isinstance(value, tuple) else value)
