"""Training runs and the paper's cost table: parameters, FLOPs and training time."""

from collections.abc import Sequence

from sween.models import ARCHITECTURES, count_flops, count_parameters, create_model
from sween.report.tables import RUN_COLUMNS, Column, Table, make_table, whole_number
from sween.runs import TrainingRun

CLASSES = {"digits": 10, "cifar10": 10}
"""Number of classes of the data sets whose networks can be sized without their files."""

_COLUMNS = (
    *RUN_COLUMNS,
    Column("Model", "model"),
    Column("training", "training"),
    Column("seed", "seed", str),
    Column("parameters", "parameters", whole_number),
    Column("FLOPs", "flops", whole_number),
    Column("epochs", "epochs", whole_number),
    Column("training seconds", "seconds", whole_number),
)


def cost_table(trained: Sequence[TrainingRun]) -> Table | None:
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
                "sigma": run.config.sigma,
                "model": run.config.arch,
                "training": run.config.method,
                "seed": run.config.seed,
                "parameters": parameters,
                "flops": flops,
                "epochs": len(run.metrics),
                "seconds": run.seconds,
            }
        )
    return make_table("cost", "Size and training time", _COLUMNS, records) if records else None


def _size(run: TrainingRun) -> tuple[int | None, int | None]:
    """Parameters and multiply-adds of a registered network on its data set; None for others."""
    arch, dataset = run.config.arch, run.config.dataset
    if arch not in ARCHITECTURES or dataset not in CLASSES:
        return None, None
    shape = ARCHITECTURES[arch].image_shape
    model = create_model(arch, num_classes=CLASSES[dataset], image_shape=shape)
    return count_parameters(model), count_flops(model, shape)
