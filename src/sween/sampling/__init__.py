"""How votes are spent on images, one strategy per file: fixed, decide, tolerance, budget, soft.

Nothing here imports torch.
"""

from sween.sampling.budget import Budget
from sween.sampling.decide import Decide
from sween.sampling.fixed import Fixed
from sween.sampling.settings import VOTES, CertifySettings
from sween.sampling.soft import Soft
from sween.sampling.strategy import (
    STRATEGIES,
    SamplingStrategy,
    register_sampling,
    sampling_names,
    strategy_of,
)
from sween.sampling.tolerance import Tolerance

for _strategy in (Fixed(), Decide(), Tolerance(), Budget(), Soft()):
    register_sampling(_strategy)
STRATEGIES.built_in = frozenset(STRATEGIES)

__all__ = [
    "VOTES",
    "CertifySettings",
    "SamplingStrategy",
    "register_sampling",
    "sampling_names",
    "strategy_of",
]
