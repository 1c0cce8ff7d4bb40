"""A certification run as `sween certify` makes it, in one call."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import sween
from sween.data import Dataset
from sween.ensemble import LoadedEnsemble
from sween.runs import CertificationRun, Shard
from sween.sampling import CertifySettings
from sween.smoothing import SmoothedClassifier, certify_dataset


def certify_into(
    out: Path | str,
    loaded: LoadedEnsemble,
    dataset: Dataset,
    positions: Sequence[int],
    settings: CertifySettings,
    *,
    members: bool = False,
    devices: Sequence[torch.device] | None = None,
    shard: Shard | None = None,
    **options: Any,
) -> CertificationRun:
    options |= {"member_names": loaded.member_names if members else None}
    options |= {"num_classes": loaded.num_classes, "levels": dataset.test.white}
    smoothed = SmoothedClassifier(loaded, sigma=loaded.sigma, **options)
    run = {"indices": positions, "settings": settings, "devices": devices, "shard": shard}
    return certify_dataset(smoothed, dataset, out=out, quiet=True, **run)  # type: ignore[arg-type]


def certify_digits(
    out: Path, settings: CertifySettings, count: int = 12, **options: Any
) -> CertificationRun:
    """The first digits, by the zoo's ensemble."""
    model, digits = sween.load("digits-sween3-gaussian-sigma0.50"), sween.load_dataset("digits")
    return certify_into(out, model, digits, range(count), settings, **options)
