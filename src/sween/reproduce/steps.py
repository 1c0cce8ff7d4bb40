"""The steps of a plan: train, weigh, certify, attack. Each can be interrupted and resumed."""

import abc
import functools
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from sween.attack import AttackSettings, attack_dataset
from sween.data import Dataset, load_dataset, parse_indices
from sween.ensemble import ExitPolicy, LoadedEnsemble, load_ensemble, load_members, weigh
from sween.ensemble.early_exit import read_exit
from sween.ensemble.folder import new_ensemble, write_ensemble
from sween.models import count_flops, create_model
from sween.paths import AnyPath
from sween.records import read_rows
from sween.reproduce.plan import Candidate, Ensemble, Plan
from sween.reproduce.rates import (
    Work,
    attack_work,
    certification_work,
    training_work,
    weighing_work,
)
from sween.run_folder import read_config
from sween.runs import CertificationRun
from sween.runs.attack import AttackRun
from sween.runs.training import RECORDED_KEYS, TrainingRun, is_finished
from sween.sampling import CertifySettings
from sween.smoothing import SmoothedClassifier, certify_dataset
from sween.training import TrainConfig, make_configs, read_recipe, train_many
from sween.training.recipes import list_recipes


class Workspace:
    """Where a plan is carried out: folders, data and device.

    Args:
        plan: with the noise levels to work on.
        recipe: value of `--recipe`.
        out: folder of everything that is made; plans share what they have in common.
        data_root: of the data set.
        devices: of one kind; training and weighing use the first.
        quiet: no progress display.

    Example:
        See `steps_of`.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        recipe: str,
        out: AnyPath,
        data_root: AnyPath | None = None,
        devices: Sequence[torch.device] = (torch.device("cpu"),),
        quiet: bool = False,
    ) -> None:
        self.plan, self.recipe, self.out = plan, recipe, Path(out)
        self.data_root, self.devices, self.quiet = data_root, devices, quiet

    @functools.cached_property
    def dataset(self) -> Dataset:
        return load_dataset(self.plan.dataset, self.data_root, image_size=self.plan.image_size)

    def training(self, candidate: Candidate, sigma: float) -> Path:
        """The run folder of a candidate, which plans with the same recipe share."""
        recipe = self.plan.recipe_of(candidate, self.recipe, sigma)
        shipped = recipe in list_recipes()
        name = (recipe if shipped else Path(recipe).stem).removesuffix(f"-sigma{sigma:.2f}")
        name = name.replace("/", "-")
        return self.out / "training" / f"{name}-sigma{sigma:.2f}" / candidate.folder

    def config(self, candidate: Candidate, sigma: float) -> TrainConfig:
        """The training options of a candidate."""
        recipe = read_recipe(self.plan.recipe_of(candidate, self.recipe, sigma))
        # A recipe may list candidates of its own; the plan's replace them.
        options = {"dataset": self.plan.dataset, "sigma": sigma}
        (config,) = make_configs(recipe, options, archs=[candidate.arch], seeds=[candidate.seed])
        return config

    def ensemble(self, ensemble: Ensemble, method: str, sigma: float) -> Path:
        return self._of(sigma, "ensembles") / f"{ensemble.name}-{method}"

    def certificates(self, sigma: float) -> Path:
        return self._of(sigma, "certificates")

    def recorded(self, sigma: float, *, held_out: bool = False) -> Path:
        """The certificates of the largest ensemble alone."""
        return self._of(sigma, "held-out" if held_out else "record")

    def attacked(self, model: str, sigma: float) -> Path:
        return self._of(sigma, "attacks") / model

    def _of(self, sigma: float, kind: str) -> Path:
        return self.out / kind / f"{self.plan.shared}-{self.recipe}-sigma{sigma:.2f}"

    def runs(self, ensemble: Ensemble, sigma: float) -> list[Path]:
        """The run folders of an ensemble's members."""
        return [self.training(self.plan.named[name], sigma) for name in ensemble.members]

    def positions(self, indices: str | None, every: int | None) -> list[int]:
        size = len(self.dataset.test)
        return parse_indices(indices=indices, every=every, everything=False, size=size)

    @functools.cached_property
    def multiply_adds(self) -> dict[str, float]:
        """Of one forward pass of each candidate, by its name."""
        shape, classes = self.dataset.image_shape, self.dataset.num_classes
        sizes = {
            arch: float(
                count_flops(create_model(arch, num_classes=classes, image_shape=shape), shape)
            )
            for arch in {one.arch for one in self.plan.candidates}
        }
        return {name: sizes[one.arch] for name, one in self.plan.named.items()}


