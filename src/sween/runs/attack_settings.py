"""Settings of an attack."""

import dataclasses
import math
from collections.abc import Sequence

from sween.errors import BadInput, UnknownName
from sween.seeding import derive_key

PARTS = {
    "rand": ("apgd-ce", "apgd-dlr"),
    "standard": ("apgd-ce", "apgd-t", "fab-t", "square"),
}
"""The attacks of each version, in the order it runs them."""

_CLASSES_NEEDED = {"apgd-dlr": 3, "apgd-t": 4}
"""Their losses need the three or four largest logits; with fewer classes they are skipped."""

_SQUARE_ROWS = 5
"""Smaller images have no room for Square's squares."""

ATTACKS = (*PARTS, "pgd", "ddn")

SURROGATE_ROWS = 4096
"""Noisy images per pass of the attack; halved on running out of memory."""

CLEAN = -1
"""The attempt that is the prediction on the clean image."""

TRIES = 3
"""Points that are scored on the ray through a minimum-norm adversarial example."""


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

    Example:
        See `attack_dataset`.
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
                fix="try 0.25 and 0.5",
            )
        for name in ("samples", "steps", "batch_size"):
            if getattr(self, name) < 1:
                raise BadInput(name, expected="at least 1", got=getattr(self, name), fix="try 32")

    def batches(self, positions: Sequence[int]) -> list[Sequence[int]]:
        """The images that are attacked together; a batch's place in this list keys its noise."""
        starts = range(0, len(positions), self.batch_size)
        return [positions[start : start + self.batch_size] for start in starts]


def parts_of(version: str, *, classes: int, rows: int) -> list[str]:
    """The attacks of a version that work with this many classes and image rows."""
    return [
        part
        for part in PARTS[version]
        if classes >= _CLASSES_NEEDED.get(part, 2) and (part != "square" or rows >= _SQUARE_ROWS)
    ]


def answers_of_an_image(settings: AttackSettings, *, classes: int, rows: int) -> int:
    """How many predictions on attacked versions of one image share alpha.

    Args:
        settings: of the attack.
        classes: of the data set.
        rows: of an image.
    """
    if settings.attack == "ddn":
        return TRIES + len(settings.eps)
    attacks = 1  # PGD comes last
    if settings.attack != "pgd":
        attacks += len(parts_of(settings.attack, classes=classes, rows=rows))
    return attacks * len(settings.eps)


def judge_seed(seed: int, attempt: int) -> int:
    """The seed of an attempt's votes, from that of the attack."""
    return derive_key(seed, "rescore", attempt) & (2**62 - 1)
