"""The paper's cost table: parameters, FLOPs and training time of candidates."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sween.errors import BadInput
from sween.models import ARCHITECTURES, count_flops, count_parameters, create_model
from sween.paths import AnyPath
from sween.records import read_rows
from sween.report.grid import Cell, Table
from sween.report.tables import plain_number
from sween.run_folder import read_config

CLASSES = {"digits": 10, "cifar10": 10}
"""Of the data sets whose networks can be counted without their files."""

_HEADINGS = (
    *("run", "σ", "Model", "training", "seed", "parameters", "FLOPs", "epochs"),
    "training seconds",
)
_FIELDS = (
    *("run", "sigma", "model", "training", "seed", "parameters", "flops", "epochs"),
    "seconds",
)


@dataclasses.dataclass(frozen=True)
class TrainedRun:
    """One folder of `sween train`: its config and the metrics of its epochs."""

    name: str
    config: dict[str, Any]
    metrics: Sequence[dict[str, Any]]


def metrics_file(folder: AnyPath) -> Path | None:
    """The folder's metrics.jsonl, or its compressed form; None where there is neither."""
    folder = Path(folder)
    for name in ("metrics.jsonl", "metrics.jsonl.gz"):
        if (folder / name).is_file():
            return folder / name
    return None


def load_trained(folder: AnyPath) -> TrainedRun:
    """Read and check a folder of `sween train`; the weights need not be there."""
    folder = Path(folder)
    file, config = metrics_file(folder), read_config(folder)
    if file is None or "arch" not in config:
        raise BadInput(
            str(folder),
            expected="a folder of `sween train`",
            got="no metrics" if file is None else "a config without arch",
            fix="name a run folder",
        )
    kinds: dict[str, type | tuple[type, ...]] = {
        **dict.fromkeys(("arch", "dataset", "method"), str),
        "sigma": (int, float),
        "seed": int,
    }
    wrong = [name for name, kind in kinds.items() if not isinstance(config.get(name), kind)]
    metrics = read_rows(file)
    lost = [
        number
        for number, row in enumerate(metrics, start=1)
        if isinstance(row.get("seconds"), bool) or not isinstance(row.get("seconds"), int | float)
    ]
    if wrong or lost:
        raise BadInput(
            f"{file}, line {lost[0]}" if lost else f"{folder / 'config.toml'}: {wrong[0]}",
            expected="what `sween train` writes there" + (": seconds" if lost else ""),
            got="another content" if lost else repr(config.get(wrong[0])),
            fix="restore the folder from its source",
        )
    return TrainedRun(folder.resolve().name, config, metrics)


def _size(run: TrainedRun) -> tuple[int | None, int | None]:
    """Parameters and multiply-adds of a registered network on its data set; None of others."""
    arch, dataset = run.config["arch"], run.config["dataset"]
    if arch not in ARCHITECTURES or dataset not in CLASSES:
        return None, None
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
        seconds = sum(float(row["seconds"]) for row in run.metrics)
        config = run.config
        rows.append(
            [
                Cell(run.name, run.name),
                Cell(plain_number(config["sigma"]), config["sigma"]),
                *(Cell(config[name], config[name]) for name in ("arch", "method")),
                Cell(str(config["seed"]), config["seed"]),
                *(Cell("-") if size is None else Cell(f"{size:,}", size) for size in _size(run)),
                Cell(f"{len(run.metrics):,}", len(run.metrics)),
                Cell(f"{seconds:,.0f}", seconds),
            ]
        )
    return Table("cost", _HEADINGS, _FIELDS, rows, (0, 2, 3)) if rows else None