class Step(abc.ABC):
    """A part of a plan that is done, or can be resumed.

    Attributes:
        name: for people.
        resumes: whether an interrupted step keeps what it has done.

    Example:
        See `steps_of`.
    """

    name: str
    resumes = True

    @abc.abstractmethod
    def work(self) -> Work:
        """How much there is to do, and how much of it was done before."""

    @abc.abstractmethod
    def is_done(self) -> bool:
        """Whether it is complete, with the settings of the plan and of the networks at hand."""

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

    def work(self) -> Work:
        total = done = seconds = 0.0
        images = len(self.space.dataset.train)
        for name, candidate in self.space.plan.named.items():
            config = self.space.config(candidate, self.sigma)
            folder = self.space.training(candidate, self.sigma)
            own = self.space.multiply_adds[name]
            passes = [config.passes_at(epoch) for epoch in range(config.epochs)]
            total += training_work(own, images=images, copies=sum(passes), epochs=1)
            if TrainingRun.is_at(folder):
                epochs = [row.seconds for row in TrainingRun.read(folder).metrics]
                trained = sum(passes[: len(epochs)])
                done += training_work(own, images=images, copies=trained, epochs=1)
                # All train at once, each counts the time. The first epoch also compiles, which
                # would make the others seem longer than they are.
                steady = statistics.mean(epochs[1:] or epochs or [0.0])
                seconds = max(seconds, len(epochs) * steady)
        return Work("train", total, done, seconds)

    def is_done(self) -> bool:
        for candidate in self.space.plan.candidates:
            folder = self.space.training(candidate, self.sigma)
            if not TrainingRun.is_at(folder) or not is_finished(folder):
                return False
            content = TrainingRun.read(folder).config.content
            options = {key: own for key, own in content.items() if key not in RECORDED_KEYS}
            if TrainConfig.from_dict(options) != self.space.config(candidate, self.sigma):
                return False
        return True

    def run(self) -> None:
        space, sigma = self.space, self.sigma
        train_many(
            [space.config(one, sigma) for one in space.plan.candidates],
            space.dataset,
            [space.training(one, sigma) for one in space.plan.candidates],
            device=space.devices[0],
            quiet=space.quiet,
        )


class WeighStep(Step):
    """Solve for the weights of one ensemble by one method."""

    resumes = False

    def __init__(self, space: Workspace, ensemble: Ensemble, method: str, sigma: float) -> None:
        self.space, self.ensemble, self.method, self.sigma = space, ensemble, method, sigma
        self.name = f"solve {method} weights of {ensemble.name} at sigma {sigma:.2f}"
        self.folder = space.ensemble(ensemble, method, sigma)

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
        members = load_members(runs).manifests
        wanted = {
            "method": self.method,
            "samples": self.space.plan.weigh.samples,
            "seed": 0,
            "fingerprints": [manifest.fingerprint for manifest in members],
        }
        return all(known.get(name) == value for name, value in wanted.items())

    def run(self) -> None:
        runs = self.space.runs(self.ensemble, self.sigma)
        with new_ensemble(self.folder) as building:
            loaded = load_members(runs).to(self.space.devices[0])
            solution = weigh(
                loaded,
                self.space.dataset,
                method=self.method,
                samples=self.space.plan.weigh.samples,
                quiet=self.space.quiet,
            )
            write_ensemble(loaded, runs, solution, building)


