"""Configuration of a training run."""

import dataclasses
import math
import typing
from collections.abc import Mapping
from typing import Any, Self

from sween.data.dataset import AUGMENTATIONS
from sween.errors import BadInput, UnknownName
from sween.runs.training import RECORDED_KEYS
from sween.training.image_weights import ImageWeighing
from sween.training.objectives import OBJECTIVES, ObjectiveOptions, PublishedAttack
from sween.training.radius_gains import MOST
from sween.training.schedules import SCHEDULES

STORES = ("float32", "float16")
OPTIMIZERS = ("sgd", "muon")

_MATRIX_RATE = 0.02

_ATTACK_OPTIONS = ("attack_from", "attack_steps", "attack_size")
_WEIGHING_OPTIONS = ("drop_below", "reweigh_from", "reweigh_every")
_REWEIGH_EVERY = 10
"""As published with `acr`."""

_VOTES = {"acr": 100, "consistency": 100, "catrs": 1_000}
"""As published with `acr`; `catrs` is published with 10,000."""

_WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    type(None): "nothing",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Everything that determines the trained weights, given the data and the machine.

    Attributes:
        dataset: name of the data set; see `load_dataset`.
        arch: name of the architecture; see `create_model`.
        sigma: noise level at which the network is to be certified, in units of [0,1] pixels.
        noise_factor: the noise of training, in multiples of sigma; by default 1. More noise
            trades accuracy for larger radii.
        method: objective.
        epochs: passes over the training images.
        batch_size: images per step; the network sees `batch_size * copies` noisy images.
        copies: noisy copies of each image; by default the objective's.
        optimizer: `sgd`, the default, or `muon`, which moves the weights of convolutions and linear
            layers but the last one by orthogonalised momentum, and all else as `sgd` does.
        learning_rate: peak of the schedule.
        matrix_rate: of `muon`: peak rate of those weights, of which each row keeps norm 1 on
            average; by default 0.02. It follows the schedule too.
        momentum: of SGD and Muon.
        nesterov: use Nesterov momentum.
        weight_decay: of SGD.
        decay_norms: whether weight decay also applies to batch-norm parameters and biases.
        schedule: of the learning rate: `constant`, `step`, `cosine` or `one-cycle`.
        milestones: epochs at which `step` multiplies the rate by 0.1.
        warmup: fraction of the run with a rising rate; by default 0.2 for `one-cycle` and
            `cosine` and 0 for the others.
        label_smoothing: of the cross-entropy; off by default.
        average: decay of an exponential moving average of the weights, which is saved instead of
            the final weights; 0 switches it off.
        regulariser: lambda of the objective; by default the one published for this sigma.
        regulariser_from: epoch from which lambda applies; by default 0, or the first drop of the
            rate where that is what was published for this method and sigma.
        temperature: of `temporal`; by default 1. What is remembered of an image is raised to the
            power of its inverse: below 1 it is sharpened, for larger radii of fewer images.
        radius_gain: weight each image's loss by how fast its radius grows with its votes, which
            favours images that the network is almost sure of. Probabilities of the true class above
            this one, such as 0.97, count as this one. By default all images have equal weights.
        radius_gain_from: epoch from which the weights apply; by default a quarter of the epochs. If
            it is 0, training collapses to the classes that the network learns first.
        attack_from: epoch from which the noise is attacked; by default the published share of the
            epochs.
        attack_steps: gradient steps of the attack, 0 for none; by default as published for sigma,
            so that `consistency` and `temporal` have none unless it is given.
        attack_size: length of a step, or radius of `catrs`, for [0,1]
            pixels; by default as published for sigma.
        drop_below: `acr` and `consistency` drop training images of which a smaller share of noisy
            copies is classified correctly at `reweigh_from`; 0 drops none; by default as published
            for sigma, so that `consistency` drops none unless it is given.
        reweigh_from: epoch from which they drop images and draw the others by their weight; by
            default the published share of the epochs.
        reweigh_every: epochs between two computations of these weights; 0 for equal weights; by
            default 10, as published for `acr`, and 0 for `consistency`.
        votes: noisy copies of each training image that decide what is dropped (by default
            100) and which the teacher of `catrs` classifies (1,000).
        teacher: of `catrs`: a trained network or ensemble, as a folder or the name of a zoo model.
            It is asked at its own noise level; a Gaussian one at sigma 0.25 was published.
        augmentation: of the training images; by default the data set's own. See `Dataset`.
        seed: of initial weights, order, augmentation and noise.
        store: number format of the saved weights; float16 rounds them, and the rounded weights
            are the ones that are weighed and certified.

    Example:
        >>> import sween
        >>> config = sween.TrainConfig(dataset="digits", arch="digits-mlp", sigma=0.5, epochs=10)
        >>> config.method, config.learning_rate, config.training_sigma
        ('gaussian', 0.1, 0.5)
    """

    dataset: str
    arch: str
    sigma: float
    noise_factor: float | None = None
    method: str = "gaussian"
    epochs: int = 100
    batch_size: int = 128
    copies: int | None = None
    optimizer: str | None = None
    learning_rate: float = 0.1
    matrix_rate: float | None = None
    momentum: float = 0.9
    nesterov: bool = True
    weight_decay: float = 5e-4
    decay_norms: bool = True
    schedule: str = "one-cycle"
    milestones: tuple[int, ...] = ()
    warmup: float | None = None
    label_smoothing: float = 0.0
    average: float = 0.0
    regulariser: float | None = None
    regulariser_from: int | None = None
    temperature: float | None = None
    radius_gain: float | None = None
    radius_gain_from: int | None = None
    attack_from: int | None = None
    attack_steps: int | None = None
    attack_size: float | None = None
    drop_below: float | None = None
    reweigh_from: int | None = None
    reweigh_every: int | None = None
    votes: int | None = None
    teacher: str | None = None
    augmentation: str | None = None
    seed: int = 0
    store: str = "float32"

    def __post_init__(self) -> None:
        self._check_types()
        if self.warmup is None:
            rises = self.schedule in ("one-cycle", "cosine")
            object.__setattr__(self, "warmup", 0.2 if rises else 0.0)
        for kind, name, known in (
            ("training method", self.method, OBJECTIVES),
            ("optimizer", self.optimizer, OPTIMIZERS),
            ("schedule", self.schedule, SCHEDULES),
            ("store", self.store, STORES),
            ("augmentation", self.augmentation, AUGMENTATIONS),
        ):
            if name is not None and name not in known:
                raise UnknownName(kind, name, known)
        self._check_numbers()
        self._check_milestones()
        self._check_applicable()
        self.options_at(self.epochs)  # refuses a sigma without published settings of the attack
        self.weighing  # noqa: B018 the same for dropped images
        self.regulariser_weight  # noqa: B018 refuses a sigma without a published lambda
        self.regulariser_start  # noqa: B018 refuses a published start where no rate drops

    def _check_types(self) -> None:
        for field in dataclasses.fields(self):
            kinds = typing.get_args(field.type) or (field.type,)
            value = getattr(self, field.name)
            if field.name == "milestones":
                fits = isinstance(value, tuple) and all(type(one) is int for one in value)
                expected = "a list of whole numbers"
            else:
                # 1 is a valid float; True is not a number.
                known = (*kinds, int) if float in kinds else kinds
                fits = type(value) in known or (float in kinds and isinstance(value, float))
                expected = " or ".join(_WORDS[kind] for kind in kinds)
            if not fits:
                raise BadInput(field.name, expected=expected, got=repr(value), fix="see configs/")

    def _check_numbers(self) -> None:
        # Otherwise the recipe of a long run, used for a short one, would leave out its main part.
        in_time = f"one of the epochs, from 0 to {self.epochs - 1}"
        ranges = {
            "sigma": (0 <= self.sigma < math.inf, "at least 0, in units of [0,1] pixels", "0.5"),
            "noise_factor": (
                self.noise_factor is None or 0 < self.noise_factor < math.inf,
                "a positive number",
                "1.1",
            ),
            "epochs": (self.epochs >= 1, "at least 1", "100"),
            "batch_size": (self.batch_size >= 1, "at least 1", "128"),
            "copies": (self.copies is None or self.copies >= 1, "at least 1", "2"),
            "learning_rate": (0 < self.learning_rate < math.inf, "a positive number", "0.1"),
            "matrix_rate": (
                self.matrix_rate is None or 0 < self.matrix_rate < math.inf,
                "a positive number",
                "0.02",
            ),
            "momentum": (0 <= self.momentum < 1, "in [0, 1)", "0.9"),
            "weight_decay": (0 <= self.weight_decay < math.inf, "at least 0", "5e-4"),
            "warmup": (0 <= self.warmup_share < 1, "in [0, 1)", "0.2"),
            "label_smoothing": (0 <= self.label_smoothing < 1, "in [0, 1)", "0"),
            "average": (0 <= self.average < 1, "in [0, 1)", "0.999"),
            "regulariser": (0 <= (self.regulariser or 0) < math.inf, "at least 0", "4"),
            "temperature": (
                self.temperature is None or 0 < self.temperature < math.inf,
                "a positive number",
                "0.8",
            ),
            "radius_gain": (
                self.radius_gain is None or 0.5 < self.radius_gain <= MOST,
                f"a probability above 0.5 and up to {MOST}",
                "0.97",
            ),
            "radius_gain_from": (
                0 <= (self.radius_gain_from or 0) < self.epochs,
                in_time,
                f"{max(1, self.epochs // 4)}",
            ),
            "regulariser_from": (0 <= (self.regulariser_from or 0) < self.epochs, in_time, "0"),
            "attack_from": (0 <= (self.attack_from or 0) < self.epochs, in_time, "0"),
            "attack_steps": ((self.attack_steps or 0) >= 0, "at least 0", "4"),
            "attack_size": (
                self.attack_size is None or 0 < self.attack_size < math.inf,
                "a positive number",
                "0.25",
            ),
            "drop_below": (0 <= (self.drop_below or 0) <= 1, "in [0, 1]", "0.4"),
            "reweigh_from": (0 <= (self.reweigh_from or 0) < self.epochs, in_time, "0"),
            "reweigh_every": ((self.reweigh_every or 0) >= 0, "at least 0", "10"),
            "votes": (self.votes is None or self.votes >= 1, "at least 1", "100"),
        }
        for name, (valid, expected, usual) in ranges.items():
            if not valid:
                raise BadInput(name, expected=expected, got=getattr(self, name), fix=f"try {usual}")

    def _check_milestones(self) -> None:
        ordered = list(self.milestones) == sorted(set(self.milestones))
        inside = all(0 < epoch < self.epochs for epoch in self.milestones)
        fits = bool(self.milestones) == (self.schedule == "step")
        if not (ordered and inside and fits):
            raise BadInput(
                "milestones",
                expected=f"increasing epochs between 1 and {self.epochs - 1} with the schedule "
                "step, none with others",
                got=f"{list(self.milestones)} with {self.schedule}",
                fix="the paper uses milestones 150 and 300 of 400 epochs",
            )

    def _check_applicable(self) -> None:
        """An option of another method would silently do nothing."""
        if self.matrix_rate is not None and self.optimizer != "muon":
            raise BadInput(
                "matrix_rate",
                expected="no value, as only muon uses it",
                got=f"{self.matrix_rate:g} with {self.optimizer or 'sgd'}",
                fix="leave it out, or choose `optimizer` muon",
            )
        objective = OBJECTIVES[self.method]
        for names, applies in (
            (_ATTACK_OPTIONS, objective.attack is not None),
            (_WEIGHING_OPTIONS, objective.weighs_images),
            (("votes",), objective.weighs_images or objective.taught),
            (("teacher",), objective.taught),
            (("temperature",), objective.remembers),
        ):
            for name in names:
                if getattr(self, name) is not None and not applies:
                    raise BadInput(
                        name,
                        expected=f"no value, as {self.method} does not use it",
                        got=getattr(self, name),
                        fix=f"leave out `{name}`, or choose another `method`",
                    )
        for name in ("regulariser", "regulariser_from"):
            if getattr(self, name) and not objective.regularisers:
                raise BadInput(
                    name,
                    expected=f"no value, as {self.method} has no regulariser",
                    got=getattr(self, name),
                    fix=f"leave out `{name}`, or choose another `method`",
                )
        if self.attack_steps is None and objective.attack is not None and not objective.attacks:
            for name in ("attack_from", "attack_size"):
                if getattr(self, name) is not None:
                    raise BadInput(
                        "attack_steps",
                        expected=f"a value with `{name}`, as {self.method} has none published",
                        got="none",
                        fix=f"pass `attack_steps`, or leave out `{name}`",
                    )
        asked = (self.drop_below, self.reweigh_every) != (None, None)
        if objective.weighs_images and not objective.attacks and not asked:
            for name in ("reweigh_from", "votes"):
                if getattr(self, name) is not None:
                    raise BadInput(
                        "drop_below",
                        expected=f"a value, or one of `reweigh_every`, with `{name}`, as "
                        f"{self.method} has neither published",
                        got="none",
                        fix=f"pass `drop_below`, or leave out `{name}`",
                    )
        if self.radius_gain is None and self.radius_gain_from is not None:
            raise BadInput(
                "radius_gain",
                expected="a probability with `radius_gain_from`",
                got="none",
                fix="pass `radius_gain`, or leave out `radius_gain_from`",
            )
        if self.radius_gain is not None and self.weighing is not None:
            raise BadInput(
                "radius_gain",
                expected="no value where images are dropped or drawn by weight",
                got=f"{self.radius_gain:g} with {self.method}",
                fix="set `drop_below` and `reweigh_every` to 0, or leave out `radius_gain`",
            )

    @property
    def radius_gain_start(self) -> int:
        """Epoch from which images are weighed by their gain in radius; `epochs` if never."""
        if self.radius_gain is None:
            return self.epochs
        own = self.radius_gain_from
        return max(1, self.epochs // 4) if own is None else own

    @property
    def training_sigma(self) -> float:
        """Noise level of the training images."""
        return self.sigma * (1.0 if self.noise_factor is None else self.noise_factor)

    @property
    def peak_matrix_rate(self) -> float:
        """Peak rate of the weights that `muon` moves."""
        return _MATRIX_RATE if self.matrix_rate is None else self.matrix_rate

    @property
    def warmup_share(self) -> float:
        """Fraction of the run with a rising learning rate."""
        assert self.warmup is not None  # set in __post_init__
        return self.warmup

    @property
    def noisy_copies(self) -> int:
        """Noisy copies of each image in a step."""
        return OBJECTIVES[self.method].copies if self.copies is None else self.copies

    @property
    def regulariser_weight(self) -> float:
        """lambda, as given or as published for this method and sigma."""
        if self.regulariser is not None:
            return self.regulariser
        published = OBJECTIVES[self.method].regularisers
        if not published:
            return 0.0
        if self.sigma not in published:
            raise BadInput(
                "regulariser",
                expected=f"a value, as {self.method} has no default for sigma {self.sigma}",
                got="none",
                fix=f"pass `regulariser`; known: {dict(published)}",
            )
        return published[self.sigma]

    @property
    def regulariser_start(self) -> int:
        """Epoch from which lambda applies."""
        if self.regulariser_from is not None:
            return self.regulariser_from
        if self.regulariser is not None or self.sigma not in OBJECTIVES[self.method].delayed_at:
            return 0
        if not self.milestones:
            raise BadInput(
                "regulariser_from",
                expected=f"an epoch: {self.method} at sigma {self.sigma:g} is published with a "
                "regulariser from the first drop of the learning rate on",
                got=f"none, and no drop in the schedule {self.schedule}",
                fix="pass `regulariser_from`, 0 for all epochs",
            )
        return self.milestones[0]

    def _published_attack(self, name: str) -> PublishedAttack:
        """The settings published for this method and sigma, of which one is wanted."""
        published = OBJECTIVES[self.method].attacks
        if self.sigma not in published:
            known = ", ".join(f"{sigma:g}" for sigma in published) or "none"
            raise BadInput(
                name,
                expected=f"a value, as {self.method} has none published for sigma {self.sigma:g}",
                got="none",
                fix=f"pass `{name}`; published for sigma: {known}",
            )
        return published[self.sigma]

    def _published_start(self, name: str) -> int:
        return round(self._published_attack(name).start * self.epochs)

    @property
    def _attacks_noise(self) -> bool:
        """Whether the noise is attacked at some epoch: as published, or as asked for."""
        objective = OBJECTIVES[self.method]
        wanted = bool(objective.attacks) if self.attack_steps is None else self.attack_steps > 0
        return objective.attack is not None and wanted

    @property
    def attack_start(self) -> int:
        """Epoch from which the noise is attacked; the number of epochs if it never is."""
        if not self._attacks_noise:
            return self.epochs
        own = self.attack_from
        return self._published_start("attack_from") if own is None else own

    @property
    def _attack(self) -> tuple[int, float]:
        """Steps and size of the attack on the noise, once it has started."""
        if not self._attacks_noise:
            return 0, 0.0
        if self.sigma == 0:
            raise BadInput("sigma", expected="noise to attack", got=0, fix="try 0.5")
        steps, size = self.attack_steps, self.attack_size
        steps = self._published_attack("attack_steps").steps if steps is None else steps
        size = self._published_attack("attack_size").size if size is None else size
        return steps, size

    @property
    def weighing(self) -> ImageWeighing | None:
        """When images are dropped and weighed, if ever."""
        objective = OBJECTIVES[self.method]
        if not objective.weighs_images:
            return None
        drop, every = self.drop_below, self.reweigh_every
        if not objective.attacks:  # nothing is published: only what is asked for
            drop, every = drop or 0.0, every or 0
        drop = self._published_attack("drop_below").drop_below if drop is None else drop
        every = _REWEIGH_EVERY if every is None else every
        if not drop and not every:
            return None
        start = self.reweigh_from
        start = self._published_start("reweigh_from") if start is None else start
        return ImageWeighing(start, drop, self.votes_per_image, every)

    @property
    def votes_per_image(self) -> int:
        """Noisy copies of each training image whose votes are counted."""
        return _VOTES[self.method] if self.votes is None else self.votes

    def options_at(self, epoch: int) -> ObjectiveOptions:
        """The objective's options at an epoch, counted from 0.

        Example:
            >>> import sween
            >>> config = sween.TrainConfig(
            ...     dataset="digits", arch="digits-mlp", sigma=0.5, method="consistency",
            ...     regulariser=10.0, regulariser_from=5,
            ... )
            >>> config.options_at(4).regulariser, config.options_at(5).regulariser
            (0.0, 10.0)
        """
        steps, size = self._attack if epoch >= self.attack_start else (0, 0.0)
        return ObjectiveOptions(
            sigma=self.training_sigma,
            regulariser=self.regulariser_weight if epoch >= self.regulariser_start else 0.0,
            temperature=1.0 if self.temperature is None else self.temperature,
            label_smoothing=self.label_smoothing,
            largest_probability=(self.radius_gain or 0.0)
            if epoch >= self.radius_gain_start
            else 0.0,
            attack_steps=steps,
            attack_size=size,
        )

    def passes_at(self, epoch: int) -> float:
        """What an epoch costs, in training steps on one noisy copy of each image.

        Example:
            >>> import sween
            >>> config = sween.TrainConfig(
            ...     dataset="cifar10", arch="resnet20", sigma=0.5, method="consistency",
            ... )
            >>> config.passes_at(0)
            2.0
        """
        steps, objective = self.options_at(epoch).attack_steps, OBJECTIVES[self.method]
        # A gradient for the noise alone takes two thirds of one for the weights.
        trained = 2 if objective.taught and steps else 1
        return self.noisy_copies * (trained + steps * 2 / 3)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """The config in a recipe or in a run's config.toml; refuses unknown keys.

        What a run records of its images and code is ignored: it can be a recipe for others.

        Example:
            >>> import sween
            >>> content = {"dataset": "digits", "arch": "digits-mlp", "sigma": 0.5}
            >>> sween.TrainConfig.from_dict(content).epochs
            100
        """
        known = {field.name for field in dataclasses.fields(cls)}
        content = {name: content[name] for name in content if name not in RECORDED_KEYS}
        for name in content:
            if name not in known:
                raise UnknownName("training option", name, known)
        milestones = content.get("milestones", ())
        if isinstance(milestones, list):
            milestones = tuple(milestones)
        return cls(**{**content, "milestones": milestones})

    def as_dict(self) -> dict[str, Any]:
        """Plain values for config.toml and the manifest.

        Example:
            >>> import sween
            >>> config = sween.TrainConfig(dataset="digits", arch="digits-mlp", sigma=0.5)
            >>> sween.TrainConfig.from_dict(config.as_dict()) == config
            True
        """
        values = dataclasses.asdict(self) | {"milestones": list(self.milestones)}
        if self.augmentation is None:  # runs of older versions do not have it
            del values["augmentation"]
        return values
