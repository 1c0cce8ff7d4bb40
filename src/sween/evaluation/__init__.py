"""Metrics of certificates: certified accuracy, average certified radius, paired comparisons."""

from sween.evaluation.accuracy import (
    RadiusField,
    Share,
    abstention_rate,
    average_certified_radius,
    certified_accuracy,
    check_radii,
    counted_radii,
    share_of_images,
)
from sween.evaluation.comparison import (
    PairedInterval,
    bootstrap_interval,
    bootstrap_over_envelope,
    paired_bootstrap,
    simultaneous_intervals,
)
from sween.evaluation.curve import RadiusAccuracyCurve, envelope_curve, radius_accuracy_curve
from sween.evaluation.groups import by_model, pair_by_index
from sween.evaluation.robustness_index import (
    certified_at,
    log_average_volume,
    log_volume,
    robustness_index,
)

__all__ = [
    "PairedInterval",
    "RadiusAccuracyCurve",
    "RadiusField",
    "Share",
    "abstention_rate",
    "average_certified_radius",
    "bootstrap_interval",
    "bootstrap_over_envelope",
    "by_model",
    "certified_accuracy",
    "certified_at",
    "check_radii",
    "counted_radii",
    "envelope_curve",
    "log_average_volume",
    "log_volume",
    "pair_by_index",
    "paired_bootstrap",
    "radius_accuracy_curve",
    "robustness_index",
    "share_of_images",
    "simultaneous_intervals",
]
