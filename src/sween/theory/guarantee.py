"""What Theorem 2 says for one problem: the records that `sween.theory.plan` fills."""

from dataclasses import dataclass
from decimal import Decimal


@dataclass(frozen=True)
class Setting:
    """What Theorem 2 takes as given; Lipschitz constant and loss are those of a loss in [0,1]."""

    eta: float
    lipschitz: float
    num_classes: int
    phi_norm: float
    beta: float


@dataclass(frozen=True)
class Terms:
    """The three error terms and `total` = 2 epsilon_1 + 2 epsilon_2 + epsilon_3."""

    epsilon_1: Decimal
    epsilon_2: Decimal
    epsilon_3: Decimal
    total: Decimal


@dataclass(frozen=True)
class PaperPlan:
    """The sizes by the constants that the paper prints, and what they really sum to.

    Attributes:
        members: the smallest K above 256 L^4 ||phi||^2 M (1 + sqrt(2 log(1/eta)))^2 / epsilon^4.
        images: the smallest n of Theorem 2 for that K.
        samples: the smallest s of Theorem 2 for that K and n.
        bound_as_written: the proof's sum with log(1/eta) in epsilon_3: up to 5/4 epsilon.
        bound: the same with the log(3/eta) that a third of eta needs: a little more still.
    """

    members: int
    images: int
    samples: int
    bound_as_written: Decimal
    bound: Decimal


@dataclass(frozen=True)
class Requirement:
    """The smallest sizes for which the proof of Theorem 2 gives a gap below epsilon.

    Attributes:
        epsilon: the gap asked for.
        setting: what was taken as given.
        members: K.
        images: n.
        samples: s, noise samples per image and member.
        terms: the three error terms at these sizes.
        bound: 2 epsilon_1 + 2 epsilon_2 + epsilon_3 + epsilon / 4.
        margin: epsilon - bound, always positive.
        paper: the sizes by the constants that the paper prints.
    """

    epsilon: float
    setting: Setting
    members: int
    images: int
    samples: int
    terms: Terms
    bound: Decimal
    margin: Decimal
    paper: PaperPlan


@dataclass(frozen=True)
class Achievement:
    """What Theorem 2 guarantees for given sizes.

    Attributes:
        members: K.
        images: n.
        samples: s, noise samples per image and member.
        setting: what was taken as given.
        terms: the three error terms; the third is proven only where `lemma_3_applies`.
        lemma_3_applies: whether K is large enough for Lemma 3.
        fewest_members: the smallest K for which it is.
        epsilon: the guaranteed gap, 4/3 of the terms' total, because phi_0 is only within
            epsilon / 4 of the infimum: total + epsilon / 4 = epsilon. None without Lemma 3.
        epsilon_if_attained: the gap when some mixture attains the infimum: the total. None
            without Lemma 3.
        says_something: whether `epsilon` is below 1; the loss lies in [0,1], so any gap is.
    """

    members: int
    images: int
    samples: int
    setting: Setting
    terms: Terms
    lemma_3_applies: bool
    fewest_members: int
    epsilon: Decimal | None
    epsilon_if_attained: Decimal | None
    says_something: bool
