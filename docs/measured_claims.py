"""The tables of docs/findings.md: what the paper claims, with our figure for each and its interval.

A claim that the rows no longer bear out raises: its sentence must be written anew.
"""

import dataclasses
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from measured_attacks import robust_leads
from measured_findings import (
    by_method,
    ensemble_rows,
    lead_over_best,
    lead_over_envelope,
    load,
    published,
    signed,
    training_time,
    two_class_gain,
)
from measured_identical import BY_NOISE, BY_SEED, EQUAL, eight

from sween.evaluation import (
    PairedInterval,
    average_certified_radius,
    bootstrap_interval,
    counted_radii,
    paired_bootstrap,
)
from sween.markdown import TEXT, markdown_table
from sween.records import Certificate, format_radius
from sween.report import MeasuredRun

SIGMAS = (0.25, 0.5, 1.0)
GOALS = {0.25: 0.59, 0.5: 0.71, 1.0: 0.66}
"""The ACR that we aimed at with SWEEN-6."""
GOAL_OF_EIGHT = 0.73
MOST_LOST = 0.002
"""Of ACR by Algorithm 1, with no more evaluations than in the paper."""


@dataclasses.dataclass(frozen=True)
class Claim:
    """A sentence with its figures; `holds` is whether the rows bear it out."""

    text: str
    ours: str
    holds: bool
    paper: str = "-"
    goal: str = "-"
    missed_by: str = "-"


def claims_table(claims: Iterable[Claim], *columns: str) -> str:
    """A line for each claim, with these of its figures."""
    lines = []
    for claim in claims:
        if not claim.holds:
            raise ValueError(f"the rows in results/ do not show that: {claim.text} ({claim.ours})")
        lines.append([claim.text, *(getattr(claim, column) for column in columns)])
    # Without an alignment the sentences wrap on the site; names and numbers stay on one line.
    heads = ["", *(column.replace("_", " ") for column in columns)]
    return markdown_table(heads, ["---", *[TEXT] * len(columns)], lines)


class _Measured:
    """The runs that claims are about, by what they are."""

    def __init__(self, results: Path, dataset: str) -> None:
        self.results = results
        self.dataset = dataset

    def sween(self, members: int, sigma: float, training: str = "gaussian") -> MeasuredRun:
        return load(self.results / f"{self.dataset}-sween{members}-{training}-sigma{sigma:.2f}")

    def eight(self, kind: str = BY_SEED) -> MeasuredRun:
        return eight(self.results, self.dataset, kind)

    def photos(self, name: str) -> MeasuredRun:
        return load(self.results / f"imagenette-{name}-gaussian-sigma0.50")

    def lead(self, run: MeasuredRun) -> PairedInterval:
        return lead_over_envelope(self.results / run.name)

    def hours(self, *networks: str) -> float:
        """Of training under MACER, one after another, all for the same number of epochs."""
        folder = self.results / "costs" / "costs-fast-sigma0.50"
        costs = [json.loads((folder / f"{name}.json").read_text()) for name in networks]
        return sum(float(row["seconds_per_epoch"]) * row["epochs"] / 3600 for row in costs)

    def training_seconds(self, training: str) -> float:
        """Of SWEEN-3 at sigma 0.50, without compilation."""
        return training_time(self.results / self.sween(3, 0.5, training).name)[1]


def _paper(table: str, sigma: float, model: str) -> float:
    (acr,) = (
        float(row["acr"])
        for row in published()[table]
        if (row["sigma"], row["model"]) == (sigma, model)
    )
    return acr


def _gain(table: str, sigma: float, model: str, over: str) -> float:
    return _paper(table, sigma, model) - _paper(table, sigma, over)


def _span(numbers: Iterable[float]) -> str:
    ordered = sorted(numbers)
    return f"{ordered[0]:+.3f} to {ordered[-1]:+.3f}"


def _spans(intervals: Iterable[PairedInterval]) -> str:
    ordered = sorted(intervals, key=lambda interval: abs(interval.difference))
    return f"{signed(ordered[0])} to {signed(ordered[-1])}"


def _exit(run: MeasuredRun, rule: str) -> Sequence[Certificate]:
    (rows,) = (
        rows
        for name, rows in run.models.items()
        if name.startswith(f"{run.ensemble}+") and rows[0].exit.split("(")[0] == rule
    )
    return rows


