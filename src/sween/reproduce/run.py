"""Carries out plans step by step, within a time limit."""

import contextlib
import dataclasses
import re
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import FrameType

from sween.errors import BadInput
from sween.progress import format_seconds
from sween.reproduce.costs import cost_steps
from sween.reproduce.rates import START_UP, Rates
from sween.reproduce.steps import (
    AttackStep,
    CertifyStep,
    RecordStep,
    RoundStep,
    Step,
    Train,
    WeighStep,
)
from sween.reproduce.workspace import Workspace


class TimeLimitReached(KeyboardInterrupt):
    """The time is over; like an interrupt, it loses at most the unit of work under way.

    Example:
        See `carry_out`.
    """


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What was done.

    Attributes:
        new: steps that this call worked on.
        left: steps that are not complete.

    Example:
        See `carry_out`.
    """

    new: Sequence[Step]
    left: Sequence[Step]


def steps_of(space: Workspace) -> list[Step]:
    """All steps of a plan, in the order in which they are done: one noise level after another.

    Example:
        >>> from sween.reproduce import Workspace, read_plan, steps_of
        >>> plan = read_plan("standard").at(recipe="fast", sigmas=[0.5])
        >>> steps = steps_of(Workspace(plan, recipe="fast", out="out"))
        >>> [step.name for step in steps][-2:]
        ['solve convex weights of SWEEN-6 at sigma 0.50', 'certify SWEEN-6 at sigma 0.50']
    """
    plan, steps = space.plan, list[Step]()
    for sigma in plan.sigmas:
        if plan.table == "costs":
            steps += cost_steps(space, sigma)
            continue
        steps.append(Train(space, sigma))
        steps += [WeighStep(space, *solution, sigma) for solution in plan.solutions]
        if plan.in_integers:
            steps.append(RoundStep(space, sigma))
        if plan.record is not None:
            steps += [RecordStep(space, sigma, held_out=held_out) for held_out in (True, False)]
        steps.append(CertifyStep(space, sigma))
        if plan.attack is not None and sigma in (plan.attack.sigmas or plan.sigmas):
            steps += [AttackStep(space, model, sigma) for model in plan.attack.models]
    return steps


def steps_of_all(spaces: Iterable[Workspace]) -> list[Step]:
    """The steps of several plans, each once: plans share what they have in common.

    Example:
        >>> from sween.reproduce import Workspace, read_plan, steps_of, steps_of_all
        >>> spaces = [
        ...     Workspace(read_plan(name), recipe="fast", out="out")
        ...     for name in ("standard", "adaptive")
        ... ]
        >>> len(steps_of_all(spaces)) == len(steps_of(spaces[0]))
        True
    """
    unique = dict[tuple[type[Step], tuple[Path, ...]], Step]()
    for space in spaces:
        for step in steps_of(space):
            unique.setdefault((type(step), step.makes), step)
    return list(unique.values())


def seconds_left(step: Step, rates: Rates) -> float:
    """How long a step should still take; 0 if it is done. The rates learn from what it has done.

    Example:
        See `carry_out`.
    """
    work = step.work()
    rates.learn(work)
    if step.is_done():
        return 0.0
    return max(rates.seconds_left(work), START_UP[rates.device][work.kind])


def carry_out(
    steps: Sequence[Step],
    *,
    device: str,
    time_limit: float | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """Do all steps in order, skipping those that are done.

    A step is not started if the time left should not be enough for any part of it that is kept.

    Args:
        steps: of one plan or several.
        device: kind of device, for the time that steps should take.
        time_limit: seconds.
        say: is told what happens.

    Raises:
        BadInput: the time limit is too short for any step.
        CheckpointError: a folder holds something else than a step would make; no step has run.

    Example:
        >>> from pathlib import Path
        >>> from sween.reproduce import Rates, Workspace, carry_out, make_figures, make_tables
        >>> from sween.reproduce import read_plan, seconds_left, steps_of
        >>> size = Path("recipe.toml").write_text('dataset = "digits"\\nepochs = 1\\n')
        >>> size = Path("mine.toml").write_text('''
        ... title = "Two networks on digits"
        ... dataset = "digits"
        ... sigmas = [0.5]
        ... recipes = {fast = "recipe.toml"}
        ... candidate = [{arch = "digits-mlp"}, {arch = "digits-conv"}]
        ... ensemble = [{name = "SWEEN-2", members = ["digits-mlp", "digits-conv"]}]
        ... weigh = {samples = 5}
        ... certify = {indices = "0:4", n = 500}
        ... ''')
        >>> space = Workspace(read_plan("mine.toml"), recipe="fast", out="out", quiet=True)
        >>> steps = steps_of(space)
        >>> outcome = carry_out(steps, device="cpu", say=lambda line: None)
        >>> len(outcome.new), outcome.left
        (3, ())
        >>> sum(seconds_left(step, Rates("cpu")) for step in steps)
        0.0
        >>> make_tables(space)[0].title, list(make_figures(space))
        ('Two networks on digits (fast)', ['mine-fast-sigma0.50'])
    """
    ends = None if time_limit is None else time.monotonic() + time_limit
    for step in steps:
        step.check()
    rates, new = Rates(device), list[Step]()
    for place, step in enumerate(steps):
        seconds = seconds_left(step, rates)
        if not seconds:
            say(f"done already: {step.name}")
            continue
        left = None if ends is None else ends - time.monotonic()
        before = step.work()
        needed = min(rates.least_seconds(before), seconds)
        if left is not None and left < needed:
            if not new:
                expected = f"at least {format_seconds(needed)}, to {step.name}"
                raise _too_short(expected, time_limit)
            return Outcome(new, steps[place:])
        say(f"{step.name}: about {format_seconds(seconds)}")
        new.append(step)
        try:
            with _alarm(left):
                step.run()
        except TimeLimitReached:
            if len(new) == 1 and step.work().done <= before.done:  # the next call would do as much
                raise _too_short(f"more, to get further with: {step.name}", time_limit) from None
            say(f"stopped at the time limit: {step.name}; the same command resumes")
            return Outcome(new, steps[place:])
        rates.learn(step.work())
    return Outcome(new, ())


def _too_short(expected: str, limit: float | None) -> BadInput:
    given = format_seconds(limit or 0.0)
    return BadInput("`time_limit`", expected=expected, got=given, fix="allow more time")


@contextlib.contextmanager
def _alarm(seconds: float | None) -> Iterator[None]:
    """Raise TimeLimitReached in the block once the seconds are over."""
    if seconds is None:
        yield
        return

    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise TimeLimitReached

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def parse_duration(text: str) -> float:
    """Seconds of a duration such as 25m, 1h30m, 90s or 90.

    Example:
        >>> from sween.reproduce import parse_duration
        >>> parse_duration("1h30m"), parse_duration("90")
        (5400.0, 90.0)
    """
    parts = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s?)?", text.strip())
    seconds = 0.0
    if parts and text.strip():
        hours, minutes, rest = (int(part or 0) for part in parts.groups())
        seconds = 3600.0 * hours + 60.0 * minutes + rest
    if not seconds:
        raise BadInput(f"`time_limit`: expected a duration such as 25m, got {text!r}; write 25m")
    return seconds
