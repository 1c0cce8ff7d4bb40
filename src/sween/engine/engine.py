"""The vote engine: noisy copies of images in, integer counts by voter out.

Noise is keyed by (seed, purpose, example, block), so the counts do not depend on the batch size, on
the order of the images or on which of them share a batch. Memory use is that of one batch, or of
two when batches are interleaved, whatever n is. Counts of disjoint blocks add up. Everything stays
on the members' device until a request is finished: the host only queues batches, and reads the
counts of one request while the device works on the next.
"""

import dataclasses
import hashlib
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

import torch
from torch import nn

from sween.engine.compiled_noise import fast_noise
from sween.engine.forward import default_forward_rows, refuse_non_finite
from sween.engine.noise import Job, Noise, NoiseKind, noisy_of_jobs
from sween.engine.voters import Ballot, Variant, Voters
from sween.engine.votes import Tally, VoteRequest, Votes, drawn_rows
from sween.errors import BadInput, is_out_of_memory
from sween.interleave import Steps, interleave, to_device_async
from sween.models.device import device_of
from sween.models.evaluation_mode import evaluating
from sween.seeding import NOISE_BLOCK, noise_blocks

MAX_PADDING_SHARE = 0.02
"""The largest share of a GPU's work that may go into padding the last batch of a request."""

MAX_IMAGES_PER_REQUEST = 100
"""The most images per request; an interrupted run loses the votes of an unfinished request."""

PASSES_PER_BATCH = 10
"""Forward passes per batch with an early exit, so that the inputs left for the next member still
fill its passes; also on a CPU, where several images with few votes can then share a batch."""

MAX_FITTED_PASSES = 10
"""Up to this many passes per image, the rows of a pass are fitted to the image's votes; with more
passes, padding the last one costs at most a tenth."""


class ForwardPassShrunk(Exception):
    """Memory ran out while counting; the engine is now prepared with smaller forward passes.

    All votes on one image must come from forward passes of one shape, so the votes already counted
    on an unfinished image have to be counted again.

    Example:
        See `VoteEngine`.
    """


class _Parts:
    """Reports the copies of a batch in equal parts, one after each of at most `passes` passes."""

    def __init__(self, copies: int, passes: int, on_progress: Callable[[int], None]) -> None:
        self._copies, self._passes, self._on_progress = copies, passes, on_progress
        self._done = self.reported = 0

    def one_done(self) -> None:
        self._done += 1
        before = self.reported
        self.reported = self._copies * min(self._done, self._passes) // self._passes
        self._on_progress(self.reported - before)