def _evaluations(rows: Sequence[Certificate]) -> float:
    return sum(row.member_evaluations for row in rows) / len(rows)


def _adaptive(sigma: float) -> tuple[float, float]:
    """ACR lost to Algorithm 1 and evaluations per image, in the paper."""
    rows = {row["exit"]: row for row in published()["adaptive"] if row["sigma"] == sigma}
    return rows["none"]["acr"] - rows["paper"]["acr"], rows["paper"]["evaluations"]


def held(results: Path, dataset: str) -> str:
    """What of the paper held up."""
    return claims_table(_held(_Measured(results, dataset)), "paper", "ours")


def _held(measured: _Measured) -> Iterator[Claim]:
    plain = [(size, sigma) for size in (3, 6) for sigma in SIGMAS]
    leads = [lead_over_best(measured.sween(size, sigma)) for size, sigma in plain]
    gains = [_gain("standard", sigma, f"SWEEN-{size}", f"UE-{size}") for size, sigma in plain]
    yield Claim(
        "SWEEN-3 and SWEEN-6 beat their best candidate at every σ",
        _spans(leads),
        all(lead.low > 0 for lead in leads),
        paper=_span(gains),
    )
    leads = [measured.lead(measured.sween(size, sigma)) for size, sigma in plain]
    yield Claim(
        "and the envelope of their candidates, the best of them at each radius",
        _spans(leads),
        all(lead.low > 0 for lead in leads),
    )
    lead = lead_over_best(measured.sween(3, 0.5, "macer"))
    gain = _gain("macer", 0.5, "SWEEN-3", "UE-3")
    yield Claim(
        "SWEEN-3 trained with MACER beats its best candidate (σ = 0.50)",
        signed(lead),
        lead.low > 0,
        paper=f"{gain:+.3f}",
    )
    lead = lead_over_best(measured.eight())
    yield Claim(
        "so do eight ResNet-110 that differ in their seed (σ = 0.50)",
        signed(lead),
        lead.low > 0,
        paper=f"{_gain('identical', 0.5, 'SWEEN', 'UE'):+.3f}",
    )
    photos = [lead_over_best(measured.photos(name)) for name in ("sween3", "identical")]
    gains = [
        _gain("imagenet", 0.5, "SWEEN-IN", "ResNet-50"),
        _gain("imagenet-identical", 0.5, "SWEEN", "UE"),
    ]
    yield Claim(
        "and, on photos, ResNet-18, 34 and 50, and three ResNet-50 (the paper: ImageNet, "
        "we: Imagenette)",
        ", ".join(map(signed, photos)),
        all(lead.low > 0 for lead in photos),
        paper=", ".join(f"{gain:+.3f}" for gain in gains),
    )
    sizes = [
        paired_bootstrap(*(ensemble_rows(measured.sween(size, sigma)) for size in (6, 3)))
        for sigma in SIGMAS
    ]
    yield Claim(
        "six members beat three at every σ",
        _spans(sizes),
        all(lead.low > 0 for lead in sizes),
        paper=_span(_gain("standard", sigma, "SWEEN-6", "SWEEN-3") for sigma in SIGMAS),
    )
    deep = paired_bootstrap(
        ensemble_rows(measured.sween(3, 0.5)), measured.sween(6, 0.5).models["resnet110"]
    )
    hours = {row["model"]: row["hours"] for row in published()["costs"]}
    theirs = 1 - hours["Ensemble"] / hours["ResNet-110"]
    saved = 1 - measured.hours("resnet20", "resnet26", "resnet32") / measured.hours("resnet110")
    yield Claim(
        "SWEEN-3 beats one ResNet-110 (σ = 0.50), and takes less training (under MACER)",
        f"{signed(deep)}, {100 * saved:.0f}% less",
        deep.low > 0 and saved > 0,
        paper=f"{_gain('standard', 0.5, 'SWEEN-3', 'ResNet-110'):+.3f}, {100 * theirs:.0f}% less",
    )
    for sigma in (0.5, 1.0):
        run = measured.sween(6, sigma)
        rows = _exit(run, "paper")
        lost, evaluations = _adaptive(sigma)
        own = paired_bootstrap(ensemble_rows(run), rows)
        yield Claim(
            f"Algorithm 1 saves evaluations of SWEEN-6 and loses little ACR (σ = {sigma:.2f})",
            f"{_saved(_evaluations(rows), rows)} for {signed(own, digits=4)}",
            own.difference <= MOST_LOST and _evaluations(rows) <= evaluations,
            paper=f"{_saved(evaluations, rows)} for {lost:+.3f}",
        )


