"""The vote engine: noisy copies in, integer counts out.

Noise is keyed by (seed, purpose, example, block), so the counts do not depend on the batch size, on
the order of the images or on which of them are counted together. Memory is that of one batch, or
of two that take turns, whatever n is. Counts of disjoint blocks add. Everything stays on the
members' device until a set of images is counted: the host only queues batches, and takes the counts
of one set while the device is at work on the next.
"""

import dataclasses
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

import torch
from torch import nn

from sween.engine.compiled_noise import fast_noise
from sween.engine.forward import default_forward_rows, refuse_non_finite
from sween.engine.noise import Job, Noise, NoiseKind, noisy_of_jobs
from sween.engine.tally import Asked, Tally, Votes, drawn_rows
from sween.engine.voters import Ballot, Panel, arithmetic_of, check_panel
from sween.errors import BadInput
from sween.interleave import Steps, in_turns
from sween.models.device import device_of, evaluating, is_out_of_memory
from sween.seeding import NOISE_BLOCK, noise_blocks

EMPTY_SHARE = 0.02
"""How much of a GPU's work may go to filling up the last batch of a set of images."""

MOST_TOGETHER = 100
"""Images counted together at most; a stopped run loses what it has of them."""

PASSES_TOGETHER = 10
"""Forward passes of one batch, where survivors of an early exit are gathered for the next member;
and on a CPU, where a few images with few votes then share a batch."""


FEW_PASSES = 10
"""Up to so many passes for one image, their rows are fitted to its votes; beyond, filling up the
last pass costs at most a tenth."""


