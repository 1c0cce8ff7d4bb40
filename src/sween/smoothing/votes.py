"""The vote engine: noisy copies in, integer counts out.

Noise is keyed by (seed, purpose, example, block), so the counts do not depend on the batch size, on
the order of the images or on which of them are counted together. Memory is that of one batch,
whatever n is. Counts of disjoint blocks add. Everything stays on the members' device until an image
set is counted: the host only queues batches.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import torch

from sween.ensemble.panel import Panel
from sween.errors import BadInput
from sween.seeding import NOISE_BLOCK, noise_blocks
from sween.smoothing.noise import GaussianNoise, Job


@dataclasses.dataclass(frozen=True)
class ImageVotes:
    """One classifier's votes on one image, and the member evaluations they took."""

    counts: tuple[int, ...]
    evaluations: int


@dataclasses.dataclass(frozen=True)
class Votes:
    """counts (V, N, M) and member evaluations (V, N) of V classifiers on N images."""

    counts: torch.Tensor
    evaluations: torch.Tensor

    def of(self, voter: int, position: int) -> ImageVotes:
        counts = tuple(self.counts[voter, position].tolist())
        return ImageVotes(counts, int(self.evaluations[voter, position]))


class VoteEngine:
    """Counts the votes of a panel of classifiers on noisy copies of images.

    Args:
        panel: the classifiers; all see the same noise.
        noise: makes the noisy copies.
        num_classes: M.
        batch_size: noisy inputs held at once, rounded up to whole noise blocks; more of them let an
            early exit fill its forward passes better. It does not change the counts.
    """

    def __init__(
        self, panel: Panel, *, noise: GaussianNoise, num_classes: int, batch_size: int
    ) -> None:
        if batch_size < 1:
            raise BadInput("batch_size", expected="at least 1", got=batch_size, fix="try 1000")
        self.panel = panel
        self.noise = noise
        self.num_classes = num_classes
        self.batch_blocks = -(-batch_size // NOISE_BLOCK)

    @torch.inference_mode()
    def count(
        self,
        images: torch.Tensor,
        *,
        examples: Sequence[int],
        purpose: str,
        n: int,
        on_progress: Callable[[int], None] | None = None,
    ) -> Votes:
        """Votes on n noisy copies of each image.

        Args:
            images: (N, C, H, W) on the members' device.
            examples: N keys of the noise, usually the images' indices in their data set.
            purpose: `selection`, `estimation` or `prediction`; different ones are independent.
            n: noisy copies an image.
            on_progress: called with the number of noisy copies done, or on a GPU queued, since the
                last call.
        """
        tally = _Tally(len(self.panel.names), len(images), self.num_classes, images.device)
        for jobs in self._batches(len(images), n):
            noisy = self.noise.noisy(images, examples, purpose, jobs)
            ballot = self.panel.vote(noisy)
            tally.add(ballot.labels, ballot.evaluations, jobs)
            if on_progress is not None:
                on_progress(sum(job.used for job in jobs))
        self.panel.forward.refuse_non_finite()
        return tally.votes()

    def _batches(self, size: int, n: int) -> Iterator[list[Job]]:
        jobs: list[Job] = []
        for position in range(size):
            for block, used in noise_blocks(n):
                jobs.append(Job(position, block, used))
                if len(jobs) == self.batch_blocks:
                    yield jobs
                    jobs = []
        if jobs:
            # On a GPU batches come in one size, for which the noise is compiled; of the blocks that
            # fill the last one no draw counts.
            idle = self.batch_blocks - len(jobs) if self.noise.fixed_size else 0
            yield jobs + [Job(jobs[-1].position, jobs[-1].block, 0)] * idle


class _Tally:
    """Running counts on the device."""

    def __init__(self, voters: int, images: int, classes: int, device: torch.device) -> None:
        self.shape = (voters, images, classes)
        self.counts = torch.zeros(voters * images * classes, dtype=torch.long, device=device)
        self.evaluations = torch.zeros(voters * images, dtype=torch.long, device=device)

    def add(self, labels: torch.Tensor, evaluations: torch.Tensor, jobs: Sequence[Job]) -> None:
        """Count labels and evaluations (V, B) of the jobs' rows, NOISE_BLOCK to a job."""
        voters, images, classes = self.shape
        table = torch.tensor([[job.position, job.used] for job in jobs])
        if labels.device.type == "cuda":
            table = table.pin_memory().to(labels.device, non_blocking=True)
        within = torch.arange(NOISE_BLOCK, device=labels.device)
        used = (within < table[:, 1:]).flatten().long().expand(voters, -1)
        first = torch.arange(voters, device=labels.device)[:, None] * images
        cells = first + table[:, :1].expand(-1, NOISE_BLOCK).flatten()
        self.counts.scatter_add_(0, (cells * classes + labels).flatten(), used.flatten())
        self.evaluations.scatter_add_(0, cells.flatten(), (evaluations * used).flatten())

    def votes(self) -> Votes:
        voters, images, classes = self.shape
        return Votes(
            self.counts.cpu().view(voters, images, classes),
            self.evaluations.cpu().view(voters, images),
        )