def _saved(evaluations: float, rows: Sequence[Certificate]) -> str:
    return f"{100 * (1 - evaluations / (6 * rows[0].samples)):.0f}%"


def missed(results: Path, dataset: str) -> str:
    """What did not hold up, with what we aimed at."""
    return claims_table(_missed(_Measured(results, dataset)), "goal", "paper", "ours", "missed_by")


def _missed(measured: _Measured) -> Iterator[Claim]:
    for sigma in SIGMAS:
        run, paper = measured.sween(6, sigma), _paper("standard", sigma, "SWEEN-6")
        yield _below(
            f"ACR of SWEEN-6, σ = {sigma:.2f}", run, str(run.ensemble), paper, GOALS[sigma]
        )
    run, paper = measured.eight(), _paper("identical", 0.5, "SWEEN")
    whole = str(run.ensemble)
    for name, weights in ((whole, "`sgd`"), (f"{whole}{EQUAL}", "equal weights")):
        text = f"ACR of eight ResNet-110 ({weights}), σ = 0.50"
        yield _below(text, run, name, paper, GOAL_OF_EIGHT)
    run, paper = measured.sween(3, 0.5, "macer"), _paper("macer", 0.5, "SWEEN-3")
    yield _below("ACR of SWEEN-3 trained with MACER, σ = 0.50", run, "SWEEN-3", paper, paper)
    run = measured.sween(6, 0.25)
    rows = _exit(run, "paper")
    lost, evaluations = _adaptive(0.25)
    own = paired_bootstrap(ensemble_rows(run), rows)
    more = _evaluations(rows) - evaluations
    yield Claim(
        "ACR lost by Algorithm 1, σ = 0.25",
        signed(own, digits=4),
        own.difference > MOST_LOST,
        paper=f"{lost:+.3f}",
        goal=f"{MOST_LOST:+.3f}",
        missed_by=f"{own.difference - MOST_LOST:.4f}",
    )
    yield Claim(
        "and its evaluations per image",
        f"{_evaluations(rows):,.0f}",
        more > 0,
        paper=f"{evaluations:,.0f}",
        goal=f"{evaluations:,.0f}",
        missed_by=f"{more:,.0f}",
    )
    leads = [lead for lead in robust_leads(measured.results, "rand", "SWEEN-3") if lead.eps > 0]
    ahead, clear = sum(lead.mean > 0 for lead in leads), sum(lead.low > 0 for lead in leads)
    yield Claim(
        f"SWEEN-3 withstands AutoAttack more often than its candidates: leads of {len(leads)}",
        f"{ahead}, {clear} of them clear of 0",
        ahead < len(leads),
        paper=f"{len(leads)}",
        goal=f"{len(leads)}",
        missed_by=f"{len(leads) - ahead}",
    )


def _below(text: str, run: MeasuredRun, name: str, paper: float, goal: float) -> Claim:
    """An ACR below the paper's, with its own interval over the images."""
    rows = run.models[name]
    own = average_certified_radius(rows)
    low, high = bootstrap_interval(
        counted_radii(rows).radii, resamples=10_000, confidence=0.95, seed=0
    )
    return Claim(
        text,
        f"{format_radius(own)} [{low:.3f}, {high:.3f}]",
        own < paper,
        paper=f"{paper:.3f}",
        goal=f"> {goal:.3f}" if goal == paper else f"{goal:.3f}",
        missed_by=f"{goal - own:.3f}",
    )


def surprising(results: Path, dataset: str) -> str:
    """What we did not expect."""
    return claims_table(_surprising(_Measured(results, dataset)), "ours")


