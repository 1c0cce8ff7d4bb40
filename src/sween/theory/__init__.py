"""What Theorem 2 of the paper guarantees, and the certified radius to expect from n votes."""

from sween.theory.expected_radius import expected_radius
from sween.theory.theorem2 import achieved_epsilon, required_sizes

__all__ = ["achieved_epsilon", "expected_radius", "required_sizes"]
