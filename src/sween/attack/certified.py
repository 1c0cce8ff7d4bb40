"""Certificates beside an attack: whether they are of the same classifier, and which they are."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sween.errors import BadInput
from sween.records import Certificate, from_row, read_rows, records_file, row_checksum
from sween.runs import read_config

SAME = ("fingerprint", "data", "sigma", "exit", "noise", "precision")
"""What makes two configs speak of one classifier on one data set; its votes are hard."""


def differences(attack: Mapping[str, Any], certificates: Mapping[str, Any]) -> list[str]:
    """In what the certified classifier is another than the one attacked."""
    found = [
        f"{name} {certificates.get(name)!r}, not {attack.get(name)!r}"
        for name in SAME
        if attack.get(name) != certificates.get(name)
    ]
    if certificates.get("votes", "hard") != "hard":
        found.append(f"votes {certificates['votes']!r}, not 'hard'")
    return found


def read_certified(folder: Path, model: str) -> tuple[dict[str, Any], dict[int, Certificate]]:
    """A folder's config, and the certificates of one model by index; damaged ones refused."""
    config, file = read_config(folder), records_file(folder)
    certificates = {}
    for number, row in enumerate(read_rows(file), start=1):
        where = f"{file}, line {number}"
        if row.get("checksum") != row_checksum(row):
            raise BadInput(
                where, expected="a row that fits its checksum", got="another", fix="restore it"
            )
        if row.get("model") == model:
            certificate = from_row(row, where=where)
            certificates[certificate.index] = certificate
    return config, certificates


def digest(certificates: Mapping[int, Certificate] | None) -> str:
    """A short name for what an attack holds its images against; empty for nothing."""
    if certificates is None:
        return ""
    content = [
        [index, certificates[index].prediction, repr(certificates[index].radius)]
        for index in sorted(certificates)
    ]
    return hashlib.blake2b(json.dumps(content).encode(), digest_size=8).hexdigest()
