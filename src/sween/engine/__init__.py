"""The vote engine: noisy copies of images in, integer counts by voter out."""

from sween.engine.engine import VoteEngine
from sween.engine.noise import NOISES, NoiseKind
from sween.engine.prepare import PRECISIONS, Preparation

__all__ = ["NOISES", "PRECISIONS", "NoiseKind", "Preparation", "VoteEngine"]
