"""Certified robust image classification by randomized smoothing of weighted ensembles.

ensemble = sween.WeightedEnsemble([net_a, net_b, net_c])
sween.solve_weights(ensemble, images, labels, sigma=0.5)
smoothed = sween.SmoothedClassifier(ensemble, sigma=0.5, num_classes=10)
certificate = smoothed.certify(x, n=100_000, alpha=0.001)
"""

from sween.data import load_dataset
from sween.ensemble import (
    ExitPolicy,
    WeightedEnsemble,
    WeightSolution,
    solve_weights,
)
from sween.errors import SweenError
from sween.models import create_model
from sween.records import ABSTAIN, Certificate
from sween.smoothing import Prediction, SmoothedClassifier
from sween.training import TrainConfig, train
from sween.version import __version__
from sween.zoo import load

__all__ = [
    "ABSTAIN",
    "Certificate",
    "ExitPolicy",
    "Prediction",
    "SmoothedClassifier",
    "SweenError",
    "TrainConfig",
    "WeightSolution",
    "WeightedEnsemble",
    "__version__",
    "create_model",
    "load",
    "load_dataset",
    "solve_weights",
    "train",
]
