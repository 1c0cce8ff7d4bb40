"""The steps of a plan: train, weigh, certify, attack. Each can be interrupted and resumed."""

import abc
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from sween.attack import attack_dataset, refuse_alarms
from sween.data.dataset import ImageSet
from sween.ensemble import ExitPolicy, LoadedEnsemble, weigh
from sween.ensemble.folder import new_ensemble, write_ensemble
from sween.ensemble.quantize import quantize, write_quantized
from sween.errors import CheckpointError
from sween.models.byte_weights import round_weights
from sween.records import Certificate, read_rows
from sween.reproduce.plan import Ensemble, Plan
from sween.reproduce.rates import (
    Work,
    attack_work,
    certification_work,
    training_work,
    weighing_work,
)
from sween.reproduce.workspace import Workspace
from sween.run_folder import config_differences, read_config
from sween.runs import CertificationConfig, CertificationRun
from sween.runs.attack import AttackRun
from sween.runs.training import (
    DATA_KEYS,
    DRAWS_KEY,
    RECORDED_KEYS,
    TrainingRun,
    check_resumable,
    is_finished,
)
from sween.sampling import CertifySettings
from sween.smoothing import SmoothedClassifier, certify_dataset
from sween.training import TrainConfig, train_many

_NOT_OPTIONS = (*RECORDED_KEYS, "activation_ranges")

RANGE_IMAGES = 250
"""Training images on which the ranges of int8 are measured."""


class Step(abc.ABC):
    """A part of a plan that is done, or can be resumed.

    Attributes:
        name: for people.

    Example:
        See `steps_of`.
    """

    name: str

    @property
    @abc.abstractmethod
    def makes(self) -> tuple[Path, ...]:
        """The folders or files that it makes; plans that share them share the step."""

    @abc.abstractmethod
    def work(self) -> Work:
        """How much there is to do, and how much of it was done before."""

    @abc.abstractmethod
    def is_done(self) -> bool:
        """Whether it is complete, with the settings of the plan and of the networks at hand."""

    @abc.abstractmethod
    def check(self) -> None:
        """Refuse what is known to fail before any work is done, such as a folder of another run."""

    @abc.abstractmethod
    def run(self) -> None:
        """Do what is left; refuses folders with other settings."""


