"""Running counts on the device, which nobody waits for until all votes are queued."""

from collections.abc import Sequence

import torch

from sween.seeding import NOISE_BLOCK
from sween.smoothing.noise import Job
from sween.smoothing.soft import SCORE_STEPS


class Tally:
    """Votes of V classifiers on N images among M classes; and scores of one class of each image.

    Args:
        voters: V.
        images: N.
        classes: M.
        device: where the votes are.
        scored: the class of each image whose probabilities are collected, if any.
    """

    def __init__(
        self,
        voters: int,
        images: int,
        classes: int,
        device: torch.device,
        scored: Sequence[int] | None = None,
    ) -> None:
        self.shape = (voters, images, classes)
        self.counts = torch.zeros(voters * images * classes, dtype=torch.long, device=device)
        self.evaluations = torch.zeros(voters * images, dtype=torch.long, device=device)
        size = images if scored is not None else 0
        self.scores = torch.zeros(size, SCORE_STEPS + 1, dtype=torch.long, device=device)
        self.scored = torch.tensor(scored or [], dtype=torch.long).to(device)

    def add(
        self,
        labels: torch.Tensor,
        evaluations: torch.Tensor,
        jobs: Sequence[Job],
        valid: torch.Tensor | None,
    ) -> None:
        """Count labels and evaluations (V, B) of the jobs' rows, NOISE_BLOCK to a job."""
        voters, images, classes = self.shape
        owners, drawn = _rows(jobs, labels.device)
        counted = drawn if valid is None else drawn * valid
        cells = torch.arange(voters, device=labels.device)[:, None] * images + owners
        self.counts.scatter_add_(
            0, (cells * classes + labels).flatten(), counted.expand(voters, -1).flatten()
        )
        self.evaluations.scatter_add_(0, cells.flatten(), (evaluations * drawn).flatten())

    def add_scores(
        self, probabilities: torch.Tensor, jobs: Sequence[Job], valid: torch.Tensor | None
    ) -> None:
        """Count each row's probability of its image's class, rounded down to a step."""
        owners, drawn = _rows(jobs, probabilities.device)
        counted = drawn if valid is None else drawn * valid
        own = probabilities.double().gather(1, self.scored[owners][:, None])[:, 0]
        # Weighted sums of softmaxes may exceed 1 by a rounding.
        bins = (own * SCORE_STEPS).floor().clamp(0, SCORE_STEPS).long()
        self.scores.view(-1).scatter_add_(0, owners * (SCORE_STEPS + 1) + bins, counted)


def _rows(jobs: Sequence[Job], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """For every row of the jobs, the position of its image, and 1 where it counts."""
    table = torch.tensor([[job.position, job.used] for job in jobs])
    if device.type == "cuda":
        table = table.pin_memory().to(device, non_blocking=True)
    within = torch.arange(NOISE_BLOCK, device=device)
    drawn = (within < table[:, 1:]).flatten().long()
    return table[:, :1].expand(-1, NOISE_BLOCK).flatten(), drawn
