"""Votes, bounds, radii: predict and certify."""

from sween.bounds.decision import Decision, decide, decide_prediction
from sween.bounds.radius import BOUNDS, radius_cohen, radius_two_class
from sween.smoothing.classifier import SmoothedClassifier
from sween.smoothing.recount import RecountedRun, recount_folder
from sween.smoothing.run import certify_images
from sween.smoothing.settings import SAMPLING, CertifySettings, Prediction
from sween.smoothing.verify import VerifiedRun, verify_folder

__all__ = [
    "BOUNDS",
    "SAMPLING",
    "CertifySettings",
    "Decision",
    "Prediction",
    "RecountedRun",
    "SmoothedClassifier",
    "VerifiedRun",
    "certify_images",
    "decide",
    "decide_prediction",
    "radius_cohen",
    "radius_two_class",
    "recount_folder",
    "verify_folder",
]