class Train(Step):
    """Train all candidates at one noise level, at once."""

    def __init__(self, space: Workspace, sigma: float) -> None:
        self.space, self.sigma = space, sigma
        self.name = f"train {self._by_recipe()} at sigma {sigma:.2f}"

    def _by_recipe(self) -> str:
        """All networks, those of one recipe together: a, b by fast/gaussian and c by ..."""
        plan, groups = self.space.plan, dict[str, list[str]]()
        for name, candidate in plan.named.items():
            recipe = plan.recipe_of(candidate, self.space.recipe, self.sigma)
            groups.setdefault(recipe, []).append(name)
        return " and ".join(f"{', '.join(own)} by {recipe}" for recipe, own in groups.items())

    @property
    def makes(self) -> tuple[Path, ...]:
        return tuple(self.space.training(one, self.sigma) for one in self.space.plan.candidates)

    def work(self) -> Work:
        total = done = seconds = unit = 0.0
        images = len(self.space.dataset.train)
        for name, candidate in self.space.plan.named.items():
            config = self.space.config(candidate, self.sigma)
            folder = self.space.training(candidate, self.sigma)
            own = self.space.multiply_adds[name]
            passes = [config.passes_at(epoch) for epoch in range(config.epochs)]
            total += training_work(own, images=images, copies=sum(passes), epochs=1)
            unit += training_work(own, images=images, copies=max(passes), epochs=1)
            if TrainingRun.is_at(folder):
                epochs = [row.seconds for row in TrainingRun.read(folder).metrics]
                trained = sum(passes[: len(epochs)])
                done += training_work(own, images=images, copies=trained, epochs=1)
                # All train at once, each counts the time. The first epoch also compiles, which
                # would make the others seem longer than they are.
                steady = statistics.mean(epochs[1:] or epochs or [0.0])
                seconds = max(seconds, len(epochs) * steady)
        return Work("train", total, done, seconds, unit)

    def is_done(self) -> bool:
        for candidate in self.space.plan.candidates:
            folder = self.space.training(candidate, self.sigma)
            if not TrainingRun.is_at(folder) or not is_finished(folder):
                return False
            content = TrainingRun.read(folder).config.content
            if _options(content) != self.space.config(candidate, self.sigma):
                return False
            recorded = self.space.recorded(candidate, self.sigma)
            if any(content.get(key, own) != own for key, own in recorded.items()):
                return False
        return True

    def check(self) -> None:
        """Refuse folders of other runs before any network is trained, at any noise level."""
        for candidate in self.space.plan.candidates:
            folder = self.space.training(candidate, self.sigma)
            config = self.space.config(candidate, self.sigma)
            if (folder / "config.toml").is_file():
                known = read_config(folder)
                content = config.as_dict() | self.space.recorded(candidate, self.sigma)
                # Images that do not fit in memory are compared by the trainer, when it resumes.
                content |= {
                    key: known[key]
                    for key in (DRAWS_KEY, *DATA_KEYS)
                    if key in known and key not in content
                }
                check_resumable(folder, content, self.space.dataset.class_names)

    def run(self) -> None:
        space, sigma = self.space, self.sigma
        train_many(
            [space.config(one, sigma) for one in space.plan.candidates],
            space.dataset,
            self.makes,
            device=space.devices[0],
            quiet=space.quiet,
        )


class WeighStep(Step):
    """Solve for the weights of one ensemble by one method."""

    def __init__(self, space: Workspace, ensemble: Ensemble, method: str, sigma: float) -> None:
        self.space, self.ensemble, self.method, self.sigma = space, ensemble, method, sigma
        self.name = f"solve {method} weights of {ensemble.name} at sigma {sigma:.2f}"
        self.folder = space.ensemble(ensemble, method, sigma)

    @property
    def makes(self) -> tuple[Path, ...]:
        return (self.folder,)

    def work(self) -> Work:
        total = weighing_work(
            sum(self.space.multiply_adds[name] for name in self.ensemble.members),
            images=len(self.space.dataset.weights),
            samples=self.space.plan.weigh.samples,
            method=self.method,
        )
        if not self.is_done():
            return Work("weigh", total)
        return Work("weigh", total, total, float(read_config(self.folder)["seconds"]))

    def is_done(self) -> bool:
        """Whether the folder holds these weights of these very members."""
        runs = self.space.runs(self.ensemble, self.sigma)
        if not (self.folder / "config.toml").is_file():
            return False
        if not all((run / "model.safetensors").is_file() for run in runs):
            return False
        known = read_config(self.folder)
        members = self.space.load_members(runs).manifests
        fingerprints = [manifest.fingerprint for manifest in members]
        wanted = {**self._settings, "fingerprints": fingerprints}
        return all(known.get(name) == value for name, value in wanted.items())

    def check(self) -> None:
        """Refuse weights of networks that are trained in another way, and other weights.

        New ones would replace them, and the certificates that were made of them would be refused
        only after all networks are trained.
        """
        if not (self.folder / "config.toml").is_file():
            return
        known = read_config(self.folder)
        found = [_options(own.training) for own in self.space.load_ensemble(self.folder).manifests]
        named = self.space.plan.named
        wanted = [self.space.config(named[name], self.sigma) for name in self.ensemble.members]
        if len(found) != len(wanted):
            self._refuse(f"one of {len(found)} networks, not {len(wanted)}")
        for name, own, other in zip(self.ensemble.members, found, wanted, strict=True):
            if own != other:
                changes = config_differences(own.as_dict(), other.as_dict())
                self._refuse(f"a {name} that was trained otherwise ({'; '.join(changes)})")
        for name, value in self._settings.items():
            if known.get(name) != value:
                self._refuse(f"weights that were solved otherwise ({name} {known.get(name)})")

    def _refuse(self, got: str) -> None:
        raise CheckpointError(
            str(self.folder),
            expected=f"{self.ensemble.name} of the plan {self.space.plan.name}",
            got=got,
            fix="choose another `out`, or delete the ensembles and certificates of that name",
        )

    @property
    def _settings(self) -> dict[str, Any]:
        return {"method": self.method, "samples": self.space.plan.weigh.samples, "seed": 0}

    def run(self) -> None:
        runs = self.space.runs(self.ensemble, self.sigma)
        if (self.folder / "config.toml").is_file():
            self._refuse("one of other networks, or of other weights")
        with new_ensemble(self.folder) as building:
            loaded = self.space.load_members(runs).to(self.space.devices[0])
            solution = weigh(
                loaded,
                self.space.dataset,
                method=self.method,
                samples=self.space.plan.weigh.samples,
                quiet=self.space.quiet,
                evaluated=self.space.prepared(loaded),
            )
            write_ensemble(loaded, runs, solution, building)


