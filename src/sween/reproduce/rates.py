"""How long steps take: work in multiply-adds, and the rate at which a device does it.

A step that has done part of its work on this machine gives the rate for the rest of that kind;
otherwise the rates of rates.json are used, which docs/update_rates.py computes from results/.
"""

import dataclasses
import functools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, get_args

Kind = Literal["train", "weigh", "certify", "attack"]
KINDS: tuple[Kind, ...] = get_args(Kind)

MEASURED = Path(__file__).with_name("rates.json")
"""By kind of device and of work: multiply-adds per second, on which machine, and which results."""

START_UP: dict[str, dict[Kind, float]] = {
    "cuda": {"train": 45.0, "weigh": 7.0, "certify": 45.0, "attack": 45.0},
    "cpu": dict.fromkeys(KINDS, 3.0),
}
"""Seconds of a step before its work begins: loading data; on a GPU also compiling, at most. Members
are prepared before the first weights are solved: those of results/costs took 7 s altogether."""

EVALUATIONS_PER_STEP = 3
"""Of a training step or a gradient, in forward passes: one forward and about two backward."""

SGD_EPOCHS = 100
"""Passes over the images of `sgd`, the default of `solve_weights`."""

_HERE = "here"

_ATTACK_STEPS = 200
"""Gradients of AutoAttack's `rand` on an image, for each perturbation size."""


@dataclasses.dataclass(frozen=True)
class Work:
    """Multiply-adds, in all and already done, and the seconds that the latter took.

    `unit` is the part that is kept if it is finished before an interruption: an epoch, an image or
    a batch; 0 if only all of it is kept. `evaluated` are the multiply-adds that those seconds took,
    where these are fewer than `done`, as with early exits.

    Example:
        See `Rates`.
    """

    kind: Kind
    total: float
    done: float = 0.0
    seconds: float = 0.0
    unit: float = 0.0
    evaluated: float | None = None


def training_work(multiply_adds: float, *, images: int, copies: float, epochs: int) -> float:
    """Multiply-adds of training a network, of which a forward pass on an image takes as given."""
    return multiply_adds * EVALUATIONS_PER_STEP * images * copies * epochs


def weighing_work(multiply_adds: float, *, images: int, samples: int, method: str) -> float:
    """Multiply-adds of solving for weights, given those of all members on an image."""
    # `sgd` evaluates the members during its descent, then on `samples` copies for the loss.
    copies = samples + (SGD_EPOCHS if method == "sgd" else 0)
    return multiply_adds * images * copies


def certification_work(multiply_adds: float, *, images: int, samples: int) -> float:
    """Multiply-adds of certifying images, given those of all members on an image."""
    return multiply_adds * images * samples


def attack_work(multiply_adds: float, *, images: int, samples: int, eps: int) -> float:
    """Multiply-adds of attacking images at `eps` sizes, given those of all members on an image."""
    return multiply_adds * EVALUATIONS_PER_STEP * _ATTACK_STEPS * images * samples * eps


@functools.cache
def measured_rates() -> dict[str, dict[Kind, dict[str, Any]]]:
    """The content of rates.json."""
    content: dict[str, dict[Kind, dict[str, Any]]] = json.loads(MEASURED.read_text("utf-8"))
    return content


class Rates:
    """The rate of each kind of work on a kind of device.

    Example:
        >>> from sween.reproduce import Rates, Work
        >>> rates = Rates("cpu")
        >>> rates.learn(Work("certify", total=4e12, done=1e12, seconds=10.0))
        >>> rates.describe(["certify"])
        'here'
    """

    def __init__(self, device: str) -> None:
        self.device = device
        measured = measured_rates()[device]
        self._rates = {kind: float(measured[kind]["multiply_adds_per_second"]) for kind in KINDS}
        self._machines = {kind: f"on {measured[kind]['machine']}" for kind in KINDS}

    def learn(self, work: Work) -> None:
        """Use the rate of work that was done on this machine."""
        if work.done and work.seconds:
            evaluated = work.done if work.evaluated is None else work.evaluated
            self._rates[work.kind] = evaluated / work.seconds
            self._machines[work.kind] = _HERE

    def seconds_left(self, work: Work) -> float:
        """0 if nothing is left; otherwise with the start-up."""
        left = work.total - work.done
        return START_UP[self.device][work.kind] + left / self._rates[work.kind] if left > 0 else 0.0

    def least_seconds(self, work: Work) -> float:
        """Of the shortest call that gets further, with the start-up."""
        if not work.unit:
            return self.seconds_left(work)
        return START_UP[self.device][work.kind] + work.unit / self._rates[work.kind]

    def describe(self, kinds: Iterable[Kind] = KINDS) -> str:
        """Where the rates of some kinds were measured: train here, attack on one NVIDIA H200."""
        by_machine = dict[str, list[str]]()
        for kind in sorted(set(kinds), key=lambda kind: (self._machines[kind] != _HERE, kind)):
            by_machine.setdefault(self._machines[kind], []).append(kind)
        if len(by_machine) == 1:
            return next(iter(by_machine))
        return ", ".join(f"{' and '.join(own)} {place}" for place, own in by_machine.items())
