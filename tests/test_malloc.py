"""Freed memory stays with the process."""

import os
import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource
import numpy as np
from sween.malloc import keep_freed_memory
keep_freed_memory()
for round in range(11):
    if round == 1:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    buffers = [np.ones(3_000_000) for _ in range(4)]  # 96 MB
    del buffers
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(**environment: str) -> int:
    answer = subprocess.run(
        [sys.executable, "-c", FAULTS],
        env=os.environ | environment,
        capture_output=True,
        check=True,
        text=True,
    )
    return int(answer.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="settings of glibc")
def test_freed_buffers_are_used_again_unless_the_user_chose_otherwise() -> None:
    assert page_faults() < 1_000 < page_faults(MALLOC_TRIM_THRESHOLD_="1000000")