class RoundStep(Step):
    """Round the weights of the largest ensemble to 8 bits, and measure the ranges of int8."""

    def __init__(self, space: Workspace, sigma: float) -> None:
        self.space, self.sigma, self.folder = space, sigma, space.certified(sigma)
        self.weighed = space.ensemble(space.plan.whole, space.plan.weigh.methods[0], sigma)
        self.name = f"round {space.plan.whole.name} to 8 bits at sigma {sigma:.2f}"

    @property
    def makes(self) -> tuple[Path, ...]:
        return (self.folder,)

    def work(self) -> Work:
        passes = sum(self.space.multiply_adds.values())
        total = certification_work(passes, images=1, samples=RANGE_IMAGES)
        return Work("certify", total, total if self.is_done() else 0.0)

    def is_done(self) -> bool:
        """Whether the folder holds these very members, rounded, with their weights."""
        if not all((own / "config.toml").is_file() for own in (self.folder, self.weighed)):
            return False
        load = self.space.load_ensemble
        rounded, weighed = load(self.folder), load(self.weighed)
        origins = [own.training["activation_ranges"]["of"] for own in rounded.manifests]
        return origins == [own.fingerprint for own in weighed.manifests] and torch.equal(
            rounded.weights, weighed.weights
        )

    def check(self) -> None:
        """Nothing: it is made of another folder, and made anew if that changed."""

    def run(self) -> None:
        with new_ensemble(self.folder) as building:
            loaded = self.space.load_ensemble(self.weighed).to(self.space.devices[0])
            round_weights(loaded)
            images = min(RANGE_IMAGES, len(self.space.dataset.train))
            quantize(loaded, self.space.dataset, images=images, quiet=self.space.quiet)
            write_quantized(loaded, building, images=images, seed=0, as_bytes=True)


