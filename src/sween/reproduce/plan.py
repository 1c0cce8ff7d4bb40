"""Plans: what to train, weigh, certify and attack for one table of the paper, as a TOML file.

title = "Standard training on CIFAR-10"
dataset = "cifar10"
sigmas = [0.5, 0.25, 1.0]
table = "certified"

[recipes]                     # --recipe NAME: how the candidates are trained
fast = "fast/gaussian"

[[candidate]]
arch = "resnet20"
seed = 0

[[candidate]]                 # with a recipe of its own, and another one at sigma 0.50
arch = "resnet110"
recipes = { fast = "fast/gaussian-light-decay" }
recipes_by_sigma = { "0.50" = { fast = "fast/gaussian-deep" } }

[[ensemble]]                  # of candidates, by architecture or architecture-seedN
name = "SWEEN-3"
members = ["resnet20", "resnet26", "resnet32"]

[weigh]
methods = ["sgd", "convex"]   # the first one is certified under the ensemble's own name

[certify]                     # options of `sween certify`
indices = "888:1888"
exits = ["none", "exact", "paper"]

[attack]                      # options of `sween attack`, and what to attack
models = ["SWEEN-3", "resnet20"]
eps = [0.25, 0.5]

[record]                      # the largest ensemble alone, on all test images
sampling = "tolerance"
tolerance = 0.005
exit = "exact"
"""

import dataclasses
import difflib
import functools
import itertools
import re
import tomllib
import typing
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

from sween.bounds.radius import smallest_certifiable_n
from sween.engine import PRECISIONS
from sween.ensemble import METHODS, ExitPolicy
from sween.ensemble.early_exit import read_exit
from sween.errors import BadInput, SmallSampleWarning, UnknownName, refuse_duplicates
from sween.paths import AnyPath
from sween.runs.attack_settings import AttackSettings
from sween.sampling import CertifySettings
from sween.sampling.settings import ALPHA, N
from sween.training.recipes import configs_folder, list_recipes

TABLES = ("certified", "adaptive", "attacks", "costs", "record")

Section = TypeVar("Section")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Candidate:
    """A network to train.

    Attributes:
        arch: its architecture.
        seed: of its training.
        recipes: its own recipe for some values of `--recipe`.
        recipes_by_sigma: the same for some noise levels, such as 0.50, where they win.
    """

    arch: str
    seed: int = 0
    recipes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    recipes_by_sigma: Mapping[str, Mapping[str, str]] = dataclasses.field(default_factory=dict)

    @property
    def folder(self) -> str:
        """As `sween train` names it."""
        return f"{self.arch.rpartition(':')[2]}-seed{self.seed}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ensemble:
    """Candidates that are weighed together, by the names of `Plan.member_names`."""

    name: str
    members: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Weigh:
    """How weights are solved: the first method's are the ensemble's own."""

    methods: tuple[str, ...] = (METHODS[0],)
    samples: int = 100


