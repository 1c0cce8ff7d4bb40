"""The mathematics of certification: confidence bounds, l2 radii, sample sizes, decisions.

Pure functions of vote counts. Nothing here imports torch, which makes it easy to check.
"""

from sween.bounds.anytime import anytime_upper_bound_of_miss, looks
from sween.bounds.binomial import lower_bound, upper_bound
from sween.bounds.decision import (
    Decision,
    binomial_p_value,
    decide,
    decide_prediction,
    decide_radii,
    decide_soft,
)
from sween.bounds.radius import (
    BOUNDS,
    Bound,
    radius_cohen,
    radius_two_class,
    register_bound,
)
from sween.bounds.sample_size import size_for_tolerance, sizes_for_budget

__all__ = [
    "BOUNDS",
    "Bound",
    "Decision",
    "anytime_upper_bound_of_miss",
    "binomial_p_value",
    "decide",
    "decide_prediction",
    "decide_radii",
    "decide_soft",
    "looks",
    "lower_bound",
    "radius_cohen",
    "radius_two_class",
    "register_bound",
    "size_for_tolerance",
    "sizes_for_budget",
    "upper_bound",
]
