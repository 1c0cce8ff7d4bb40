"""Matching certificates to an attack: same classifier, same data, and which certificates."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from sween.records import Certificate

SAME = ("fingerprint", "data", "sigma", "noise", "precision")
"""Config keys that, with the exit, identify a classifier on a data set; votes must be hard."""

SAME_IF_KNOWN = ("labels", "contents")
"""Likewise, but missing from older configs; `contents` covers the images of `indices`."""


def certified_name(attack: Mapping[str, Any], certificates: Mapping[str, Any]) -> str | None:
    """The name of the attacked model and exit in a certification run; None if it is not there.

    A run may certify an ensemble with several exits, and its members, which have no exit.
    """
    model, exit = attack.get("model"), attack.get("exit", "none")
    members, exits = certificates.get("members"), certificates.get("exits")
    if isinstance(members, list) and model in members:
        return str(model) if exit == "none" else None
    if model != certificates.get("model", model):
        return None  # a member has its ensemble's fingerprint, but was not certified
    if exit == certificates.get("exit", "none"):
        return str(model)
    known = exits.items() if isinstance(exits, Mapping) else ()
    return next((name for name, other in known if other == exit), None)


def differences(attack: Mapping[str, Any], certificates: Mapping[str, Any]) -> list[str]:
    """How the certified classifier differs from the attacked one."""
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


def digest_of_radii(radii: Mapping[int, float | None]) -> str:
    """A short digest of the certified radii, by index, that rows are checked against."""
    return _digest(
        [index, None if radii[index] is None else repr(radii[index])] for index in sorted(radii)
    )


def digest(certificates: Mapping[int, Certificate] | None) -> str:
    """A short digest of the certificates that an attack was given; empty for none."""
    if certificates is None:
        return ""
    return _digest(
        [index, certificates[index].prediction, repr(certificates[index].radius)]
        for index in sorted(certificates)
    )


def _digest(content: Iterable[object]) -> str:
    return hashlib.blake2b(json.dumps(list(content)).encode(), digest_size=8).hexdigest()
