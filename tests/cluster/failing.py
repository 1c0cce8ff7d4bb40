"""A command that fails, for a job; imported there by name."""

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str]) -> int:
    sys.stdout.write(" ".join(arguments))
    sys.stderr.write("sween: warning: this will not work\nsween: error: no such data set\n")
    return 2
