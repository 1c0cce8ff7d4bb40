"""Certification throughput on this machine, compared with the loop of the published code."""

from sween.bench.published_loop import REFERENCE_BATCH, reference_votes
from sween.bench.table import faster_arithmetics, to_table
from sween.bench.throughput import BenchResult, OtherArithmetic, measure
from sween.bench.untrained import calibrate_batch_norm

__all__ = [
    "REFERENCE_BATCH",
    "BenchResult",
    "OtherArithmetic",
    "calibrate_batch_norm",
    "faster_arithmetics",
    "measure",
    "reference_votes",
    "to_table",
]