class CertifyStep(Step):
    """Certify all members, ensembles and exits at one noise level, in one pass."""

    def __init__(self, space: Workspace, sigma: float) -> None:
        self.space, self.sigma = space, sigma
        self.folder = space.certificates(sigma)
        assert space.plan.certify is not None
        self.plan = space.plan.certify
        self.name = f"certify {space.plan.whole.name} at sigma {sigma:.2f}"

    @property
    def makes(self) -> tuple[Path, ...]:
        return (self.folder,)

    @property
    def positions(self) -> list[int]:
        return self.space.positions(self.plan.indices, self.plan.every)

    def work(self) -> Work:
        passes, samples = sum(self.space.multiply_adds.values()), self.plan.n0 + self.plan.n
        image = certification_work(passes, images=1, samples=samples)
        rows = _rows(self.folder / "certificates.jsonl")
        seconds: dict[int, float] = {}
        for row in rows:  # each voter's row has the time of the whole pass
            seconds[row["index"]] = float(row["seconds"])
        total, done = len(self.positions) * image, len(seconds) * image
        return Work("certify", total, done, sum(seconds.values()), unit=image)

    def run(self) -> None:
        certify_dataset(
            self.classifier(),
            self.space.dataset,
            indices=self.positions,
            settings=self.settings,
            out=self.folder,
            devices=self.space.devices,
            quiet=self.space.quiet,
        )

    @property
    def settings(self) -> CertifySettings:
        return self.plan.settings

    def check(self) -> None:
        """Refuse certificates of other images or with other settings, and wrong positions."""
        positions, settings = self.positions, self.settings
        if not (self.folder / "config.toml").is_file():
            return
        config = CertificationRun.read(self.folder).config
        changes = config_differences(
            {**config.settings.as_dict(), "precision": config.content["precision"]},
            {**settings.as_dict(), "precision": self._precision(config)},
        )
        changes += ["indices"] if list(config.indices) != positions else []
        if changes:
            raise CheckpointError(
                f"{self.folder} holds certificates with other settings ({'; '.join(changes)})",
                fix="choose another `out`, or delete that folder",
            )

    def _precision(self, config: CertificationConfig) -> str:
        """What a run must have as its precision: its own, if it is that of the plan."""
        recorded, asked = str(config.content["precision"]), self.plan.precision
        found = {own.partition("+")[0].replace("tf32", "float32") for own in recorded.split(", ")}
        return recorded if asked == "auto" or found == {asked} else asked

    def classifier(self) -> SmoothedClassifier:
        """The ensemble of all candidates, with everything that is certified in the same pass."""
        plan, loaded = self.space.plan, self.space.load_ensemble(self.space.certified(self.sigma))
        policy, *others = self._exits()
        several = len(loaded.member_names) > 1
        return SmoothedClassifier(
            loaded.to(self.space.devices[0]),
            sigma=loaded.sigma,
            num_classes=loaded.num_classes,
            name=plan.whole.name,
            exit=policy,
            other_exits=others,
            member_names=loaded.member_names if several else None,
            weightings=dict(self._weightings()),
            levels=self.space.dataset.test.white,
            precision=self.plan.precision,
        )

    def _exits(self) -> list[ExitPolicy]:
        return [self.plan.policy(text, self.sigma) for text in self.plan.exits]

    def _weightings(self) -> Iterator[tuple[str, tuple[float, ...]]]:
        """The other ensembles and methods as weights of all candidates, 0 for those left out."""
        plan = self.space.plan
        for ensemble, method in plan.solutions:
            if (ensemble, method) == (plan.whole, plan.weigh.methods[0]):
                continue
            own = self.space.load_ensemble(self.space.ensemble(ensemble, method, self.sigma))
            weights = dict(zip(ensemble.members, own.weights.tolist(), strict=True))
            yield (
                weighting_name(ensemble.name, method, plan),
                tuple(weights.get(name, 0.0) for name in plan.whole.members),
            )

    def is_done(self) -> bool:
        plan = self.space.plan
        folders = [self.space.ensemble(*solution, self.sigma) for solution in plan.solutions]
        folders += [self.folder, self.space.certified(self.sigma)]
        if not all((folder / "config.toml").is_file() for folder in folders):
            return False
        run = CertificationRun.read(self.folder)
        config, loaded = run.config, self.space.load_ensemble(self.space.certified(self.sigma))
        weightings = {name: own for name, own in config.weightings.items() if name != config.model}
        return (
            len(run.rows) == config.rows
            and config.fingerprint == loaded.fingerprint
            and _same_images(config.content, self.space.dataset.test, self.positions)
            and list(config.indices) == self.positions
            and config.settings == self.settings
            and config.content["precision"] == self._precision(config)
            and weightings == dict(self._weightings())
            and {*config.exits.values()} == {"none", *(own.describe() for own in self._exits())}
        )


