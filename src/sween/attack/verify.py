"""Re-deriving every outcome of an attack from its votes, with no model."""

import collections
import dataclasses
from pathlib import Path

from sween.attack.outcome import AttackOutcome, is_alarm, judge, outcomes_file, read_outcomes
from sween.data.selection import parse_indices
from sween.errors import BadInput, CheckFailed, CheckpointError
from sween.paths import AnyPath
from sween.runs import read_config, run_tag
from sween.smoothing.decision import decide_prediction


@dataclasses.dataclass(frozen=True)
class VerifiedAttack:
    """What was checked."""

    rows: int
    images: int
    broken: int
    alarms: int


def verify_attacks(folder: AnyPath) -> VerifiedAttack:
    """Check each row against its checksum, its own votes and the run's config.

    The answer and the outcome are derived from the counts again, and the alarm from distance and
    certified radius. What votes cannot prove is guarded by the checksum alone: the label, the
    distance, the answer without an attack where the row has an attacked image, and the time.

    Raises:
        CheckFailed: naming the first row that differs and what differs in it.
    """
    folder = Path(folder)
    config, file = _checked_config(folder), outcomes_file(folder)
    name = "attacks.jsonl" if file is None else file.name
    try:
        outcomes = read_outcomes(folder)
    except BadInput as error:
        raise CheckFailed(str(error)) from None
    for number, outcome in enumerate(outcomes, start=1):
        where = f"{name}, line {number} (index {outcome.index})"
        try:
            problems = _problems(outcome, config)
        except (BadInput, TypeError, ValueError, IndexError) as error:
            raise CheckFailed(f"{where}: {error}") from None
        if problems:
            raise CheckFailed(f"{where}: {'; '.join(problems)}")
    _check_complete(outcomes, config, name)
    return VerifiedAttack(
        rows=len(outcomes),
        images=len({outcome.index for outcome in outcomes}),
        broken=sum(outcome.outcome == "broken" for outcome in outcomes),
        alarms=sum(outcome.alarm for outcome in outcomes),
    )


def _checked_config(folder: Path) -> dict[str, object]:
    """The run's config; one from which a setting was taken would let any row pass."""
    config = read_config(folder)
    kinds = {"indices": str, "eps": list, "n": int, "alpha": float, "attack": str, "model": str}
    wrong = [name for name, kind in kinds.items() if not isinstance(config.get(name), kind)]
    if wrong:
        raise CheckpointError(
            f"{folder}/config.toml",
            expected=f"the config of `sween attack` with {', '.join(wrong)}",
            got=", ".join(repr(config.get(name)) for name in wrong),
            fix="restore the file from its source",
        )
    return config


def _problems(outcome: AttackOutcome, config: dict[str, object]) -> list[str]:
    problems = [
        f"{name} is {getattr(outcome, name)!r}, the run's config says {config.get(name)!r}"
        for name in ("attack", "samples", "steps", "n", "alpha", "seed", "sigma", "model")
        if getattr(outcome, name) != config.get(name)
    ]
    if outcome.run != run_tag(config):
        problems.append("it belongs to a run of another config")
    if not 0 <= sum(outcome.counts) <= outcome.n or min(outcome.counts) < 0:
        problems.append(f"counts sum to {sum(outcome.counts)}, n is {outcome.n}")
        return problems
    if outcome.judge_alpha != outcome.alpha / max(1, outcome.tries):
        problems.append(f"judge_alpha is {outcome.judge_alpha}, not alpha over {outcome.tries}")
    answer, _ = decide_prediction(outcome.counts, alpha=outcome.judge_alpha, n=outcome.n)
    if outcome.prediction != answer:
        problems.append(f"prediction is {outcome.prediction}, the votes say {answer}")
    wanted = judge(outcome.label, outcome.clean_prediction, outcome.prediction)
    if outcome.outcome != wanted:
        problems.append(f"outcome is {outcome.outcome!r}, the answers say {wanted!r}")
    if not 0 <= outcome.distance <= outcome.eps:
        problems.append(f"distance {outcome.distance} is not between 0 and {outcome.eps}")
    if outcome.alarm != is_alarm(outcome.outcome, outcome.distance, outcome.certified_radius):
        problems.append(f"alarm is {outcome.alarm}, distance and radius say otherwise")
    kept = outcome.attacked_image is not None
    if kept != (outcome.alarm and outcome.tries > 0):
        problems.append("an alarm under attack, and nothing else, has its attacked image")
    return problems


def _check_complete(outcomes: list[AttackOutcome], config: dict[str, object], file: str) -> None:
    indices = parse_indices(
        indices=str(config["indices"]), every=None, everything=False, size=2**62
    )
    radii = config["eps"]
    assert isinstance(radii, list)
    wanted = [(index, eps) for index in indices for eps in radii]
    got = [(outcome.index, outcome.eps) for outcome in outcomes]
    allowed, times = set(wanted), collections.Counter(got)
    strange = [key for key in got if key not in allowed or times[key] > 1]
    if strange:
        raise CheckFailed(
            f"{file}: the row of index {strange[0][0]} at {strange[0][1]} is not of this run, or "
            "comes twice"
        )
    missing = sorted(set(wanted) - set(got))
    if missing:
        raise CheckFailed(
            f"{file}: {len(missing)} of {len(wanted)} rows are missing, the first that of index "
            f"{missing[0][0]} at {missing[0][1]}; run the same `sween attack` again to finish"
        )
    broken: dict[int, float] = {}
    for outcome in sorted(outcomes, key=lambda outcome: outcome.eps):
        if outcome.outcome == "broken":
            broken.setdefault(outcome.index, outcome.eps)
        elif outcome.index in broken:
            raise CheckFailed(
                f"{file}: index {outcome.index} is broken at {broken[outcome.index]}, but "
                f"{outcome.outcome} at {outcome.eps}"
            )
