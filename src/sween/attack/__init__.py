"""Adversarial attacks on the smoothed classifier.

The robust accuracy under attack is an upper bound, as certified accuracy is a lower one.
"""

from sween.attack.autoattack import autoattack
from sween.attack.ddn import ddn
from sween.attack.pgd import pgd
from sween.attack.run import attack_dataset, refuse_alarms
from sween.attack.scoring import Judge
from sween.runs.attack import verify_attacks
from sween.runs.attack_outcome import (
    AttackOutcome,
    contradicts,
    decode_image,
    empirical_accuracy,
    outcomes_file,
    without_attack,
)
from sween.runs.attack_settings import ATTACKS, AttackSettings
from sween.smoothing.smoothed_logits import PlainProbabilities, SmoothedLogits

__all__ = [
    "ATTACKS",
    "AttackOutcome",
    "AttackSettings",
    "Judge",
    "PlainProbabilities",
    "SmoothedLogits",
    "attack_dataset",
    "autoattack",
    "contradicts",
    "ddn",
    "decode_image",
    "empirical_accuracy",
    "outcomes_file",
    "pgd",
    "refuse_alarms",
    "verify_attacks",
    "without_attack",
]
