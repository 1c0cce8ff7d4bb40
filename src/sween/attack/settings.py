"""Settings of an attack."""

import dataclasses
import math

from sween.attack.autoattack import PARTS
from sween.errors import BadInput, UnknownName

ATTACKS = (*PARTS, "pgd", "ddn")


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttackSettings:
    """Settings of an attack.

    Attributes:
        attack: rand or standard (AutoAttack), pgd or ddn.
        eps: l2 radii, ascending.
        samples: noise samples per gradient; the paper uses 128.
        steps: of pgd and ddn; AutoAttack has its own.
        n: votes per prediction on an attacked image.
        alpha: failure probability of all predictions on attacked versions of one image together.
        seed: of the attack and its judge.
        batch_size: images attacked together; affects the result, and is the unit of resuming.
    """

    attack: str = "rand"
    eps: tuple[float, ...] = (0.5,)
    samples: int = 128
    steps: int = 100
    n: int = 10_000
    alpha: float = 0.001
    seed: int = 0
    batch_size: int = 32

    def __post_init__(self) -> None:
        if self.attack not in ATTACKS:
            raise UnknownName("attack", self.attack, ATTACKS)
        ordered = list(self.eps) == sorted(set(self.eps))
        if not self.eps or not ordered or not all(0 < eps < math.inf for eps in self.eps):
            raise BadInput(
                "eps",
                expected="positive l2 radii, each once",
                got=", ".join(map(str, self.eps)) or "none",
                fix="try --eps 0.25 --eps 0.5",
            )
        for name in ("samples", "steps", "batch_size"):
            if getattr(self, name) < 1:
                raise BadInput(name, expected="at least 1", got=getattr(self, name), fix="try 32")
