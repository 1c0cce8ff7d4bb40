"""Certified robust image classification by randomized smoothing of weighted ensembles.

Example:
    >>> import sween
    >>> digits = sween.load_dataset("digits")
    >>> smoothed = sween.SmoothedClassifier.load("digits-sween3-gaussian-sigma0.50")
    >>> certificate = smoothed.certify_one(digits.test.images([6])[0], n=1000, alpha=0.001)
    >>> certificate.prediction == int(digits.test.labels[6]), certificate.radius > 0.5
    (True, True)

Names are imported when they are first used: torch takes seconds, in which the command line must be
able to answer an interrupt.
"""

import importlib
from typing import TYPE_CHECKING

from sween.version import __version__

if TYPE_CHECKING:  # the same names as in _ROOMS below
    from sween.data import load_dataset, register_dataset
    from sween.ensemble import (
        ExitPolicy,
        WeightedEnsemble,
        solve_weights,
    )
    from sween.errors import SweenError
    from sween.evaluation import average_certified_radius, certified_accuracy
    from sween.models import create_model, register_architecture
    from sween.records import ABSTAIN, Certificate
    from sween.runs import CertificationRun
    from sween.smoothing import Prediction, SmoothedClassifier, certify_dataset
    from sween.training import TrainConfig, train
    from sween.zoo import load

__all__ = [
    "ABSTAIN",
    "Certificate",
    "CertificationRun",
    "ExitPolicy",
    "Prediction",
    "SmoothedClassifier",
    "SweenError",
    "TrainConfig",
    "WeightedEnsemble",
    "__version__",
    "average_certified_radius",
    "certified_accuracy",
    "certify_dataset",
    "create_model",
    "load",
    "load_dataset",
    "register_architecture",
    "register_dataset",
    "solve_weights",
    "train",
]

_ROOMS = {
    "ABSTAIN": "records",
    "Certificate": "records",
    "CertificationRun": "runs",
    "ExitPolicy": "ensemble",
    "Prediction": "smoothing",
    "SmoothedClassifier": "smoothing",
    "SweenError": "errors",
    "TrainConfig": "training",
    "WeightedEnsemble": "ensemble",
    "average_certified_radius": "evaluation",
    "certified_accuracy": "evaluation",
    "certify_dataset": "smoothing",
    "create_model": "models",
    "load": "zoo",
    "load_dataset": "data",
    "register_architecture": "models",
    "register_dataset": "data",
    "solve_weights": "ensemble",
    "train": "training",
}


if not TYPE_CHECKING:  # to a type checker this would say that every name exists

    def __getattr__(name: str) -> object:
        if name in _ROOMS:
            value = getattr(importlib.import_module(f"sween.{_ROOMS[name]}"), name)
            globals()[name] = value
            return value
        if not name.startswith("_"):
            try:
                return importlib.import_module(f"sween.{name}")
            except ModuleNotFoundError as error:
                if error.name != f"sween.{name}":
                    raise
        raise AttributeError(f"module 'sween' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
