"""Smoothed classifiers: predict with abstention, certify images and data sets, count again."""

from sween.smoothing.classifier import SmoothedClassifier
from sween.smoothing.dataset import certify_dataset, iter_certificates
from sween.smoothing.prediction import Prediction
from sween.smoothing.recount import RecountedRun, recount_folder
from sween.smoothing.smoothed_logits import SmoothedLogits

__all__ = [
    "Prediction",
    "RecountedRun",
    "SmoothedClassifier",
    "SmoothedLogits",
    "certify_dataset",
    "iter_certificates",
    "recount_folder",
]
