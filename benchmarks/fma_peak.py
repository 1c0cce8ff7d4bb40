"""Multiply-adds per second that a CPU's vector units reach, with nothing else to do.

A loop of independent fused multiply-adds in registers, built by the C compiler of the machine for
its own instructions; one thread per core. None where there is no compiler.
"""

import ctypes
import shutil
import subprocess
import tempfile
import threading
import time
from pathlib import Path

_LANES, _CHAINS = 16, 12
_SOURCE = f"""
typedef float lanes __attribute__((vector_size({4 * _LANES})));
float run(long rounds, float x) {{
    lanes a = {{0}}, b = {{0}}, sums[{_CHAINS}];
    a += x; b += 1e-7f;
    for (int k = 0; k < {_CHAINS}; k++) sums[k] = b + (float)k;
    for (long i = 0; i < rounds; i++)
        #pragma GCC unroll {_CHAINS}
        for (int k = 0; k < {_CHAINS}; k++) sums[k] = sums[k] * a + b;
    lanes all = {{0}};
    for (int k = 0; k < {_CHAINS}; k++) all += sums[k];
    float total = 0;
    for (int k = 0; k < {_LANES}; k++) total += all[k];
    return total;
}}
"""


def fma_flops(threads: int, *, seconds: float = 1.0) -> float | None:
    """Float32 operations per second (a multiply-add is two) over all threads."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder) / "fma.c", Path(folder) / "fma.so"
        source.write_text(_SOURCE)
        options = ["-O3", "-march=native", "-ffast-math", "-shared", "-fPIC", "-o", str(library)]
        subprocess.run([compiler, str(source), *options], check=True)
        run = ctypes.CDLL(str(library)).run
    run.argtypes, run.restype = [ctypes.c_long, ctypes.c_float], ctypes.c_float
    rounds, took = 1_000_000, 0.0
    while took < seconds / 2:
        rounds *= 2
        workers = [threading.Thread(target=run, args=(rounds, 0.5)) for _ in range(threads)]
        began = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        took = time.perf_counter() - began
    return threads * rounds * _CHAINS * _LANES * 2 / took
