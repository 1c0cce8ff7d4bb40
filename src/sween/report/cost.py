"""The paper's cost table: parameters, FLOPs and training time of candidates."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sween.errors import BadInput
from sween.models import ARCHITECTURES, count_flops, count_parameters, create_model
from sween.records import read_rows
from sween.report.grid import Cell, Table
from sween.report.tables import plain_number
from sween.runs import read_config

CLASSES = {"digits": 10, "cifar10": 10}
"""Of the data sets whose networks can be counted without their files."""

_HEADINGS = ("σ", "Model", "training", "parameters", "FLOPs", "epochs", "training seconds")
_FIELDS = ("sigma", "model", "training", "parameters", "flops", "epochs", "seconds")


@dataclasses.dataclass(frozen=True)
class TrainedRun:
    """One folder of `sween train`: its config and the metrics of its epochs."""

    name: str
    config: dict[str, Any]
    metrics: Sequence[dict[str, Any]]


def metrics_file(folder: Path) -> Path | None:
    """The folder's metrics.jsonl, or its compressed form; None where there is neither."""
    for name in ("metrics.jsonl", "metrics.jsonl.gz"):
        if (folder / name).is_file():
            return folder / name
    return None


def load_trained(folder: Path) -> TrainedRun:
    """Read a folder of `sween train`; the weights need not be there."""
    file, config = metrics_file(folder), read_config(folder)
    if file is None or "arch" not in config:
        raise BadInput(
            str(folder),
            expected="a folder of `sween train`",
            got="no metrics" if file is None else "a config without arch",
            fix="name a run folder",
        )
    return TrainedRun(folder.resolve().name, config, read_rows(file))


def _size(run: TrainedRun) -> tuple[int, int]:
    """Parameters and multiply-adds of the registered network on its data set."""
    arch, dataset = run.config["arch"], run.config["dataset"]
    if arch not in ARCHITECTURES or dataset not in CLASSES:
        raise BadInput(
            run.name,
            expected=f"a registered network on {' or '.join(CLASSES)}",
            got=f"{arch} on {dataset}",
            fix="leave this run out",
        )
    shape = ARCHITECTURES[arch].image_shape
    model = create_model(arch, num_classes=CLASSES[dataset], image_shape=shape)
    return count_parameters(model), count_flops(model, shape)


def cost_table(trained: Sequence[TrainedRun]) -> Table | None:
    """Parameters, multiply-adds and training time; None without training runs.

    Seconds are those of the epochs: candidates trained at once share a GPU and each count the time
    that all of them took together.
    """
    rows = []
    for run in trained:
        parameters, flops = _size(run)
        seconds = sum(float(row["seconds"]) for row in run.metrics)
        rows.append(
            [
                Cell(plain_number(run.config["sigma"]), run.config["sigma"]),
                Cell(run.config["arch"], run.config["arch"]),
                Cell(run.config["method"], run.config["method"]),
                Cell(f"{parameters:,}", parameters),
                Cell(f"{flops:,}", flops),
                Cell(f"{len(run.metrics):,}", len(run.metrics)),
                Cell(f"{seconds:,.0f}", seconds),
            ]
        )
    return Table("cost", _HEADINGS, _FIELDS, rows, (1, 2)) if rows else None