def _surprising(measured: _Measured) -> Iterator[Claim]:
    plain = [measured.sween(size, sigma) for size in (3, 6) for sigma in SIGMAS]
    convex = [paired_bootstrap(by_method(run, "convex"), ensemble_rows(run)) for run in plain]
    yield Claim(
        "Weights with the provably smallest loss (`convex`) have a lower ACR than those of `sgd`",
        _spans(convex),
        all(one.high < 0 for one in convex),
    )
    deep = [sum(run.config.weights[str(run.ensemble)][3:]) for run in plain[3:]]
    yield Claim(
        "The deeper half of SWEEN-6 gets most of the weight by `sgd` (σ = 0.25, 0.50, 1.00)",
        ", ".join(f"{100 * share:.0f}%" for share in deep),
        min(deep) > 0.5,
    )
    leads = [
        lead
        for lead in robust_leads(measured.results, "rand", "SWEEN-6")
        if lead.eps > 0 and lead.other != "SWEEN-3"
    ]
    ahead, clear = sum(lead.mean > 0 for lead in leads), sum(lead.low > 0 for lead in leads)
    yield Claim(
        "SWEEN-6 leads ResNet-20, 26 and 32 under AutoAttack more clearly than SWEEN-3 does: leads "
        f"of {len(leads)}",
        f"{ahead}, {clear} of them clear of 0",
        2 * clear >= len(leads) and all(lead.high > 0 for lead in leads),
    )
    by_seed, by_noise = measured.eight(), measured.eight(BY_NOISE)
    whole = str(by_noise.ensemble)
    solved, equal = by_noise.models[whole], by_noise.models[f"{whole}{EQUAL}"]
    over = paired_bootstrap(equal, solved)
    yield Claim(
        "Of eight ResNet-110, four of them trained with 1.2 times the noise, `sgd` drops these "
        "four; equal weights are better",
        signed(over),
        over.low > 0 and sum(share > 1e-5 for share in by_noise.config.weights[whole]) == 4,
    )
    noisier = [
        paired_bootstrap(by_noise.models[f"{name}{EQUAL}"], by_seed.models[f"{name}{EQUAL}"])
        for name in ("first 3", whole)
    ]
    yield Claim(
        "With equal weights, ensembles with noisier members (one of three, four of eight) beat "
        "those of other seeds alone",
        ", ".join(map(signed, noisier)),
        all(one.low > 0 for one in noisier),
    )
    six = ensemble_rows(measured.sween(6, 0.5))
    against = [paired_bootstrap(by_seed.models[name], six) for name in (whole, f"{whole}{EQUAL}")]
    yield Claim(
        "Identical against diverse: eight ResNet-110 of 60 epochs (`sgd`, equal weights) do not "
        "beat SWEEN-6 of 200",
        ", ".join(map(signed, against)),
        all(one.low < 0 for one in against),
    )
    level = paired_bootstrap(
        *(ensemble_rows(measured.photos(name)) for name in ("identical", "sween3"))
    )
    yield Claim(
        "but on Imagenette three ResNet-50 are level with ResNet-18, 34 and 50",
        signed(level),
        level.low < 0 < level.high,
    )
    better = paired_bootstrap(
        *(ensemble_rows(measured.sween(3, 0.5, name)) for name in ("consistency", "macer"))
    )
    ours, theirs = (measured.training_seconds(name) for name in ("consistency", "macer"))
    yield Claim(
        "Consistency beats MACER (SWEEN-3, σ = 0.50), in less training time",
        f"{signed(better)}, {ours:.0f} s against {theirs:.0f} s",
        better.low > 0 and ours < theirs,
    )
    pairs = [
        [_evaluations(_exit(measured.sween(6, sigma), rule)) for rule in ("exact", "paper")]
        for sigma in (0.5, 1.0)
    ]
    yield Claim(
        "The exact exit loses nothing and, from σ = 0.50 on, needs no more evaluations than "
        "Algorithm 1 (SWEEN-6)",
        ", ".join(f"{own:,.0f} against {other:,.0f}" for own, other in pairs),
        all(own <= other for own, other in pairs),
    )
    gains = [two_class_gain(run) for run in plain]
    yield Claim(
        "Bounding the runner-up as well adds to the ACR, from the same votes",
        _spans(gains),
        all(gain.low > 0 for gain in gains),
    )
