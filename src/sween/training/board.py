"""TensorBoard, where it is installed: the numbers of metrics.jsonl as curves."""

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FOLDER = "tensorboard"


class Board:
    """Writes each epoch's numbers as TensorBoard scalars; does nothing where it is not installed.

    Args:
        run: run folder; events go to its folder `tensorboard`.
        epochs_done: epochs that are kept; events of later ones, from before a stop, are hidden.
    """

    def __init__(self, run: Path, epochs_done: int) -> None:
        self._run, self._epochs_done = run, epochs_done
        self._installed = importlib.util.find_spec("tensorboard") is not None
        self._writer: Any = None

    def add(self, row: Mapping[str, Any]) -> None:
        """One row of metrics.jsonl; the first opens the file, so that no row leaves none behind."""
        if not self._installed:
            return
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self._run / FOLDER), purge_step=self._epochs_done + 1)
        for name, value in row.items():
            if name != "epoch":
                self._writer.add_scalar(name, value, row["epoch"])

    def close(self) -> None:
        """Write what is left."""
        if self._writer is not None:
            self._writer.close()