class RecordStep(CertifyStep):
    """Certify the largest ensemble alone at one noise level.

    On the plan's test images, or on the weight-solving split, where the noise level for each radius
    is chosen.
    """

    def __init__(self, space: Workspace, sigma: float, *, held_out: bool) -> None:
        super().__init__(space, sigma)
        assert space.plan.record is not None
        self.record, self.held_out = space.plan.record, held_out
        self.folder = space.record(sigma, held_out=held_out)
        images = "weight-solving" if held_out else "test"
        self.name = f"certify {space.plan.whole.name} on {images} images at sigma {sigma:.2f}"

    @property
    def positions(self) -> list[int]:
        if self.held_out:
            return list(range(len(self.space.dataset.weights)))
        size = len(self.space.dataset.test)
        return self.space.positions(self.record.indices or f"0:{size}", None)

    @property
    def settings(self) -> CertifySettings:
        return self.record.settings(alpha=self.plan.alpha, held_out=self.held_out)

    def work(self) -> Work:
        """Of n votes on each image, of which `tolerance` and exits need fewer."""
        passes, samples = sum(self.space.multiply_adds.values()), self.settings.n0 + self.settings.n
        image = certification_work(passes, images=1, samples=samples)
        rows = _rows(self.folder / "certificates.jsonl")
        seconds = sum(float(row["seconds"]) for row in rows)
        total = len(self.positions) * image
        evaluations = sum(int(row["member_evaluations"]) for row in rows)
        evaluated = evaluations * passes / len(self.space.plan.whole.members)
        return Work("certify", total, len(rows) * image, seconds, image, evaluated)

    def run(self) -> None:
        dataset = self.space.dataset
        certify_dataset(
            self.classifier(),
            dataset.weights if self.held_out else dataset,
            name=f"{dataset.name}-weights" if self.held_out else dataset.name,
            indices=self.positions,
            settings=self.settings,
            out=self.folder,
            devices=self.space.devices,
            quiet=self.space.quiet,
        )

    def classifier(self) -> SmoothedClassifier:
        loaded = self.space.load_ensemble(self.space.certified(self.sigma))
        return SmoothedClassifier(
            loaded.to(self.space.devices[0]),
            sigma=loaded.sigma,
            num_classes=loaded.num_classes,
            name=self.space.plan.whole.name,
            exit=self._exit,
            levels=self.space.dataset.test.white,
            precision=self.plan.precision,
        )

    @property
    def _images(self) -> ImageSet:
        return self.space.dataset.weights if self.held_out else self.space.dataset.test

    @property
    def _exit(self) -> ExitPolicy:
        return self.plan.policy(self.record.exit, self.sigma)

    def is_done(self) -> bool:
        ensemble = self.space.certified(self.sigma)
        if not all((folder / "config.toml").is_file() for folder in (self.folder, ensemble)):
            return False
        run = CertificationRun.read(self.folder)
        return (
            len(run.rows) == run.config.rows
            and run.config.fingerprint == self.space.load_ensemble(ensemble).fingerprint
            and _same_images(run.config.content, self._images, self.positions)
            and list(run.config.indices) == self.positions
            and run.config.settings == self.settings
            and run.config.content["precision"] == self._precision(run.config)
            and {*run.config.exits.values()} == {self._exit.describe()}
        )