class CertifyStep(Step):
    """Certify all members, ensembles and exits at one noise level, in one pass."""

    def __init__(self, space: Workspace, sigma: float) -> None:
        self.space, self.sigma = space, sigma
        self.folder = space.certificates(sigma)
        assert space.plan.certify is not None
        self.plan = space.plan.certify
        self.name = f"certify {space.plan.whole.name} at sigma {sigma:.2f}"

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
        return Work("certify", total, done, sum(seconds.values()))

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
        return CertifySettings(n0=self.plan.n0, n=self.plan.n, alpha=self.plan.alpha)

    def classifier(self) -> SmoothedClassifier:
        """The ensemble of all candidates, with everything that is certified in the same pass."""
        plan = self.space.plan
        loaded = self._loaded(plan.whole, plan.weigh.methods[0])
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
            weightings=dict(self._weightings(loaded)),
            levels=self.space.dataset.test.white,
        )

    def _exits(self) -> list[ExitPolicy]:
        threshold, alpha = self.plan.threshold(self.sigma), self.plan.exit_alpha
        return [read_exit(text, threshold=threshold, alpha=alpha) for text in self.plan.exits]

    def _loaded(self, ensemble: Ensemble, method: str) -> LoadedEnsemble:
        return load_ensemble(self.space.ensemble(ensemble, method, self.sigma))

    def _weightings(self, whole: LoadedEnsemble) -> Iterator[tuple[str, tuple[float, ...]]]:
        """The other ensembles and methods as weights of all candidates, 0 for those left out."""
        plan = self.space.plan
        for ensemble, method in plan.solutions:
            if (ensemble, method) == (plan.whole, plan.weigh.methods[0]):
                continue
            own = self._loaded(ensemble, method)
            weights = dict(zip(ensemble.members, own.weights.tolist(), strict=True))
            yield (
                weighting_name(ensemble.name, method, plan),
                tuple(weights.get(name, 0.0) for name in plan.whole.members),
            )

    def is_done(self) -> bool:
        plan = self.space.plan
        folders = [self.space.ensemble(*solution, self.sigma) for solution in plan.solutions]
        if not all((folder / "config.toml").is_file() for folder in (self.folder, *folders)):
            return False
        run = CertificationRun.read(self.folder)
        config, loaded = run.config, self._loaded(plan.whole, plan.weigh.methods[0])
        weightings = {name: own for name, own in config.weightings.items() if name != config.model}
        return (
            len(run.rows) == config.rows
            and config.fingerprint == loaded.fingerprint
            and list(config.indices) == self.positions
            and config.settings == self.settings
            and weightings == dict(self._weightings(loaded))
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
        self.folder = space.recorded(sigma, held_out=held_out)
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
        if self.held_out:
            # Another seed: noise is keyed by position, and votes that choose a noise level must not
            # share theirs with the votes that are then reported.
            return CertifySettings(n=self.record.held_out_n, alpha=self.plan.alpha, seed=1)
        return CertifySettings(
            n=self.record.n,
            alpha=self.plan.alpha,
            sampling=self.record.sampling,
            tolerance=self.record.tolerance,
        )

    def work(self) -> Work:
        """Of n votes on each image, of which `tolerance` and exits need fewer."""
        passes, samples = sum(self.space.multiply_adds.values()), self.settings.n0 + self.settings.n
        image = certification_work(passes, images=1, samples=samples)
        rows = _rows(self.folder / "certificates.jsonl")
        seconds = sum(float(row["seconds"]) for row in rows)
        return Work("certify", len(self.positions) * image, len(rows) * image, seconds)

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
        plan = self.space.plan
        loaded = self._loaded(plan.whole, plan.weigh.methods[0])
        return SmoothedClassifier(
            loaded.to(self.space.devices[0]),
            sigma=loaded.sigma,
            num_classes=loaded.num_classes,
            name=plan.whole.name,
            exit=self._exit,
            levels=self.space.dataset.test.white,
        )

    @property
    def _exit(self) -> ExitPolicy:
        threshold, alpha = self.plan.threshold(self.sigma), self.plan.exit_alpha
        return read_exit(self.record.exit, threshold=threshold, alpha=alpha)

    def is_done(self) -> bool:
        plan = self.space.plan
        method = plan.weigh.methods[0]
        ensemble = self.space.ensemble(plan.whole, method, self.sigma)
        if not all((folder / "config.toml").is_file() for folder in (self.folder, ensemble)):
            return False
        run = CertificationRun.read(self.folder)
        return (
            len(run.rows) == run.config.rows
            and run.config.fingerprint == self._loaded(plan.whole, method).fingerprint
            and list(run.config.indices) == self.positions
            and run.config.settings == self.settings
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
        return Work("attack", len(self.positions) * image, len(images) * image, seconds)

    def is_done(self) -> bool:
        if not (self.folder / "config.toml").is_file():
            return False
        run = AttackRun.read(self.folder)
        return (
            len(run.rows) == run.config.rows
            and run.config.fingerprint == self._loaded().fingerprint
            and list(run.config.indices) == self.positions
            and run.config.settings == self._settings
        )

    def _loaded(self) -> LoadedEnsemble:
        space, plan = self.space, self.space.plan
        named = {own.name: own for own in plan.ensembles}
        folder = space.ensemble(
            named.get(self.model, plan.whole), plan.weigh.methods[0], self.sigma
        )
        loaded = load_ensemble(folder)
        return loaded if self.model in named else loaded.alone(self.model)

    @property
    def _settings(self) -> AttackSettings:
        return AttackSettings(
            attack=self.plan.attack,
            eps=tuple(sorted(self.plan.eps)),
            samples=self.plan.samples,
            n=self.plan.n,
            batch_size=self.plan.batch_size,
        )

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
        attack_dataset(
            loaded,
            space.dataset,
            self.positions,
            self._settings,
            self.folder,
            classifier=classifier,
            quiet=space.quiet,
        )


def weighting_name(ensemble: str, method: str, plan: Plan) -> str:
    """Under which an ensemble's weights by a method are certified."""
    return ensemble if method == plan.weigh.methods[0] else f"{ensemble}-{method}"


def _rows(path: Path) -> list[dict[str, Any]]:
    return read_rows(path) if path.is_file() else []
