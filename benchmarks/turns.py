"""Turns of a long benchmark: rows in a file that later calls add to, until no subject is missing.

A machine may be there for ten minutes at a time. A call leaves out what the file already has, and
begins with what was tried least often, so that one subject that never ends does not keep the
others from their turn.
"""

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from sween.run_folder import describe_environment, write_json

SAME_MACHINE = ("torch", "gpu", "processor")
"""What must not change between calls: rates of different machines belong in different files."""


class Turns:
    """The subjects of a benchmark that are still to be measured.

    Args:
        path: of the file, which may have rows already.
        subjects: by name, in the order of their first turn.
        seconds: after which no turn begins.
        content: of the file, besides the rows; must be that of the call that began it.
    """

    def __init__(
        self,
        path: Path,
        subjects: Sequence[str],
        seconds: float,
        content: Mapping[str, Any] | None = None,
    ) -> None:
        self.path, self.subjects, self._content = path, list(subjects), dict(content or {})
        self._end = time.monotonic() + seconds
        self._environment = describe_environment()
        self.rows, self.tries = list[dict[str, Any]](), dict[str, int]()
        if path.exists():
            self._resume()

    def _resume(self) -> None:
        try:
            known = json.loads(self.path.read_text(encoding="utf-8"))
            self.rows, self.tries = list(known["results"]), dict(known["tries"])
            then = known["environment"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            _refuse(f"{self.path}: expected a file of this benchmark, got {error!r}; give another")
        now = self._environment
        changed = [f"{key} {then.get(key)}" for key in SAME_MACHINE if then.get(key) != now[key]]
        changed += [f"{key} {known.get(key)}" for key, own in self._content.items()
                    if known.get(key) != own]  # fmt: skip
        if changed:
            _refuse(f"{self.path}: expected rows measured like these, got {', '.join(changed)}; "
                    "give another file")  # fmt: skip

    @property
    def missing(self) -> list[str]:
        """Subjects without rows, those tried least often first."""
        known = {row["subject"] for row in self.rows}
        left = [name for name in self.subjects if name not in known]
        return sorted(left, key=lambda name: self.tries.get(name, 0))

    @property
    def seconds_left(self) -> float:
        return self._end - time.monotonic()

    def __iter__(self) -> Iterator[str]:
        """Each missing subject once, while there is time."""
        for name in self.missing:
            if self.seconds_left <= 0:
                return
            self.tries[name] = self.tries.get(name, 0) + 1
            self._write()  # before it is measured: the call may be killed meanwhile
            yield name

    def add(self, subject: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Keep what was measured of a subject."""
        commit = self._environment["commit"]
        self.rows += [{"subject": subject, **row, "commit": commit} for row in rows]
        self._write()

    def say_what_is_missing(self) -> None:
        """One line, for the end of a call."""
        left = ", ".join(f"{name} (tried {self.tries.get(name, 0)} times)" for name in self.missing)
        if left:
            sys.stdout.write(f"not measured: {left}; call again with the same --out\n")
        else:
            sys.stdout.write(f"all {len(self.subjects)} measured, in {self.path}\n")

    def _write(self) -> None:
        content = {"environment": self._environment, **self._content, "tries": self.tries}
        write_json(self.path, {**content, "results": self.rows})


def _refuse(message: str) -> NoReturn:
    sys.stderr.write(f"{message}\n")
    raise SystemExit(2)
