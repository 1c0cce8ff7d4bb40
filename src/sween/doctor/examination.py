"""Everything a bug report should say about an installation, in plain text or as JSON.

An examination never fails: what cannot be found out is named in its place.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sween.doctor import installation
from sween.doctor.installation import COMPANIONS, EXTRAS, Facts
from sween.doctor.probes import PROBES
from sween.doctor.self_test import CHECKS
from sween.errors import describe_error

SELF_TEST = "self-test"

SECONDS = 120.0
"""For all probes together: a driver may never answer."""

Examination = dict[str, Facts]
"""Facts by section."""


def examine(data_root: Path | None = None) -> Examination:
    """Describe this installation and test it.

    Args:
        data_root: folder in which to look for data sets.

    Example:
        >>> from sween.doctor import as_text, examine, failed_checks
        >>> found = examine()  # doctest: +SKIP
        >>> print(as_text(found), failed_checks(found))  # doctest: +SKIP
    """
    own: dict[str, Callable[[], Facts]] = {
        "versions": installation.describe_versions,
        "packages": installation.describe_packages,
        "machine": installation.describe_machine,
        "compilers": installation.describe_compilers,
        "folders": installation.describe_folders,
        "data": lambda: installation.describe_data(data_root),
        "variables": installation.describe_variables,
    }
    found = {section: _facts(describe) for section, describe in own.items()}
    probed = run_probes(list(PROBES))
    outcomes = {name: "; ".join(probed.pop(name).values()) for name in CHECKS}
    extras = {
        name: _imported(package, probed.pop(package))
        for name, package in (*EXTRAS.items(), *zip(COMPANIONS, COMPANIONS, strict=True))
    }
    return _without_home({**found, "extras": extras, **probed, SELF_TEST: outcomes})


def failed_checks(examination: Examination) -> list[str]:
    """The names of the self-tests that failed.

    Example:
        >>> from sween.doctor import failed_checks
        >>> failed_checks({"self-test": {"bounds": "ok", "noise": "failed: 3 of 7"}})
        ['noise']
    """
    outcomes = examination[SELF_TEST].items()
    return [name for name, outcome in outcomes if not re.match("ok$|skipped: ", outcome)]


def as_text(examination: Examination) -> str:
    """One line per fact, under the name of its section.

    Example:
        >>> from sween.doctor import as_text
        >>> print(as_text({"versions": {"sween": "0.2.0", "Python": "3.11.7"}}), end="")
        versions
          sween   0.2.0
          Python  3.11.7
    """
    width = max(len(name) for facts in examination.values() for name in facts)
    lines = list[str]()
    for section, facts in examination.items():
        lines += ["", section] if lines else [section]
        lines += [f"  {name:{width}}  {' '.join(value.split())}" for name, value in facts.items()]
    return "\n".join(lines) + "\n"


def _imported(package: str, probed: Facts) -> str:
    """One line about a package; the reason, if it is installed but cannot be imported."""
    reason = f", which CANNOT be imported: {probed['error']}" if "error" in probed else ""
    return f"{package} {installation.version_of(package)}{reason}"


def _facts(describe: Callable[[], Facts]) -> Facts:
    try:
        return describe()
    except Exception as error:  # whatever is broken is a fact as well
        return {"error": describe_error(error)}


def run_probes(names: Sequence[str]) -> dict[str, Facts]:
    """What probes find, each in a process that does not share its fate with this one.

    One process runs them in turn. If it ends or does not answer, the probe that it was at gets the
    reason, and a new process goes on with the next.
    """
    deadline = time.monotonic() + SECONDS
    found, left = dict[str, Facts](), list(names)
    while left:
        answers, ending = _run_process(left, deadline - time.monotonic())
        for answer in answers:
            error = answer.get("error")
            found[str(answer["probe"])] = answer["facts"] if error is None else {"error": error}
        left = [name for name in left if name not in found]
        if left:
            found[left.pop(0)] = {"error": ending}
    return {name: found[name] for name in names}


def _run_process(names: Sequence[str], seconds: float) -> tuple[list[Mapping[str, Any]], str]:
    """What a process of probes printed, and how it ended."""
    # The modules that this process imports, and none from the current folder instead.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-P", "-m", "sween.doctor.probes", *names]
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=max(seconds, 0), env=environment, check=False
        )
    except subprocess.TimeoutExpired as error:
        return _answers(error.stdout), f"no answer within {SECONDS:g} seconds"
    except OSError as error:
        return [], describe_error(error)
    said = done.stderr.decode(errors="replace").strip().splitlines()
    return _answers(done.stdout), f"{_ending(done.returncode)}: {said[-1] if said else 'no output'}"


def _answers(output: bytes | None) -> list[Mapping[str, Any]]:
    answers = list[Mapping[str, Any]]()
    for line in (output or b"").decode(errors="replace").splitlines():
        try:
            answer = json.loads(line)
        except json.JSONDecodeError:
            continue  # printed by a package
        if isinstance(answer, dict) and answer.get("probe") in PROBES:
            answers.append(answer)
    return answers


def _ending(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _without_home(examination: Examination) -> Examination:
    """The same with ~ for the home folder, so that it can be shown to others."""
    try:
        home = Path.home()
    except RuntimeError:
        return examination
    homes = {re.escape(str(path)) for path in (home, home.resolve()) if path != Path("/")}
    if not homes:
        return examination
    pattern = re.compile(rf"(?:{'|'.join(homes)})(?![\w.-])")
    return {
        section: {name: pattern.sub("~", value) for name, value in facts.items()}
        for section, facts in examination.items()
    }
