"""TensorBoard curves of metrics.jsonl, if TensorBoard is installed."""

import importlib.util
from pathlib import Path
from typing import Any

from sween.runs.training import EpochMetrics

FOLDER = "tensorboard"


class TensorBoardLog:
    """Logs each epoch's metrics as TensorBoard scalars; does nothing if it is not installed.

    Events of epochs after `epochs_done`, from an interrupted run, are hidden.
    """

    def __init__(self, run: Path, epochs_done: int) -> None:
        self._run, self._epochs_done = run, epochs_done
        self._installed = importlib.util.find_spec("tensorboard") is not None
        self._writer: Any = None

    def add(self, row: EpochMetrics) -> None:
        """Log one row of metrics.jsonl; the first row creates the event file."""
        if not self._installed:
            return
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self._run / FOLDER), purge_step=self._epochs_done + 1)
        for name in ("loss", "noisy_accuracy", "seconds"):
            self._writer.add_scalar(name, getattr(row, name), row.epoch)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
