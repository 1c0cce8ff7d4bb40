"""The vote engine: noisy copies in, integer counts out.

Noise is keyed by (seed, purpose, example, block), so the counts do not depend on the batch size, on
the order of the images or on which of them are counted together. Memory is that of one batch,
whatever n is. Counts of disjoint blocks add.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import torch

from sween.ensemble.panel import Panel
from sween.errors import BadInput
from sween.seeding import NOISE_BLOCK, noise_blocks, noisy_copies


@dataclasses.dataclass(frozen=True)
class Votes:
    """counts (V, N, M) and member evaluations (V, N) of V classifiers on N images."""

    counts: torch.Tensor
    evaluations: torch.Tensor


@dataclasses.dataclass(frozen=True)
class _Job:
    """One noise block of one image: which, and how many of its draws count."""

    position: int
    block: int
    used: int


class VoteEngine:
    """Counts the votes of a panel of classifiers on noisy copies of images.

    Args:
        panel: the classifiers; all see the same noise.
        sigma: noise level.
        num_classes: M.
        seed: of the noise.
        batch_size: noisy inputs held at once, rounded up to whole noise blocks; more of them let an
            early exit fill its forward passes better. It does not change the counts.
    """

    def __init__(
        self, panel: Panel, *, sigma: float, num_classes: int, seed: int, batch_size: int
    ) -> None:
        if batch_size < 1:
            raise BadInput("batch_size", expected="at least 1", got=batch_size, fix="try 1000")
        self.panel = panel
        self.sigma = sigma
        self.num_classes = num_classes
        self.seed = seed
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
            on_progress: called with the number of noisy copies done since the last call.
        """
        voters, size = len(self.panel.names), len(images)
        counts = torch.zeros(voters * size * self.num_classes, dtype=torch.long)
        evaluations = torch.zeros(voters * size, dtype=torch.long)
        for batch in self._batches(size, n):
            noisy = torch.cat([self._noisy(images, examples, purpose, job) for job in batch])
            ballot = self.panel.vote(noisy)
            labels = ballot.labels.cpu().view(voters, len(batch), NOISE_BLOCK)
            costs = ballot.evaluations.cpu().view(voters, len(batch), NOISE_BLOCK)
            for slot, job in enumerate(batch):
                for voter in range(voters):
                    cell = voter * size + job.position
                    seen = torch.bincount(
                        labels[voter, slot, : job.used], minlength=self.num_classes
                    )
                    counts[cell * self.num_classes : (cell + 1) * self.num_classes] += seen
                    evaluations[cell] += costs[voter, slot, : job.used].sum()
            if on_progress is not None:
                on_progress(sum(job.used for job in batch))
        return Votes(counts.view(voters, size, self.num_classes), evaluations.view(voters, size))

    def _noisy(
        self, images: torch.Tensor, examples: Sequence[int], purpose: str, job: _Job
    ) -> torch.Tensor:
        return noisy_copies(
            images[job.position],
            sigma=self.sigma,
            seed=self.seed,
            purpose=purpose,
            example=examples[job.position],
            block=job.block,
        )

    def _batches(self, size: int, n: int) -> Iterator[list[_Job]]:
        batch: list[_Job] = []
        for position in range(size):
            for block, used in noise_blocks(n):
                batch.append(_Job(position, block, used))
                if len(batch) == self.batch_blocks:
                    yield batch
                    batch = []
        if batch:
            yield batch
