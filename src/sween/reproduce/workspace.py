"""Where a plan is carried out: folders, data and device."""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from sween.data import Dataset, load_dataset, parse_indices
from sween.engine import prepared_ensemble
from sween.ensemble import LoadedEnsemble, WeightedEnsemble, load_ensemble, load_members
from sween.errors import BadInput
from sween.models import count_flops, create_model
from sween.models.source_code import source_digest
from sween.paths import AnyPath
from sween.reproduce.plan import Candidate, Ensemble, Plan
from sween.runs.training import CODE_KEY, TEACHER_KEY
from sween.training import TrainConfig, make_configs, read_recipe
from sween.training.recipes import list_recipes
from sween.training.teacher import load_teacher
from sween.training.training_images import augmented, describe_images


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
        self._described = dict[str | None, dict[str, Any]]()
        self.unfinished = set[Path]()
        """What steps that are not done make: tables and figures leave it out."""

    @functools.cached_property
    def dataset(self) -> Dataset:
        loaded = load_dataset(self.plan.dataset, self._data(), image_size=self.plan.image_size)
        if self.plan.classes not in (None, loaded.num_classes):
            raise BadInput(
                str(self._data()),
                expected=f"the {self.plan.classes} classes of the plan {self.plan.name}",
                got=f"{loaded.num_classes}",
                fix="pass that data set as `data_root`",
            )
        return loaded

    def _data(self) -> AnyPath | None:
        """The plan's own folder of the data root, if there is one: a root may hold several sets."""
        if self.data_root is None or self.plan.folder is None:
            return self.data_root
        own = Path(self.data_root) / self.plan.folder
        return own if own.is_dir() else self.data_root

    def training_images(self, config: TrainConfig) -> dict[str, Any]:
        """What a training run with this config records about its images.

        Nothing if they do not fit in memory: reading ImageNet takes long. The trainer compares them
        when it resumes.
        """
        if not self.dataset.train.fits_in_memory:
            return {}
        dataset = augmented(self.dataset, config)
        if dataset.augmentation not in self._described:
            self._described[dataset.augmentation] = describe_images(dataset)
        return self._described[dataset.augmentation]

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
        configs = make_configs(recipe, options, archs=[candidate.arch], seeds=[candidate.seed])
        if any(config != configs[0] for config in configs):
            raise BadInput(
                f"recipe of {candidate.folder}",
                expected="one whose candidates differ in architecture and seed alone, which the "
                "plan names",
                got=f"{len(configs)} different ones",
                fix="write a recipe for each of them",
            )
        return configs[0]

    def recorded(self, candidate: Candidate, sigma: float) -> dict[str, Any]:
        """What a training run of a candidate records besides its options, as far as is known.

        Its images, custom code and teacher.
        """
        config, dataset = self.config(candidate, sigma), self.dataset
        found = dict(self.training_images(config))
        model = create_model(
            config.arch, num_classes=dataset.num_classes, image_shape=dataset.image_shape
        )
        if (code := source_digest(model, [config.arch])) is not None:
            found[CODE_KEY] = code
        if (teacher := load_teacher(config, dataset)) is not None:
            found[TEACHER_KEY] = teacher.fingerprint
        return found

    def ensemble(self, ensemble: Ensemble, method: str, sigma: float) -> Path:
        return self._of(sigma, "ensembles") / f"{ensemble.name}-{method}"

    def certified(self, sigma: float) -> Path:
        """The largest ensemble as it is certified, with the weights of the first method."""
        folder = self.ensemble(self.plan.whole, self.plan.weigh.methods[0], sigma)
        return folder.with_name(f"{folder.name}-int8") if self.plan.in_integers else folder

    def certificates(self, sigma: float) -> Path:
        return self._of(sigma, "certificates")

    def record(self, sigma: float, *, held_out: bool = False) -> Path:
        """The certificates of the largest ensemble alone."""
        return self._of(sigma, "held-out" if held_out else "record")

    def attacked(self, model: str, sigma: float) -> Path:
        return self._of(sigma, "attacks") / model

    def _of(self, sigma: float, kind: str) -> Path:
        return self.out / kind / f"{self.plan.shared}-{self.recipe}-sigma{sigma:.2f}"

    def load_members(self, runs: Sequence[Path]) -> LoadedEnsemble:
        """The members of run folders; architectures that the plan names may be imported."""
        return load_members(runs, archs=self._archs)

    def load_ensemble(self, folder: Path) -> LoadedEnsemble:
        """An ensemble folder, likewise."""
        return load_ensemble(folder, archs=self._archs)

    @property
    def _archs(self) -> list[str]:
        return [candidate.arch for candidate in self.plan.candidates]

    def prepared(self, loaded: LoadedEnsemble) -> WeightedEnsemble:
        """Members as they are evaluated to solve for their weights."""
        copies = self.plan.weigh.samples * len(self.dataset.weights)
        return prepared_ensemble(loaded, evaluations=copies)

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
