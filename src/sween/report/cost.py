"""Training runs and the paper's cost table: parameters, FLOPs and training time."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sween.errors import BadInput
from sween.models import ARCHITECTURES, count_flops, count_parameters, create_model
from sween.paths import AnyPath
from sween.records import read_rows
from sween.report.tables import Column, Table, make_table, plain_number, whole_number
from sween.run_folder import read_config

CLASSES = {"digits": 10, "cifar10": 10}
"""Number of classes of the data sets whose networks can be sized without their files."""

_COLUMNS = (
    Column("run", "run", setting=True),
    Column("σ", "sigma", plain_number, setting=True),
    Column("Model", "model"),
    Column("training", "training"),
    Column("seed", "seed", str),
    Column("parameters", "parameters", whole_number),
    Column("FLOPs", "flops", whole_number),
    Column("epochs", "epochs", whole_number),
    Column("training seconds", "seconds", whole_number),
)


@dataclasses.dataclass(frozen=True)
class TrainedRun:
    """One folder of `sween train`: its config and the metrics of its epochs."""

    name: str
    config: dict[str, Any]
    metrics: Sequence[dict[str, Any]]


def metrics_file(folder: AnyPath) -> Path | None:
    """The folder's metrics.jsonl, plain or compressed; None without either."""
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
        got = "no metrics" if file is None else "a config without arch"
        raise BadInput(
            str(folder), expected="a folder of `sween train`", got=got, fix="name a run folder"
        )
    restore = "restore the folder from its source"
    kinds = {**dict.fromkeys(("arch", "dataset", "method"), str), "sigma": int | float, "seed": int}
    for name, kind in kinds.items():
        if not isinstance(config.get(name), kind):
            where, got = f"{folder / 'config.toml'}: {name}", repr(config.get(name))
            raise BadInput(where, expected="what `sween train` writes there", got=got, fix=restore)
    metrics = read_rows(file)
    for number, row in enumerate(metrics, start=1):
        seconds = row.get("seconds")
        if isinstance(seconds, bool) or not isinstance(seconds, int | float):
            where, got = f"{file}, line {number}: seconds", repr(seconds)
            raise BadInput(where, expected="a number", got=got, fix=restore)
    return TrainedRun(folder.resolve().name, config, metrics)


def cost_table(trained: Sequence[TrainedRun]) -> Table | None:
    """Parameters, multiply-adds and training time; None without training runs.

    Seconds are those of the epochs: candidates trained at once share a GPU, and each counts the
    time that all of them took together.
    """
    records = []
    for run in trained:
        parameters, flops = _size(run)
        records.append(
            {
                "run": run.name,
                "sigma": run.config["sigma"],
                "model": run.config["arch"],
                "training": run.config["method"],
                "seed": run.config["seed"],
                "parameters": parameters,
                "flops": flops,
                "epochs": len(run.metrics),
                "seconds": sum(float(row["seconds"]) for row in run.metrics),
            }
        )
    return make_table("cost", "Size and training time", _COLUMNS, records) if records else None


def _size(run: TrainedRun) -> tuple[int | None, int | None]:
    """Parameters and multiply-adds of a registered network on its data set; None for others."""
    arch, dataset = run.config["arch"], run.config["dataset"]
    if arch not in ARCHITECTURES or dataset not in CLASSES:
        return None, None
    shape = ARCHITECTURES[arch].image_shape
    model = create_model(arch, num_classes=CLASSES[dataset], image_shape=shape)
    return count_parameters(model), count_flops(model, shape)