@dataclasses.dataclass(frozen=True, kw_only=True)
class Certify:
    """Which test images are certified, and how.

    `exit_thresholds` are by sigma. With the precision int8 the networks' weights are rounded to 8
    bits first.
    """

    indices: str | None = None
    every: int | None = None
    n0: int = 100
    n: int = N
    alpha: float = ALPHA
    exits: tuple[str, ...] = ("none",)
    exit_threshold: float = ExitPolicy.threshold
    exit_thresholds: Mapping[str, float] = dataclasses.field(default_factory=dict)
    exit_alpha: float = ExitPolicy.alpha
    precision: str = "auto"

    def threshold(self, sigma: float) -> float:
        """Of the paper's exit at a noise level."""
        return self.exit_thresholds.get(f"{sigma:.2f}", self.exit_threshold)

    def policy(self, exit: str, sigma: float) -> ExitPolicy:
        """An exit of this name at a noise level."""
        return read_exit(exit, threshold=self.threshold(sigma), alpha=self.exit_alpha)

    @property
    def settings(self) -> CertifySettings:
        """Of the sampling."""
        return CertifySettings(n0=self.n0, n=self.n, alpha=self.alpha)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attack:
    """Which models are attacked, at which noise level, and how."""

    models: tuple[str, ...]
    eps: tuple[float, ...]
    sigmas: tuple[float, ...] = ()
    indices: str | None = None
    every: int | None = None
    attack: str = AttackSettings.attack
    samples: int = AttackSettings.samples
    n: int = AttackSettings.n
    batch_size: int = AttackSettings.batch_size

    @property
    def settings(self) -> AttackSettings:
        """Of the attack."""
        return AttackSettings(
            attack=self.attack,
            eps=tuple(sorted(self.eps)),
            samples=self.samples,
            n=self.n,
            batch_size=self.batch_size,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Record:
    """How the largest ensemble is certified alone.

    Attributes:
        indices: test images, all by default.
        sampling: `fixed` or `tolerance`, as in `CertifySettings`.
        tolerance: of `tolerance`.
        n: votes for a bound, at most; alpha is that of `Certify`.
        exit: of the ensemble.
        held_out_n: votes on each image of the weight-solving split, on which the noise level for
            each radius is chosen, by their shares.
    """

    indices: str | None = None
    sampling: str = "fixed"
    tolerance: float | None = None
    n: int = N
    exit: str = "none"
    held_out_n: int = 10_000

    def settings(self, *, alpha: float, held_out: bool) -> CertifySettings:
        """Of the sampling, on test images or on the weight-solving split."""
        if held_out:
            # Another seed: noise is keyed by position, and votes that choose a noise level must not
            # share theirs with the votes that are then reported.
            return CertifySettings(n=self.held_out_n, alpha=alpha, seed=1)
        return CertifySettings(
            n=self.n, alpha=alpha, sampling=self.sampling, tolerance=self.tolerance
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """One table of the paper: which networks, ensembles, noise levels, images and attacks.

    Attributes:
        name: of the target.
        shared: name of the folders of its ensembles and certificates: that of its base, if any.
        title: of the table.
        dataset: name of the data set.
        sigmas: noise levels, in the order in which they are worked on.
        candidates: all networks; the largest ensemble has all of them.
        ensembles: from the smallest to the largest.
        recipes: recipe by the value of `--recipe`.
        table: which table is made of the results.
        published: name of the paper's table.
        image_size: of image folders.
        folder: of the data below `--data-root`, where it has one of that name.
        classes: how many the data must have, so that no other photos are taken for it.

    Example:
        See `read_plan`.
    """

    name: str
    shared: str
    title: str
    dataset: str
    sigmas: tuple[float, ...]
    candidates: tuple[Candidate, ...]
    ensembles: tuple[Ensemble, ...]
    recipes: Mapping[str, str]
    table: str = "certified"
    published: str | None = None
    image_size: int | None = None
    folder: str | None = None
    classes: int | None = None
    weigh: Weigh = dataclasses.field(default_factory=Weigh)
    certify: Certify | None = None
    attack: Attack | None = None
    record: Record | None = None

    @property
    def member_names(self) -> tuple[str, ...]:
        """Of the candidates, as an ensemble names its members."""
        archs = [one.arch for one in self.candidates]
        return tuple(
            one.folder if archs.count(one.arch) > 1 else one.arch.rpartition(":")[2]
            for one in self.candidates
        )

    @property
    def named(self) -> dict[str, Candidate]:
        """The candidates by their names."""
        return dict(zip(self.member_names, self.candidates, strict=True))

    @property
    def solutions(self) -> list[tuple[Ensemble, str]]:
        """Every ensemble with every method that solves for its weights."""
        return list(itertools.product(self.ensembles, self.weigh.methods))

    @property
    def in_integers(self) -> bool:
        """Whether the networks are rounded to 8 bits before they are certified."""
        return self.certify is not None and self.certify.precision == "int8"

    @property
    def whole(self) -> Ensemble:
        """The ensemble of all candidates, which the others are part of."""
        return self.ensembles[-1]

    def recipe_of(self, candidate: Candidate, recipe: str, sigma: float) -> str:
        """The recipe of a candidate: its own, else the plan's.

        If the recipe has a variant for the noise level, NAME-sigma1.00, it is that one.
        """
        own = {**self.recipes, **candidate.recipes}
        name = {**own, **candidate.recipes_by_sigma.get(f"{sigma:.2f}", {})}[recipe]
        special = f"{name.removesuffix('.toml')}-sigma{sigma:.2f}"
        known = special in list_recipes() or Path(f"{special}.toml").is_file()
        return special if known else name

    def at(self, *, recipe: str, sigmas: Sequence[float]) -> Self:
        """With some of its noise levels only; refuses others, and an unknown recipe."""
        if recipe not in self.recipes:
            raise UnknownName(f"recipe of {self.name}", recipe, tuple(self.recipes))
        for sigma in sigmas:
            if sigma not in self.sigmas:
                raise BadInput(
                    "`sigma`",
                    expected=f"one of {', '.join(f'{own:g}' for own in self.sigmas)}, as in "
                    f"the plan {self.name}",
                    got=f"{sigma:g}",
                    fix="choose one of them, or copy the plan and pass its file",
                )
        return dataclasses.replace(self, sigmas=tuple(dict.fromkeys(sigmas)) or self.sigmas)


def list_plans() -> dict[str, Path]:
    """The plans that ship with sween, by target.

    Example:
        >>> from sween.reproduce import list_plans
        >>> sorted(list_plans())[:3]
        ['adaptive', 'attacks', 'costs']
    """
    return {path.stem: path for path in sorted((configs_folder() / "reproduce").glob("*.toml"))}


def list_targets() -> dict[str, tuple[str, ...]]:
    """The targets that ship with sween, each with its plans, in the order of their work.

    Example:
        >>> from sween.reproduce import list_targets
        >>> list_targets()["figures"]
        ('standard', 'identical')
    """
    plans = list_plans()
    several = {
        "imagenet": ("imagenet", "imagenet-identical"),
        "imagenette": ("imagenette", "imagenette-identical"),
        "figures": ("standard", "identical"),  # whose tables the paper also shows as figures
        "all": _OF_THE_PAPER,
    }
    return {name: (name,) for name in plans} | {
        target: tuple(name for name in names if name in plans) for target, names in several.items()
    }


_OF_THE_PAPER = (
    *("standard", "adaptive", "identical", "macer", "costs", "attacks"),
    *("imagenet", "imagenet-identical", "imagenette", "imagenette-identical"),
)
"""The paper's tables, the most valuable first, and Imagenette in the place of ImageNet."""


def read_plan(target: AnyPath) -> Plan:
    """The plan of a target, or of a file of one's own.

    Raises:
        BadInput: there is no such target, or its plan is not valid.

    Example:
        >>> from sween.reproduce import read_plan
        >>> plan = read_plan("standard")
        >>> plan.dataset, plan.sigmas, [ensemble.name for ensemble in plan.ensembles]
        ('cifar10', (0.5, 0.25, 1.0), ['SWEEN-3', 'SWEEN-6'])
    """
    known, path = list_plans(), Path(target)
    if str(target) in known:
        path = known[str(target)]
    elif not path.is_file():
        nearest = difflib.get_close_matches(str(target), known, n=1)
        raise BadInput(
            "target",
            expected=f"one of {', '.join(list_targets())}, or the file of a plan",
            got=str(target),
            fix=f"did you mean {nearest[0]}?" if nearest else "choose one of them",
        )
    content, shared = _parse(path), path.stem
    if (base := content.pop("base", None)) is not None:
        inherited = _parse(_base(path, str(base), known))
        if "recipes" in content:  # they replace all of the base's
            for candidate in inherited.get("candidate", ()):
                candidate.pop("recipes", None)
                candidate.pop("recipes_by_sigma", None)
        content = inherited | content
        if not content.pop("own_folders", False):
            shared = str(base)
    return _plan(path, {"shared": shared, **content})


def _base(path: Path, base: str, known: Mapping[str, Path]) -> Path:
    """The plan that another one starts from: next to it, or one that ships with sween."""
    beside = path.parent / f"{base}.toml"
    if beside.is_file() and not beside.samefile(path):
        return beside
    if base not in known:
        raise UnknownName(f"{path}: base", base, tuple(known))
    return known[base]


def _parse(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: expected TOML, got {error}; see configs/reproduce/") from None


def _plan(path: Path, content: Mapping[str, Any]) -> Plan:
    where, fields = str(path), dict(content)
    fields["candidates"] = [
        _section(f"{where}: candidate", Candidate, one) for one in fields.pop("candidate", ())
    ]
    fields["ensembles"] = [
        _section(f"{where}: ensemble", Ensemble, one) for one in fields.pop("ensemble", ())
    ]
    kinds: dict[str, type[Any]] = {
        "weigh": Weigh,
        "certify": Certify,
        "attack": Attack,
        "record": Record,
    }
    for name, kind in kinds.items():
        if name in fields:
            fields[name] = _section(f"{where}: {name}", kind, fields[name])
    plan = _section(where, Plan, {"name": path.stem, **fields})
    _check(where, plan)
    return plan


def _section(where: str, kind: type[Section], content: object) -> Section:
    """A table of the file as a checked object."""
    if not isinstance(content, Mapping):
        raise BadInput(where, expected="a table", got=repr(content), fix="see configs/reproduce/")
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    hints = typing.get_type_hints(kind)
    for name in content:
        if name not in fields:
            raise UnknownName(f"{where}: option", name, tuple(fields))
    for name, field in fields.items():
        required = (
            field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        )
        if required and name not in content:
            raise BadInput(f"{where}: {name}", expected="a value", got="none", fix="add it")
    return kind(
        **{name: _value(f"{where}: {name}", hints[name], own) for name, own in content.items()}
    )


def _value(where: str, hint: Any, value: Any) -> Any:
    """A value of the file in the type that its field has."""
    origin, kinds = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        if isinstance(value, Sequence) and not isinstance(value, str):
            return tuple(_value(where, kinds[0], own) for own in value)
        raise BadInput(where, expected="a list", got=repr(value), fix="write [...]")
    if origin is Mapping:
        if isinstance(value, Mapping):
            return {name: _value(f"{where}.{name}", kinds[1], own) for name, own in value.items()}
        raise BadInput(where, expected="a table", got=repr(value), fix="see configs/reproduce/")
    if float in (hint, *kinds) and type(value) is int:
        return float(value)
    plain = [own for own in (hint, *kinds) if own in (str, int, float)]
    if plain and type(value) not in plain:
        names = {str: "text", int: "a whole number", float: "a number"}
        expected = " or ".join(names[own] for own in plain)
        raise BadInput(where, expected=expected, got=repr(value), fix="see configs/reproduce/")
    return value


def _check(where: str, plan: Plan) -> None:
    if plan.table not in TABLES:
        raise UnknownName(f"{where}: table", plan.table, TABLES)
    for name in ("sigmas", "candidates", "ensembles", "recipes"):
        if not getattr(plan, name):
            raise BadInput(f"{where}: {name}", expected="at least one", got="none", fix="add one")
    if any(sigma <= 0 for sigma in plan.sigmas):
        raise BadInput(
            f"{where}: sigmas",
            expected="noise levels above 0",
            got=", ".join(f"{sigma:g}" for sigma in plan.sigmas),
            fix="try 0.5",
        )
    refuse_duplicates(
        f"{where}: sigmas",
        [f"{sigma:.2f}" for sigma in plan.sigmas],
        expected="distinct noise levels to two decimals, by which folders are named",
        fix="drop one, or use two plans",
    )
    for sigma in plan.attack.sigmas if plan.attack else ():
        if sigma not in plan.sigmas:
            raise BadInput(
                f"{where}: attack.sigmas",
                expected=f"some of {', '.join(f'{own:g}' for own in plan.sigmas)}",
                got=f"{sigma:g}",
                fix="choose one of them",
            )
    _check_weighing(where, plan.weigh)
    refuse_duplicates(
        f"{where}: candidates",
        [one.folder for one in plan.candidates],
        expected="another architecture or seed for each",
        fix="give them different seeds",
    )
    names, known = plan.member_names, [own.name for own in plan.ensembles]
    refuse_duplicates(
        f"{where}: names of candidates and ensembles",
        [*names, *known],
        expected="distinct names",
        fix="rename one",
    )
    for ensemble in plan.ensembles:
        for member in ensemble.members:
            if member not in names:
                raise UnknownName(f"{where}: member of {ensemble.name}", member, names)
    _check_options_by_sigma(where, plan)
    _check_certification(where, plan)
    for model in plan.attack.models if plan.attack else ():
        if model not in (*names, *known):
            raise UnknownName(f"{where}: attack.models", model, (*names, *known))


def _check_weighing(where: str, weigh: Weigh) -> None:
    if not weigh.methods:
        raise BadInput(
            f"{where}: weigh.methods", expected="at least one", got="none", fix="add one"
        )
    for method in weigh.methods:
        if method not in METHODS:
            raise UnknownName(f"{where}: weigh.methods", method, METHODS)
    least = smallest_certifiable_n(ALPHA) if "acr" in weigh.methods else 1
    if weigh.samples < least:
        raise BadInput(
            f"{where}: weigh.samples",
            expected=f"at least {least}",
            got=weigh.samples,
            fix=f"write samples = {Weigh.samples}",
        )


def _check_settings(where: str, plan: Plan) -> None:
    """Of the sampling, the exits and the attack: whether they can be made."""
    certify, record = plan.certify, plan.record
    assert certify is not None
    exits = [("certify.exits", text) for text in certify.exits]
    if record is not None:
        if record.sampling not in ("fixed", "tolerance"):
            raise UnknownName(f"{where}: record.sampling", record.sampling, ("fixed", "tolerance"))
        exits.append(("record.exit", record.exit))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SmallSampleWarning)  # it comes with the certificates
        _make(f"{where}: certify", lambda: certify.settings)
        for (name, text), sigma in itertools.product(exits, plan.sigmas):
            _make(f"{where}: {name}", functools.partial(certify.policy, text, sigma))
        if record is not None:
            settings = functools.partial(record.settings, alpha=certify.alpha)
            _make(f"{where}: record", functools.partial(settings, held_out=False))
            _make(f"{where}: record.held_out_n", functools.partial(settings, held_out=True))
        if plan.attack is not None:
            attack = plan.attack
            _make(f"{where}: attack", lambda: attack.settings)


def _make(where: str, make: Callable[[], object]) -> None:
    try:
        make()
    except BadInput as error:
        raise BadInput(f"{where}: {error}") from None


def _check_options_by_sigma(where: str, plan: Plan) -> None:
    """A noise level or recipe that is written otherwise would silently not apply."""
    tables: dict[str, Mapping[str, object]] = {
        f"recipes_by_sigma of {one.folder}": one.recipes_by_sigma for one in plan.candidates
    }
    if plan.certify is not None:
        tables["certify.exit_thresholds"] = plan.certify.exit_thresholds
    for name, table in tables.items():
        for sigma in table:
            if not re.fullmatch(r"\d+\.\d\d", sigma):
                raise BadInput(
                    f"{where}: {name}: expected noise levels with two decimals, got {sigma!r}; "
                    'write "0.50"'
                )
    for one in plan.candidates:
        for recipe in (*one.recipes, *itertools.chain(*one.recipes_by_sigma.values())):
            if recipe not in plan.recipes:
                raise UnknownName(f"{where}: recipe of {one.folder}", recipe, tuple(plan.recipes))


def _check_certification(where: str, plan: Plan) -> None:
    """Everything that is certified at a noise level comes from one pass over all candidates."""
    if (plan.certify is None) != (plan.table == "costs"):
        raise BadInput(
            f"{where}: certify",
            expected='a [certify] table, except for table = "costs"',
            got="none" if plan.certify is None else "one",
            fix="add or drop it",
        )
    if (plan.record is not None) != (plan.table == "record"):
        raise BadInput(
            f"{where}: record",
            expected='a [record] table if and only if table = "record"',
            got="none" if plan.record is None else "one",
            fix="add or drop it",
        )
    if plan.certify is None:
        return
    if plan.certify.precision not in PRECISIONS:
        raise UnknownName(f"{where}: certify.precision", plan.certify.precision, PRECISIONS)
    if plan.in_integers and plan.attack is not None:
        raise BadInput(
            f"{where}: attack",
            expected="none with the precision int8",
            got="one",
            fix="attack the networks in a plan of their own",
        )
    names = plan.member_names
    if set(plan.whole.members) != set(names):
        raise BadInput(
            f"{where}: {plan.whole.name}",
            expected=f"the last ensemble to have all candidates: {', '.join(names)}",
            got=", ".join(plan.whole.members),
            fix="put the largest ensemble last, and drop candidates that it does not have",
        )
    if not plan.certify.exits:
        raise BadInput(
            f"{where}: certify.exits", expected="at least one", got="none", fix='write ["none"]'
        )
    _check_settings(where, plan)
    if (plan.certify.indices is None) == (plan.certify.every is None):
        raise BadInput(
            f"{where}: certify",
            expected="either indices or every",
            got="neither" if plan.certify.indices is None else "both",
            fix='write indices = "0:100"',
        )
