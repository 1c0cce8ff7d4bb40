"""Folders of certify, attack and train for the report's tests."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sween.attack import AttackOutcome
from sween.data.selection import format_indices
from sween.records import Certificate, RowWriter, to_row
from sween.run_folder import to_toml, write_json, write_text
from tests.evaluation.certificates import abstained, certificate, wrong

CANDIDATES = ("ant", "bee")
DIGITS: dict[str, Any] = {"dataset": "digits"}
WITH_MEMBERS: dict[str, Any] = {**DIGITS, "members": [*CANDIDATES], "ensemble": "sween"}
LOG_HEAD = "idx\tlabel\tpredict\tradius\tcorrect\ttime"


def ensemble_rows(first: int = 10, **fields: Any) -> list[Certificate]:
    """Two candidates and the ensemble "sween" on four images: ACR .375, .3 and .65."""
    second, third, fourth = first + 1, first + 2, first + 3
    return [
        certificate(first, 0.5, model="ant", **fields),
        certificate(second, 1.0, model="ant", **fields),
        wrong(third, model="ant", **fields),
        abstained(fourth, model="ant", **fields),
        certificate(first, 0.4, model="bee", **fields),
        certificate(second, 0.4, model="bee", **fields),
        certificate(third, 0.4, model="bee", **fields),
        wrong(fourth, model="bee", **fields),
        certificate(first, 0.9, model="sween", **fields),
        certificate(second, 1.2, model="sween", **fields),
        certificate(third, 0.5, model="sween", **fields),
        abstained(fourth, model="sween", **fields),
    ]


def subject(rows: Sequence[Certificate | AttackOutcome], **changes: Any) -> dict[str, Any]:
    """What the configs of certificates and of attacks share."""
    indices = sorted({row.index for row in rows})
    model = changes.get("model", rows[-1].model.partition("+")[0])
    sample = next((row for row in rows if row.model == model), rows[-1])
    candidates = changes.get("members", [model])
    return {
        "dataset": "toys",
        "indices": format_indices(indices),
        "images": len(indices),
        "model": model,
        "candidates": candidates,
        "weights": [1 / len(candidates)] * len(candidates),
        **{name: getattr(sample, name) for name in ("sigma", "n", "alpha", "seed")},
        "forward_rows": 100,
        "precision": "float32",
        "noise": "float32",
        **changes,
    }


def run_config(rows: Sequence[Certificate], **changes: Any) -> dict[str, Any]:
    """The config that `sween certify` would have written, with changes."""
    own = {name: getattr(rows[0], name) for name in ("n0", "bound", "exit", "votes")}
    return subject(rows, **{**own, "sampling": "fixed", **changes})


def write_run(
    folder: Path,
    certificates: Sequence[Certificate],
    *,
    environment: dict[str, Any] | None = None,
    **config: Any,
) -> Path:
    """A run folder as `sween certify` leaves it."""
    folder.mkdir(parents=True)
    write_text(folder / "config.toml", to_toml(run_config(certificates, **config)))
    if environment is not None:
        write_json(folder / "environment.json", environment)
    with RowWriter(folder / "certificates.jsonl") as writer:
        writer.append(to_row(row) for row in certificates)
    return folder


def attack_outcome(index: int, eps: float, outcome: str, **fields: Any) -> AttackOutcome:
    """An attack's row, every field filled."""
    defaults: dict[str, Any] = {
        "label": 1,
        "attack": "pgd",
        "clean_prediction": 1,
        "prediction": 1,
        "counts": (1, 99),
        "distance": eps / 2,
        "n": 100,
        "alpha": 0.001,
        "tries": 1,
        "judge_alpha": 0.001,
        "judge_seed": 0,
        "samples": 8,
        "gradients": "plain",
        "surrogate_rows": 4096,
        "steps": 5,
        "sigma": 0.5,
        "seed": 0,
        "model": "sween",
    }
    return AttackOutcome(index=index, eps=eps, outcome=outcome, **(defaults | fields))


OUTCOMES = [
    *(attack_outcome(10, eps, "robust") for eps in (0.25, 0.75)),
    *(attack_outcome(11, eps, "abstained", prediction=-1) for eps in (0.25, 0.75)),
    attack_outcome(12, 0.25, "robust"),
    attack_outcome(12, 0.75, "broken", prediction=0),
    *(attack_outcome(13, eps, "declined", clean_prediction=-1) for eps in (0.25, 0.75)),
]


def attack_config(outcomes: Sequence[AttackOutcome], **changes: Any) -> dict[str, Any]:
    """The config that `sween attack` would have written, with changes."""
    return {
        **subject(outcomes),
        "eps": sorted({row.eps for row in outcomes}),
        "attack": outcomes[-1].attack,
        "samples": outcomes[-1].samples,
        "steps": outcomes[-1].steps,
        "batch_size": 32,
        "certificates": "",
        "gradients": "plain",
    } | changes


def write_attacked(
    folder: Path, outcomes: Sequence[AttackOutcome] = OUTCOMES, **config: Any
) -> Path:
    """A folder as `sween attack` leaves it."""
    folder.mkdir(parents=True)
    write_text(folder / "config.toml", to_toml(attack_config(outcomes, **config)))
    with RowWriter(folder / "attacks.jsonl") as writer:
        writer.append(to_row(row) for row in outcomes)
    return folder


EPOCH = '{"epoch": 1, "loss": 2.3, "noisy_accuracy": 0.1, "seconds": 1.5}'


def write_trained(folder: Path, metrics: str = EPOCH, **changes: Any) -> Path:
    """A folder as `sween train` leaves it, without the weights."""
    folder.mkdir(parents=True)
    config = {"arch": "digits-mlp", "dataset": "digits", "sigma": 0.5, "method": "gaussian"}
    write_text(folder / "config.toml", to_toml({**config, "seed": 0, **changes}))
    write_text(folder / "metrics.jsonl", metrics + "\n")
    return folder


def write_log(path: Path, *rows: tuple[int, int, str]) -> Path:
    """A published log: index, prediction and printed radius of each image, all of class 1."""
    lines = [f"{index}\t1\t{name}\t{radius}\t{int(name == 1)}\t1.0" for index, name, radius in rows]
    write_text(path, "\n".join([LOG_HEAD, *lines]) + "\n")
    return path


def read_csv(report: Path, name: str) -> list[dict[str, str]]:
    """A table of a report."""
    with report.with_name(f"{name}.csv").open(encoding="utf-8") as stream:
        return list(csv.DictReader(stream))
