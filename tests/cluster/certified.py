"""Runs on the digits, and what of their rows must not depend on who counted."""

import json
from pathlib import Path
from typing import Any

import sween
from sween.engine import Pool
from sween.runs import verify_folder
from sween.sampling import CertifySettings
from sween.smoothing import SmoothedClassifier, certify_dataset

SETTINGS = {
    "fixed": CertifySettings(n=1_000),
    "decide": CertifySettings(n=3_000, sampling="decide", radii=(0.25, 0.6)),
    "tolerance": CertifySettings(n=3_000, n0=500, sampling="tolerance", tolerance=0.1),
    "budget": CertifySettings(n=3_000, n0=500, sampling="budget", budget=20_000),
    "soft": CertifySettings(n=1_000, votes="soft"),
}


def certify(
    out: Path,
    settings: CertifySettings,
    pool: Pool | None,
    *,
    images: int = 12,
    members: bool = False,
    **options: Any,
) -> list[dict[str, Any]]:
    """Certify the first digits; the rows of the folder without their times, in order."""
    model, digits = sween.load("digits-sween3-gaussian-sigma0.50"), sween.load_dataset("digits")
    smoothed = SmoothedClassifier(
        model,
        sigma=model.sigma,
        num_classes=10,
        member_names=model.member_names if members else None,
        levels=digits.test.white,
        **options,
    )
    certify_dataset(
        smoothed, digits, out=out, indices=range(images), settings=settings, pool=pool, quiet=True
    )
    verify_folder(out)
    return rows(out)


def rows(out: Path) -> list[dict[str, Any]]:
    """The rows of a folder without their times, in order."""
    lines = (out / "certificates.jsonl").read_text(encoding="utf-8").splitlines()
    timed = ("seconds", "checksum")
    return [{k: v for k, v in json.loads(line).items() if k not in timed} for line in lines]