class AttackStep(Step):
    """Attack one ensemble or candidate at one noise level."""

    def __init__(self, space: Workspace, model: str, sigma: float) -> None:
        self.space, self.model, self.sigma = space, model, sigma
        self.folder = space.attacked(model, sigma)
        self.name = f"attack {model} at sigma {sigma:.2f}"
        assert space.plan.attack is not None
        self.plan = space.plan.attack

    @property
    def makes(self) -> tuple[Path, ...]:
        return (self.folder,)

    @property
    def positions(self) -> list[int]:
        return self.space.positions(self.plan.indices, self.plan.every)

    def _members(self) -> Sequence[str]:
        for ensemble in self.space.plan.ensembles:
            if ensemble.name == self.model:
                return ensemble.members
        return (self.model,)

    def work(self) -> Work:
        passes = sum(self.space.multiply_adds[name] for name in self._members())
        image = attack_work(passes, images=1, samples=self.plan.samples, eps=len(self.plan.eps))
        rows = _rows(self.folder / "attacks.jsonl")
        images = {row["index"] for row in rows}
        seconds = sum(float(row["seconds"]) for row in rows)
        unit = min(self.plan.batch_size, len(self.positions)) * image
        return Work("attack", len(self.positions) * image, len(images) * image, seconds, unit)

    def is_done(self) -> bool:
        if not (self.folder / "config.toml").is_file():
            return False
        run = AttackRun.read(self.folder)
        return (
            len(run.rows) == run.config.rows
            and run.config.fingerprint == self._loaded().fingerprint
            and _same_images(run.config.content, self.space.dataset.test, self.positions)
            and list(run.config.indices) == self.positions
            and run.config.settings == self.plan.settings
            and not any(row.alarm for row in run.rows)  # fails each time, not only the first
        )

    def _loaded(self) -> LoadedEnsemble:
        space, plan = self.space, self.space.plan
        named = {own.name: own for own in plan.ensembles}
        folder = space.ensemble(
            named.get(self.model, plan.whole), plan.weigh.methods[0], self.sigma
        )
        loaded = self.space.load_ensemble(folder)
        return loaded if self.model in named else loaded.alone(self.model)

    def check(self) -> None:
        """Refuse wrong positions."""
        self.positions  # noqa: B018  which reads them

    def run(self) -> None:
        space, loaded = self.space, self._loaded()
        loaded.to(space.devices[0])
        classifier = SmoothedClassifier(
            loaded,
            sigma=loaded.sigma,
            num_classes=loaded.num_classes,
            name=loaded.name,
            levels=space.dataset.test.white,
        )
        outcomes = attack_dataset(
            loaded,
            space.dataset,
            self.positions,
            self.plan.settings,
            self.folder,
            classifier=classifier,
            certificates=self._certificates(),
            quiet=space.quiet,
        )
        refuse_alarms(outcomes, self.folder)

    def _certificates(self) -> dict[int, Certificate] | None:
        """Of the attacked images, from the plan's own certification; None if it has not all."""
        run = CertificationRun.read(self.space.certificates(self.sigma))
        if self.model not in run.config.voters:
            return None
        known = {row.index: row for row in run.of(self.model)}
        own = {index: known[index] for index in self.positions if index in known}
        return own if len(own) == len(self.positions) else None


def _options(content: Mapping[str, Any]) -> TrainConfig:
    """The training options in a run's config, or in the manifest of its checkpoint."""
    return TrainConfig.from_dict({k: own for k, own in content.items() if k not in _NOT_OPTIONS})


def weighting_name(ensemble: str, method: str, plan: Plan) -> str:
    """Under which an ensemble's weights by a method are certified."""
    return ensemble if method == plan.weigh.methods[0] else f"{ensemble}-{method}"


def _same_images(content: Mapping[str, Any], images: ImageSet, positions: Sequence[int]) -> bool:
    """Whether a run's config names these images; older ones do not name all of this."""
    own = {
        "data": images.pixels.fingerprint(),
        "labels": images.label_fingerprint(),
        "contents": images.pixels.contents(positions),
    }
    return all(content[key] == value for key, value in own.items() if value and key in content)


def _rows(path: Path) -> list[dict[str, Any]]:
    return read_rows(path) if path.is_file() else []