class VoteEngine:
    """Counts the votes of classifiers on noisy copies of images.

    It follows changes of its model: of the device, the parameters, the members and the weights.

    Args:
        model: the classifier; in evaluation mode while votes are counted.
        voters: the model, and any other classifiers that vote on the same noise.
        sigma: noise level.
        num_classes: M.
        forward_rows: rows per forward pass; by default chosen for the device and the image size.
        batch_size: noisy inputs per batch, rounded up to whole noise blocks. Larger batches let an
            early exit fill its forward passes better. It does not change the counts.
        noise: distribution of the noise.

    Example:
        >>> import sween
        >>> from sween.engine import VoteRequest
        >>> digits = sween.load_dataset("digits").test
        >>> smoothed = sween.SmoothedClassifier.load("digits-sween3-gaussian-sigma0.50")
        >>> engine = smoothed.engine  # the classifier itself is its one voter
        >>> request = VoteRequest(digits.images([1, 2]), [1, 2], "estimation", sizes=[500, 200])
        >>> votes = engine.count_one(request, seed=0)
        >>> [sum(votes.of(engine.name, image).counts) for image in (0, 1)]
        [500, 200]
    """

    def __init__(
        self,
        model: nn.Module,
        voters: Voters,
        *,
        sigma: float,
        num_classes: int,
        forward_rows: int | None = None,
        batch_size: int | None = None,
        noise: NoiseKind | None = None,
    ) -> None:
        if batch_size is not None and batch_size < 1:
            raise BadInput("batch_size", expected="at least 1", got=batch_size, fix="try 1000")
        self.model, self.sigma, self.num_classes = model, sigma, num_classes
        self._voters = voters
        self._given_rows, self._given_batch = forward_rows, batch_size
        self._noise_kind = noise or NoiseKind()
        self._counting = False
        self._start_on(device_of(model))

    def _start_on(self, device: torch.device) -> None:
        """Reset everything that depends on the device."""
        self.device = device
        self.rows_asked = self._given_rows
        self._batch_size = self._given_batch
        self._precision: str | None = None
        self.noise: Noise = self._noise_kind.make(self.sigma)
        self._noise_made = False
        self._voters.forget()
        self._voters.forward.clear_rows()

    @property
    def voters(self) -> tuple[str, ...]:
        """Names of all voters; the model itself is the last."""
        return self._voters.names

    @property
    def name(self) -> str:
        """The name under which the model itself votes."""
        return self._voters.name

    @property
    def exits(self) -> dict[str, str]:
        """Each voter's early exit, for records."""
        return self._voters.exits

    @property
    def member_names(self) -> tuple[str, ...] | None:
        """Names of the members if each of them also votes on its own, else None."""
        voters = self._voters
        return voters.names[: len(voters.members)] if voters.with_members else None

    @property
    def variants(self) -> Sequence[Variant]:
        """The ensemble with other weights and exits; the model itself is the last."""
        return self._voters.variants

    @property
    def precision(self) -> str:
        """The arithmetic of the voting networks, for records; known once prepared."""
        return self._voters.arithmetic

    @property
    def forward_rows(self) -> int:
        """Rows per forward pass; known once prepared."""
        return self._voters.forward.rows

    @property
    def compiled(self) -> bool:
        """Whether members are compiled on a GPU: all batches then have one size."""
        return self.device.type == "cuda" and all(m.compiled for m in self._voters.members)

    @property
    def shared(self) -> bool:
        """Whether a member votes with the model's own parameters rather than with a copy."""
        return any(member.shared for member in self._voters.members)

    @property
    def batch_blocks(self) -> int:
        """Noise blocks per batch."""
        size = self._batch_size
        if size is None:
            gathers = self.device.type == "cpu" or self._voters.compacts
            size = self.forward_rows * (PASSES_PER_BATCH if gathers else 1)
        return -(-size // NOISE_BLOCK)

    @property
    def status(self) -> str:
        """What a progress display should say about the engine."""
        return ""

    @property
    def whole_blocks(self) -> int:
        """The fewest noise blocks that no padding is added to."""
        return self.batch_blocks if self.compiled else -(-self.forward_rows // NOISE_BLOCK)

    @property
    def full_blocks(self) -> int:
        """The fewest noise blocks that also fill later members' passes after an early exit."""
        return self.batch_blocks if self._voters.compacts else self.whole_blocks

    def follow_device(self) -> torch.device:
        """The model's current device; anything prepared for another device is dropped."""
        self._refuse_while_counting()
        device = device_of(self.model)
        if device != self.device:
            self._start_on(device)
        return device

    def prepare(self, image: torch.Tensor) -> None:
        """Prepare the members; refuse those that break the contract of a member.

        The first call fixes the number of rows per forward pass, and lowers it if memory runs out.
        """
        image = image.to(self.follow_device())
        self._image = image
        if self.rows_asked is None:
            self.rows_asked = default_forward_rows(self.device, image.numel())
        if not self._voters.forward.has_rows:
            self._voters.forward.fix_rows(self.rows_asked)
        while (error := self._try_to_prepare(image)) is not None:
            self._shrink(error)
        self._refuse_other_precision()

    @property
    def is_current(self) -> bool:
        """Whether the model is as it was when prepared: members, weights, parameters and hooks.

        Also its mode, while votes are being counted; at other times counting would restore it.
        """
        if self._counting:
            return self._voters.is_current(self._image.shape)
        with evaluating(self.model):
            return self._voters.is_current(self._image.shape)

    def place(self, images: torch.Tensor) -> torch.Tensor:
        """Images where requests must have them: on the members' device."""
        return to_device_async(images, self.device)

    @torch.inference_mode()
    def rounding(self) -> str:
        """Engines of one shape with the same answer compute the same function, bit for bit.

        A digest of the members' outputs on one pass of noisy copies: on a GPU two compilations may
        choose kernels that round differently, which records call one arithmetic.
        """
        rows, noise = self.forward_rows, self._noise_kind.make(self.sigma)
        jobs = [Job(0, block, used) for block, used in noise_blocks(rows)]
        noisy, _ = noisy_of_jobs(
            noise, self._image[None], jobs, seed=0, purpose="rounding", examples=[0]
        )
        digest = hashlib.sha256()
        with evaluating(self.model):
            for member in self._voters.members:
                outputs = self._voters.forward(member, noisy[:rows])
                digest.update(outputs.float().cpu().numpy().tobytes())
        self._voters.forward.forget_non_finite()
        return digest.hexdigest()

    def probabilities(self, noisy: torch.Tensor) -> torch.Tensor:
        """The prepared ensemble's probabilities (B, M) on noisy inputs."""
        return self._voters.probabilities(noisy)

    @torch.inference_mode()
    def labels(self, noisy: torch.Tensor) -> torch.Tensor:
        """The prepared model's votes (B,) on noisy inputs."""
        (ballot,) = interleave([self._voters.vote(noisy)])
        return ballot.labels[-1]

    def _fitted_rows(self, request: VoteRequest) -> int | None:
        """Rows per forward pass that the votes on one image fill; None if the shape is fixed.

        They depend on n and the image size alone, so that an answer does not depend on the other
        images of the call. The shape is fixed if the caller gave it or if members are compiled.
        """
        fixed = self._given_rows is not None
        if fixed or self._voters.preparation.compile_mode(self.device) is not None:
            return None
        n = max(request.sizes)
        most = default_forward_rows(self.device, request.images[0].numel())
        passes = -(-n // most)
        return -(-n // passes) if passes <= MAX_FITTED_PASSES else None

    def _refuse_other_precision(self) -> None:
        self._precision = self._precision or self.precision
        if self.precision != self._precision:
            raise BadInput(
                "precision",
                expected=f"{self._precision}, as when the members were first prepared",
                got=self.precision,
                fix="turn compilation off with `compile=False`",
            )

    def _refuse_while_counting(self) -> None:
        if self._counting:
            raise RuntimeError("this engine is counting; exhaust or close that generator first")

    def _try_to_prepare(self, image: torch.Tensor) -> BaseException | None:
        """The error, if any, without its traceback, which would keep the failed batch in memory."""
        try:
            with evaluating(self.model):
                self._voters.prepare(image, self.sigma)
            if not self._noise_made and self.compiled:
                self.noise = fast_noise(
                    self._noise_kind,
                    self.sigma,
                    shape=image.shape,
                    blocks=self.batch_blocks,
                    device=self.device,
                )
                self._noise_made = True
        except (RuntimeError, MemoryError) as error:
            return error.with_traceback(None)
        return None

    def _shrink(self, error: BaseException) -> None:
        """Halve the forward pass if memory ran out; re-raise any other error."""
        if not is_out_of_memory(error):
            raise error
        if self.forward_rows == 1:
            raise BadInput(
                "memory",
                expected="enough for a forward pass of one image",
                got=f"out of memory on {self.device} even at batch 1",
                fix="use a smaller model or another device",
            ) from None
        self._use_rows(self.forward_rows // 2)

    def _use_rows(self, rows: int) -> None:
        self._voters.forward.fix_rows(rows)
        if self._batch_size is not None:
            self._batch_size = min(self._batch_size, max(self.forward_rows, NOISE_BLOCK))
        self._voters.forget()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def shrink_to(self, rows: int) -> None:
        """Prepare passes of fewer rows, because another engine of the same run ran out of memory.

        If they do not fit into memory either, passes become smaller still.
        """
        self._use_rows(rows)
        self.prepare(self._image)

    def images_together(self, n: int) -> int:
        """How many images to request together: the fewest that fill whole batches, n votes each."""
        blocks = -(-n // NOISE_BLOCK)
        if not self.compiled:
            return max(1, self.batch_blocks // blocks)
        for images in range(1, MAX_IMAGES_PER_REQUEST):
            empty = -(images * blocks) % self.batch_blocks
            if empty <= MAX_PADDING_SHARE * images * blocks:
                return images
        return MAX_IMAGES_PER_REQUEST

    def count_one(self, request: VoteRequest, *, seed: int, fitted: bool = False) -> Votes:
        """The votes of one request; if memory runs out, counting restarts with smaller passes.

        Args:
            request: what to count.
            seed: of the noise.
            fitted: fit the rows of a forward pass to the number of votes, unless the shape is
                fixed. The engine need not be prepared beforehand.
        """
        while True:
            rows = self._fitted_rows(request) if fitted else None
            try:
                if rows is None:
                    self.prepare(request.images[0])
                (votes,) = self._count([request], seed, None, rows)
                return votes
            except ForwardPassShrunk:
                fitted = False  # of this request alone

    def count(
        self,
        requests: Iterable[VoteRequest],
        *,
        seed: int,
        on_progress: Callable[[int], None] | None = None,
    ) -> Generator[Votes, None, None]:
        """The votes of each request, in order.

        On a GPU the counts of one request are copied back while the next is being computed. Only
        one call can be active at a time: exhaust or close this generator before the next.

        Args:
            requests: what to count.
            seed: of the noise.
            on_progress: called with the number of noisy copies evaluated (on a GPU: queued) since
                the last call.

        Raises:
            ForwardPassShrunk: memory ran out; request all votes of the unfinished images again.
        """
        return self._count(requests, seed, on_progress, None)

    @torch.inference_mode()
    def _count(
        self,
        requests: Iterable[VoteRequest],
        seed: int,
        on_progress: Callable[[int], None] | None,
        rows: int | None,
    ) -> Generator[Votes, None, None]:
        """`count`, in passes of `rows` rows if given.

        Members are then prepared for that shape, each batch is one image, and the unused draws of a
        noise block are not evaluated.
        """
        self._refuse_while_counting()
        fitted = rows is not None
        tallies = deque[Tally]()

        def batches() -> Iterator[Steps[None]]:
            for request in requests:
                if fitted:
                    with torch.inference_mode(mode=False):  # prepared members outlive this call
                        self._voters.prepare(request.images[0], self.sigma)
                    self._refuse_other_precision()
                tally = Tally(request, voters=self.voters, classes=self.num_classes)
                tallies.append(tally)
                for jobs in self._jobs_by_image(request) if fitted else self._jobs(request):
                    yield self._count_batch(tally, jobs, seed, on_progress, fitted)

        failure: BaseException | None = None
        self._voters.forward.forget_non_finite()
        self._counting = True
        try:
            with evaluating(self.model), self._voters.forward.shaped(rows):
                for _ in interleave(batches()):
                    while tallies and (votes := tallies[0].votes) is not None:
                        tallies.popleft()
                        yield votes
        except (RuntimeError, MemoryError) as error:
            failure = error.with_traceback(None)  # a traceback would keep the batch in memory
        finally:
            self._counting = False
        if failure is None:
            return
        tallies.clear()
        if not (fitted and is_out_of_memory(failure)):  # else the pass of `prepare` is tried next
            self._shrink(failure)
            with torch.inference_mode(mode=False):
                self.prepare(self._image)
        raise ForwardPassShrunk("memory ran out during a forward pass; start the image again")

    def _count_batch(
        self,
        tally: Tally,
        jobs: list[Job],
        seed: int,
        on_progress: Callable[[int], None] | None,
        fitted: bool,
    ) -> Steps[None]:
        """Add a batch to the tally, and read the tally once it is complete."""
        copies = sum(job.used for job in jobs)
        if jobs and on_progress is not None and self.device.type == "cpu":
            # A batch of photos takes minutes there. Nothing is interleaved.
            passes = len(self._voters.members) * -(-len(jobs) * NOISE_BLOCK // self.forward_rows)
            parts = _Parts(copies, passes, on_progress)
            with self._voters.forward.reporting(parts.one_done):
                yield from self._add_batch(tally, jobs, seed, fitted)
            copies -= parts.reported
        elif jobs:
            yield from self._add_batch(tally, jobs, seed, fitted)
        if on_progress is not None:
            on_progress(copies)
        if not tally.missing:
            finite = yield from tally.read(self._voters.forward.all_finite(self.device))
            refuse_non_finite(finite)

    def _add_batch(self, tally: Tally, jobs: list[Job], seed: int, fitted: bool) -> Steps[None]:
        request = tally.request
        noisy, valid = noisy_of_jobs(
            self.noise,
            request.images,
            jobs,
            seed=seed,
            purpose=request.purpose,
            examples=request.examples,
        )
        if request.scored is None:
            ballot = yield from self._vote(noisy, drawn_rows(jobs) if fitted else None)
            tally.add(ballot.labels, ballot.evaluations, jobs, valid)
            return
        probabilities = self._voters.probabilities(noisy)
        labels = probabilities.argmax(dim=1)[None]
        everyone = torch.full_like(labels, len(self._voters.members))
        tally.add(labels, everyone, jobs, valid)
        tally.add_scores(probabilities, jobs, valid)

    def _vote(self, noisy: torch.Tensor, drawn: Sequence[int] | None) -> Steps[Ballot]:
        """The votes on all rows, or on the `drawn` ones with zeros elsewhere."""
        if drawn is None or len(drawn) == len(noisy):
            return (yield from self._voters.vote(noisy))
        rows = torch.tensor(drawn, device=noisy.device)
        ballot = yield from self._voters.vote(noisy[rows])
        parts = (ballot.labels, ballot.evaluations)
        return Ballot(
            *(own.new_zeros((len(own), len(noisy))).index_copy_(1, rows, own) for own in parts)
        )

    def _jobs_by_image(self, request: VoteRequest) -> Iterator[list[Job]]:
        """One batch for each image of a request, with all of its votes."""
        for position, n in enumerate(request.sizes):
            yield [Job(position, block, used) for block, used in noise_blocks(n)]

    def _jobs(self, request: VoteRequest) -> Iterator[list[Job]]:
        """Batches of a request; a single empty one if no votes are requested."""
        full, jobs = self.batch_blocks, list[Job]()
        starts = request.first or [0] * len(request.sizes)
        for position, (n, first) in enumerate(zip(request.sizes, starts, strict=True)):
            for block, used in noise_blocks(n):
                jobs.append(Job(position, first + block, used))
                if len(jobs) == full:
                    yield jobs
                    jobs = []
        if not sum(request.sizes):
            yield []
        if jobs:
            # Compiled noise has a fixed number of blocks; draws of the padding blocks do not count.
            idle = full - len(jobs) if self.compiled else 0
            yield jobs + [dataclasses.replace(jobs[-1], used=0)] * idle
