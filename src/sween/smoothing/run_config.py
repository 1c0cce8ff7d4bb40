"""The config of a run: what was certified or attacked, and what is needed to check its rows."""

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from sween.data.selection import format_indices
from sween.engine import VoteEngine
from sween.ensemble import LoadedEnsemble, WeightedEnsemble
from sween.models.source_code import source_digest
from sween.runs.subject import UNLABELED
from sween.sampling import CertifySettings
from sween.smoothing.chosen_images import ChosenImages
from sween.smoothing.classifier import SmoothedClassifier


def subject_config(
    model: nn.Module,
    chosen: ChosenImages,
    *,
    name: str,
    sigma: float,
    member_names: Sequence[str] | None = None,
) -> dict[str, Any]:
    """The model and the images: the first part of every run's config."""
    candidates, weights = [name], [1.0]
    if isinstance(model, LoadedEnsemble):
        candidates = list(member_names or model.member_names)
    elif isinstance(model, WeightedEnsemble):
        numbered = (f"member{number}" for number in range(1, len(model.members) + 1))
        candidates = list(member_names or numbered)
    if isinstance(model, WeightedEnsemble):
        weights = model.weights.tolist()
    images, dataset = chosen.source, chosen.dataset
    contents = images.pixels.contents(chosen.positions)
    archs = [each.arch for each in model.manifests] if isinstance(model, LoadedEnsemble) else ()
    code = source_digest(model, archs)
    return {
        "dataset": images.name if dataset is None else dataset.name,
        "split": "test",
        "data": images.pixels.fingerprint(),
        "labels": images.label_fingerprint() or UNLABELED,
        **({} if contents is None else {"contents": contents}),
        **({} if dataset is None else dataset.options),
        "indices": format_indices(chosen.positions),
        "images": len(chosen.positions),
        **({"skipped": format_indices(chosen.skipped)} if chosen.skipped else {}),
        "model": name,
        "fingerprint": (
            model.fingerprint if isinstance(model, LoadedEnsemble) else _fingerprint(model)
        ),
        **({} if code is None else {"source_code": code}),
        "candidates": candidates,
        "weights": weights,
        "sigma": sigma,
    }


def run_config(
    smoothed: SmoothedClassifier,
    engine: VoteEngine,
    chosen: ChosenImages,
    settings: CertifySettings,
) -> dict[str, Any]:
    """The config of a certification run: what was certified, and what is needed to check rows."""
    members, variants = engine.member_names, engine.variants
    config: dict[str, Any] = {
        "kind": "certificates",
        **subject_config(
            smoothed.model,
            chosen,
            name=smoothed.name,
            sigma=smoothed.sigma,
            member_names=members,
        ),
        "exit": engine.exits[smoothed.name],
        **settings.as_dict(),
    }
    if members is not None:
        config |= {"members": list(members), "ensemble": smoothed.name}
    weightings = {own.name: list(own.weights) for own in variants if own.weights is not None}
    if weightings:
        config["weightings"] = weightings
    exits = {
        own.name: own.policy.describe()
        for own in variants
        if own.weights is None and own.name != smoothed.name
    }
    if exits:
        config["exits"] = exits
    return config | engine_config(engine)


def engine_config(engine: VoteEngine) -> dict[str, Any]:
    """The device and the arithmetic of a prepared engine: the last part of every run's config."""
    return {
        "device": engine.device.type,
        "forward_rows": engine.rows_asked,
        "precision": engine.precision,
        "noise": engine.noise.name,
    }


def _fingerprint(module: nn.Module) -> str:
    """SHA-256 of the class names and settings of all submodules and of all tensors.

    It does not cover code; see `source_digest`.
    """
    hasher = hashlib.sha256()
    for name, part in module.named_modules():
        own = f"{type(part).__module__}.{type(part).__qualname__}({part.extra_repr()})"
        hasher.update(f"{name} {own}\n".encode())
    tensors = (*module.named_parameters(), *module.named_buffers())
    for name, tensor in sorted(tensors, key=lambda named: named[0]):
        hasher.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        content = tensor.detach().cpu().contiguous().flatten()
        hasher.update(content.view(torch.uint8).numpy().data if content.numel() else b"")
    if isinstance(module, WeightedEnsemble):
        hasher.update(repr(module.weights.tolist()).encode())
    return hasher.hexdigest()
