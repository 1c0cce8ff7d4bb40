"""What a training run is asked to do."""

import dataclasses
from typing import Any

from sween.errors import BadInput, UnknownName
from sween.training.objectives import OBJECTIVES

SCHEDULES = ("one-cycle", "constant")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Everything that decides the trained weights, given the data set's files."""

    dataset: str
    arch: str
    sigma: float
    method: str = "gaussian"
    epochs: int = 100
    batch_size: int = 128
    learning_rate: float = 0.1
    momentum: float = 0.9
    nesterov: bool = True
    weight_decay: float = 5e-4
    schedule: str = "one-cycle"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.method not in OBJECTIVES:
            raise UnknownName("training method", self.method, OBJECTIVES)
        if self.schedule not in SCHEDULES:
            raise UnknownName("schedule", self.schedule, SCHEDULES)
        if not 0 <= self.sigma < float("inf"):
            raise BadInput(
                "sigma",
                expected="a number of at least 0, in units of pixels scaled to [0,1]",
                got=self.sigma,
                fix="try 0.25, 0.5 or 1.0",
            )
        for name in ("epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise BadInput(name, expected="at least 1", got=getattr(self, name), fix="raise it")
        if not 0 < self.learning_rate < float("inf"):
            raise BadInput(
                "learning_rate",
                expected="a positive number",
                got=self.learning_rate,
                fix="try 0.1",
            )
        if not 0 <= self.momentum < 1:
            raise BadInput("momentum", expected="in [0, 1)", got=self.momentum, fix="try 0.9")
        if not 0 <= self.weight_decay < float("inf"):
            raise BadInput(
                "weight_decay", expected="at least 0", got=self.weight_decay, fix="try 5e-4"
            )

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)
