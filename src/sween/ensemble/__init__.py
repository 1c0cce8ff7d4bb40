"""Weighted ensembles: members, weights, early exits, ensemble folders."""

from sween.ensemble.early_exit import EXITS, ExitPolicy
from sween.ensemble.folder import (
    load_ensemble,
    load_members,
    load_weightings,
    save_ensemble,
    weigh,
)
from sween.ensemble.loaded import LoadedEnsemble
from sween.ensemble.solve import METHODS, WeightSolution, solve_weights
from sween.ensemble.weighted import WeightedEnsemble

__all__ = [
    "EXITS",
    "METHODS",
    "ExitPolicy",
    "LoadedEnsemble",
    "WeightSolution",
    "WeightedEnsemble",
    "load_ensemble",
    "load_members",
    "load_weightings",
    "save_ensemble",
    "solve_weights",
    "weigh",
]
