"""What Theorem 2 of the paper guarantees, the radius to expect, the votes that a radius takes, and
what a certification costs."""

from sween.theory.certification_cost import CertificationCost, Estimate, predict_cost
from sween.theory.expected_radius import expected_radius
from sween.theory.required_votes import required_votes
from sween.theory.theorem2 import achieved_epsilon, required_sizes

__all__ = [
    "CertificationCost",
    "Estimate",
    "achieved_epsilon",
    "expected_radius",
    "predict_cost",
    "required_sizes",
    "required_votes",
]
