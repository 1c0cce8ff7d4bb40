"""Folders of certify, attack and train for the report's tests."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sween.attack import AttackOutcome
from sween.records import Certificate, RowWriter, to_row
from sween.run_folder import to_toml, write_json, write_text
from tests.evaluation.certificates import abstained, certificate, wrong

CANDIDATES = ("ant", "bee")
SETTINGS: dict[str, Any] = {"dataset": "digits", "sigma": 0.5, "alpha": 0.001}
OF_SWEEN: dict[str, Any] = {"model": "sween", "fingerprint": "f" * 64, **SETTINGS}
LOG_HEAD = "idx\tlabel\tpredict\tradius\tcorrect\ttime\n"


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


def write_run(
    folder: Path,
    certificates: Sequence[Certificate],
    *,
    environment: dict[str, Any] | None = None,
    **config: Any,
) -> Path:
    """A run folder as `sween certify` leaves it."""
    folder.mkdir(parents=True)
    write_text(folder / "config.toml", to_toml(config))
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


def write_attacked(
    folder: Path, outcomes: Sequence[AttackOutcome] = OUTCOMES, **config: Any
) -> Path:
    """A folder as `sween attack` leaves it."""
    folder.mkdir(parents=True)
    settings = {"attack": "pgd", "n": 100, "seed": 0, "samples": 8, **OF_SWEEN, **config}
    write_text(folder / "config.toml", to_toml(settings))
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
