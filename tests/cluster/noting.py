"""A command that only notes its shard, for a job; imported there by name."""

import os
from collections.abc import Sequence


def main(arguments: Sequence[str]) -> int:
    with open(os.environ["RAN"], "a") as file:
        file.write(arguments[arguments.index("--shard") + 1] + "\n")
    return 0
