"""A certification run as `sween certify` makes it, in one call."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from sween.data import Dataset
from sween.ensemble import LoadedEnsemble
from sween.runs import CertificationRun
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
    weightings: Mapping[str, Sequence[float]] | None = None,
    devices: Sequence[torch.device] | None = None,
    **options: Any,
) -> CertificationRun:
    smoothed = SmoothedClassifier(
        loaded,
        sigma=loaded.sigma,
        num_classes=loaded.num_classes,
        member_names=loaded.member_names if members else None,
        weightings=weightings,
        levels=dataset.test.white,
        **options,
    )
    return certify_dataset(
        smoothed,
        dataset,
        out=out,
        indices=positions,
        settings=settings,
        devices=devices,
        quiet=True,
    )