class VoteEngine:
    """Counts the votes of a panel of classifiers on noisy copies of images.

    Args:
        model: what the panel evaluates; put in evaluation mode while it votes.
        panel: the classifiers; all see the same noise.
        sigma: noise level.
        num_classes: M.
        forward_rows: rows of one forward pass; what suits the device and the images when None.
        batch_size: noisy inputs of one batch, rounded up to whole noise blocks; more of them let an
            early exit fill its forward passes better. It does not change the counts.
        noise: its law.
    """

    def __init__(
        self,
        model: nn.Module,
        panel: Panel,
        *,
        sigma: float,
        num_classes: int,
        forward_rows: int | None,
        batch_size: int | None,
        noise: NoiseKind | None = None,
    ) -> None:
        if batch_size is not None and batch_size < 1:
            raise BadInput("batch_size", expected="at least 1", got=batch_size, fix="try 1000")
        self.model, self.panel, self.sigma = model, panel, sigma
        self.num_classes = num_classes
        self.device = device_of(model)
        self.rows_asked = forward_rows
        self._rows_given = forward_rows is not None
        self._batch_size = batch_size
        self._noise_kind = noise or NoiseKind()
        self._precision: str | None = None
        self.noise: Noise = self._noise_kind.make(sigma)
        self._noise_made = False
        self._counting = False

    @property
    def precision(self) -> str:
        """The arithmetic that votes, for records; known once prepared."""
        return arithmetic_of(self.panel)

    @property
    def forward_rows(self) -> int:
        """Rows of one forward pass; known once prepared."""
        return self.panel.forward.rows

    @property
    def compiled(self) -> bool:
        """Whether members have kernels of their own on a GPU: batches then come in one size."""
        return self.device.type == "cuda" and all(m.compiled for m in self.panel.members)

    @property
    def batch_blocks(self) -> int:
        """Noise blocks of one batch."""
        size = self._batch_size
        if size is None:
            gathers = self.device.type == "cpu" or self.panel.compacts
            size = self.forward_rows * (PASSES_TOGETHER if gathers else 1)
        return -(-size // NOISE_BLOCK)

    def prepare(self, image: torch.Tensor) -> None:
        """Make the members ready; refuse those that break the contract of a member.

        The first call settles the rows of a forward pass: fewer, where memory runs out.
        """
        self._refuse_while_counting()
        if self.rows_asked is None:
            self.rows_asked = default_forward_rows(self.device, image.numel())
        if not self.panel.forward.settled:
            self.panel.forward.settle(self.rows_asked)
        while (error := self._try_to_prepare(image)) is not None:
            self.shrink(error)
        self._refuse_other_precision()

    def fitted_rows(self, image: torch.Tensor, n: int) -> int | None:
        """Rows of a forward pass that n votes on one image fill; None where passes have one shape.

        They depend on n and the image's size alone, so that an answer does not depend on the other
        images of the call. Passes have one shape where it was asked for, and
        where members are compiled for it.
        """
        if self._rows_given or any(m.preparation.compiles(self.device) for m in self.panel.members):
            return None
        most = default_forward_rows(self.device, image.numel())
        passes = -(-n // most)
        return -(-n // passes) if passes <= FEW_PASSES else None

    def _refuse_other_precision(self) -> None:
        self._precision = self._precision or self.precision
        if self.precision != self._precision:
            raise BadInput(
                "precision",
                expected=f"{self._precision}, as when the members were first prepared",
                got=self.precision,
                fix="run again with --no-compile",
            )

    def _refuse_while_counting(self) -> None:
        if self._counting:
            raise RuntimeError("this engine is counting: end or close that first")

    def _make_noise(self, image: torch.Tensor) -> None:
        """Faster noise where members are compiled."""
        if not self._noise_made and self.compiled:
            self.noise = fast_noise(
                self._noise_kind,
                self.sigma,
                shape=image.shape,
                blocks=self.batch_blocks,
                device=self.device,
            )
            self._noise_made = True

    def _try_to_prepare(self, image: torch.Tensor) -> BaseException | None:
        """The error, if there is one; its traceback would keep the failed batch in memory."""
        try:
            with evaluating(self.model):
                check_panel(self.panel, image, self.sigma)
            self._make_noise(image)
        except (RuntimeError, MemoryError) as error:
            return error.with_traceback(None)
        return None

    def shrink(self, error: BaseException) -> None:
        """Halve the forward pass after running out of memory; raise any other error again.

        Votes of one image must come from one shape: whoever counts starts the image again.
        """
        if not is_out_of_memory(error):
            raise error
        if self.forward_rows == 1:
            raise BadInput(
                "memory",
                expected="room for a forward pass of one image",
                got=f"out of memory on {self.device} even at batch 1",
                fix="use a smaller model or another --device",
            ) from None
        self.panel.forward.settle(self.forward_rows // 2)
        if self._batch_size is not None:
            self._batch_size = min(self._batch_size, max(self.forward_rows, NOISE_BLOCK))
        for member in self.panel.members:
            member.forget()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def images_together(self, n: int) -> int:
        """How many images to count together: as few as fill whole batches with n votes each."""
        blocks = -(-n // NOISE_BLOCK)
        if not self.compiled:
            return max(1, self.batch_blocks // blocks)
        for images in range(1, MOST_TOGETHER):
            empty = -(images * blocks) % self.batch_blocks
            if empty <= EMPTY_SHARE * images * blocks:
                return images
        return MOST_TOGETHER

    def count(
        self,
        images: torch.Tensor,
        *,
        examples: Sequence[int],
        purpose: str,
        n: int | Sequence[int],
        seed: int,
        first: Sequence[int] | None = None,
        scored: Sequence[int] | None = None,
        rows: int | None = None,
    ) -> Votes:
        """Votes on n noisy copies of each image: `count_each` of one set, see `Asked`."""
        sizes = [n] * len(images) if isinstance(n, int) else list(n)
        asked = Asked(images, examples, purpose, sizes, first, scored)
        (votes,) = self.count_each([asked], seed=seed, rows=rows)
        return votes

    @torch.inference_mode()
    def count_each(
        self,
        sets: Iterable[Asked],
        *,
        seed: int,
        on_progress: Callable[[int], None] | None = None,
        rows: int | None = None,
    ) -> Generator[Votes, None, None]:
        """The votes of each set of images, in their order.

        On a GPU those of one set come back while the next one is at work. One call at a time: the
        next one begins when this one has ended or was closed.

        Args:
            sets: what is asked for.
            seed: of the noise.
            on_progress: called with the number of noisy copies done, or on a GPU queued, since the
                last call.
            rows: of the forward passes, from `fitted_rows`: then members are made ready for them, a
                batch is one image, and the draws of a noise block that do not count are not
                evaluated.
        """
        self._refuse_while_counting()
        fitted = rows is not None
        tallies = deque[Tally]()

        def batches() -> Iterator[Steps[None]]:
            for asked in sets:
                if fitted:
                    check_panel(self.panel, asked.images[0], self.sigma)
                    self._refuse_other_precision()
                tally = Tally(asked, voters=len(self.panel.names), classes=self.num_classes)
                tallies.append(tally)
                for jobs in self._jobs_by_image(asked) if fitted else self._jobs(asked):
                    yield self._count_batch(tally, jobs, seed, on_progress, fitted)

        self.panel.forward.forget_non_finite()
        self._counting = True
        try:
            with evaluating(self.model), self.panel.forward.shaped(rows):
                for _ in in_turns(batches()):
                    while tallies and (votes := tallies[0].votes) is not None:
                        tallies.popleft()
                        yield votes
        finally:
            self._counting = False

    def _count_batch(
        self,
        tally: Tally,
        jobs: list[Job],
        seed: int,
        on_progress: Callable[[int], None] | None,
        fitted: bool,
    ) -> Steps[None]:
        """Add a batch to the tally, and read it once it holds all."""
        if jobs:
            yield from self._add_batch(tally, jobs, seed, fitted)
        if on_progress is not None:
            on_progress(sum(job.used for job in jobs))
        if not tally.missing:
            finite = yield from tally.read(self.panel.forward.all_finite(self.device))
            refuse_non_finite(finite)

    def _add_batch(self, tally: Tally, jobs: list[Job], seed: int, fitted: bool) -> Steps[None]:
        asked = tally.asked
        noisy, valid = noisy_of_jobs(
            self.noise,
            asked.images,
            jobs,
            seed=seed,
            purpose=asked.purpose,
            examples=asked.examples,
        )
        if asked.scored is None:
            ballot = yield from self._vote(noisy, drawn_rows(jobs) if fitted else None)
            tally.add(ballot.labels, ballot.evaluations, jobs, valid)
            return
        probabilities = self.panel.probabilities(noisy)
        labels = probabilities.argmax(dim=1)[None]
        everyone = torch.full_like(labels, len(self.panel.members))
        tally.add(labels, everyone, jobs, valid)
        tally.add_scores(probabilities, jobs, valid)

    def _vote(self, noisy: torch.Tensor, drawn: list[int] | None) -> Steps[Ballot]:
        """The panel's votes on all rows, or on the `drawn` ones with zeros at the others."""
        if drawn is None or len(drawn) == len(noisy):
            return (yield from self.panel.vote(noisy))
        rows = torch.tensor(drawn, device=noisy.device)
        ballot = yield from self.panel.vote(noisy[rows])
        parts = (ballot.labels, ballot.evaluations)
        return Ballot(
            *(own.new_zeros((len(own), len(noisy))).index_copy_(1, rows, own) for own in parts)
        )

    def _jobs_by_image(self, asked: Asked) -> Iterator[list[Job]]:
        """One batch for each image of a set, with all of its votes."""
        for position, n in enumerate(asked.sizes):
            yield [Job(position, block, used) for block, used in noise_blocks(n)]

    def _jobs(self, asked: Asked) -> Iterator[list[Job]]:
        """Batches of a set; an empty one where nothing is asked for."""
        full, jobs = self.batch_blocks, list[Job]()
        starts = asked.first or [0] * len(asked.sizes)
        for position, (n, first) in enumerate(zip(asked.sizes, starts, strict=True)):
            for block, used in noise_blocks(n):
                jobs.append(Job(position, first + block, used))
                if len(jobs) == full:
                    yield jobs
                    jobs = []
        if not sum(asked.sizes):
            yield []
        if jobs:
            # Compiled noise comes in one size; of the blocks that fill the batch no draw counts.
            idle = full - len(jobs) if self.compiled else 0
            yield jobs + [dataclasses.replace(jobs[-1], used=0)] * idle
