"""How much Theorem 2 asks for, and the radius a number of votes can be expected to certify.

`concentration` holds the terms of the theorem, `plan` reads it in both directions, `guarantee` the
records, `expected_radius` the certificates' side, `render` the text of `sween plan`.
"""

from sween.theory.concentration import (
    epsilon_1,
    epsilon_2,
    epsilon_3,
    fewest_members_for_lemma_3,
    mean_deviation_bound,
)
from sween.theory.expected_radius import ExpectedRadius, Outlook, expected_radius
from sween.theory.guarantee import Achievement, PaperPlan, Requirement, Setting, Terms
from sween.theory.plan import achieved_epsilon, required_sizes
from sween.theory.render import (
    render_achievement,
    render_expected_radius,
    render_requirement,
)

__all__ = [
    "Achievement",
    "ExpectedRadius",
    "Outlook",
    "PaperPlan",
    "Requirement",
    "Setting",
    "Terms",
    "achieved_epsilon",
    "epsilon_1",
    "epsilon_2",
    "epsilon_3",
    "expected_radius",
    "fewest_members_for_lemma_3",
    "mean_deviation_bound",
    "render_achievement",
    "render_expected_radius",
    "render_requirement",
    "required_sizes",
]
