"""The vote engine: noisy copies of images in, integer counts by voter out."""

from sween.engine.engine import ForwardPassShrunk, VoteEngine
from sween.engine.noise import NOISES, PIXEL_LEVELS, NoiseKind
from sween.engine.pool import Pool
from sween.engine.preparation import COMPILE_MODES, DEFAULT_COMPILE_MODE, PRECISIONS, Preparation
from sween.engine.prepared_members import prepared_ensemble
from sween.engine.voters import Voters
from sween.engine.votes import VoteRequest, Votes

__all__ = [
    "COMPILE_MODES",
    "DEFAULT_COMPILE_MODE",
    "NOISES",
    "PIXEL_LEVELS",
    "PRECISIONS",
    "ForwardPassShrunk",
    "NoiseKind",
    "Pool",
    "Preparation",
    "VoteEngine",
    "VoteRequest",
    "Voters",
    "Votes",
    "prepared_ensemble",
]
