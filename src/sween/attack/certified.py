"""Certificates beside an attack: whether they are of the same classifier, and which they are."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from sween.paths import AnyPath
from sween.records import Certificate
from sween.runs import CertificationRun

SAME = ("fingerprint", "data", "sigma", "noise", "precision")
"""With the exit, what makes configs speak of one classifier on one data set; its votes are hard."""

SAME_IF_KNOWN = ("labels", "contents")
"""Likewise, but older configs do not have it; `contents` speaks of the images of `indices`."""


def certified_name(attack: Mapping[str, Any], certificates: Mapping[str, Any]) -> str | None:
    """The model of a run that is the attacked one, with its exit; None where it has no such exit.

    A run may certify an ensemble with several exits, and its members, which have none.
    """
    model, exit = attack.get("model"), attack.get("exit", "none")
    members, exits = certificates.get("members"), certificates.get("exits")
    if isinstance(members, list) and model in members:
        return str(model) if exit == "none" else None
    if model != certificates.get("model", model):
        return None  # a member, which carries its ensemble's fingerprint, and was not certified
    if exit == certificates.get("exit", "none"):
        return str(model)
    known = exits.items() if isinstance(exits, Mapping) else ()
    return next((name for name, other in known if other == exit), None)


def differences(attack: Mapping[str, Any], certificates: Mapping[str, Any]) -> list[str]:
    """In what the certified classifier is another than the one attacked."""
    found = [
        f"{name} {certificates.get(name)!r}, not {attack.get(name)!r}"
        for name in SAME
        if attack.get(name) != certificates.get(name)
    ]
    for name in SAME_IF_KNOWN:
        own, other = attack.get(name), certificates.get(name)
        comparable = name != "contents" or attack.get("indices") == certificates.get("indices")
        if comparable and None not in (own, other) and own != other:
            found.append(f"{name} {other!r}, not {own!r}")
    if certified_name(attack, certificates) is None:
        wanted = f"{attack.get('model')} with exit {attack.get('exit', 'none')!r}"
        found.append(f"none of {wanted}")
    if certificates.get("votes", "hard") != "hard":
        found.append(f"votes {certificates['votes']!r}, not 'hard'")
    return found


def read_certified(
    folder: AnyPath, model: str, *, labels: Sequence[int] | None = None
) -> dict[int, Certificate]:
    """The certificates of one model of a folder by index; each is checked, see `CertificationRun`.

    Args:
        folder: of a certification run.
        model: whose.
        labels: the true classes of the data set, where they are at hand: others are refused.
    """
    run = CertificationRun.read(folder)
    if labels is not None:
        run.check_labels(labels)
    return {row.index: row for row in run.of(model)}


def digest_of_radii(radii: Mapping[int, float | None]) -> str:
    """A short name for the radii, by index, that rows of an attack are held against."""
    content = [
        [index, None if radii[index] is None else repr(radii[index])] for index in sorted(radii)
    ]
    return hashlib.blake2b(json.dumps(content).encode(), digest_size=8).hexdigest()


def digest(certificates: Mapping[int, Certificate] | None) -> str:
    """A short name for what an attack holds its images against; empty for nothing."""
    if certificates is None:
        return ""
    content = [
        [index, certificates[index].prediction, repr(certificates[index].radius)]
        for index in sorted(certificates)
    ]
    return hashlib.blake2b(json.dumps(content).encode(), digest_size=8).hexdigest()
