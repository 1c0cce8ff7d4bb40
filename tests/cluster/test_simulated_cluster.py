"""A large cluster is kept busy by images whose costs differ a hundredfold."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "cluster_speed.py"


@pytest.mark.slow
def test_64_workers_are_busy_nine_tenths_of_the_time() -> None:
    pytest.importorskip("ray")
    command = [sys.executable, str(BENCHMARK), "simulate", "--seconds-per-block", "0.6"]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=800)
    found = json.loads(answer.stdout)
    assert found["workers"] == 64
    assert found["images"] == 1_000
    assert found["efficiency"] > 0.9, found
