"""How long steps take: work in multiply-adds, and the rate at which a device does it.

A step that has done part of its work on this machine tells the rate for the rest of that kind;
otherwise the rates below are used, which were measured on one H200 and on two CPU cores.
"""

import dataclasses
from typing import Literal

Kind = Literal["train", "weigh", "certify", "attack"]


@dataclasses.dataclass(frozen=True)
class Work:
    """Multiply-adds, in all and already done, and the seconds that the latter took."""

    kind: Kind
    total: float
    done: float = 0.0
    seconds: float = 0.0


MEASURED: dict[str, dict[Kind, float]] = {
    "cuda": {"train": 6e12, "weigh": 3e12, "certify": 1.9e14, "attack": 1.2e13},
    "cpu": {"train": 2.5e10, "weigh": 6e10, "certify": 7e10, "attack": 2e10},
}
"""Multiply-adds per second: results/training-speed, results/certification-speed and the seconds in
the rows of results/ on an H200 (ResNets, float16); `sween demo` and `sween bench` on two cores."""

START_UP = {"cuda": 45.0, "cpu": 3.0}
"""Seconds of a step before its work begins: loading data, compiling."""


class Rates:
    """The rate of each kind of work on a device."""

    def __init__(self, device: str) -> None:
        self.device = device
        self._rates = dict(MEASURED[device])
        self.measured_here = set[Kind]()

    def learn(self, work: Work) -> None:
        """Use the rate of work that was done on this machine."""
        if work.done and work.seconds:
            self._rates[work.kind] = work.done / work.seconds
            self.measured_here.add(work.kind)

    def seconds_left(self, work: Work) -> float:
        """0 if nothing is left; otherwise with the start-up."""
        left = work.total - work.done
        return START_UP[self.device] + left / self._rates[work.kind] if left > 0 else 0.0
