"""The attacked model's probabilities, with fast gradients in the images.

Attackers need a direction only: on a GPU half the digits give it in half the time, and batch norms
are folded and members compiled for passes of one shape. Nothing that is certified or judged comes
from here.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from sween.engine.cuda_graph import MAX_GRAPHS, CudaGraph, Forward
from sween.engine.engine import VoteEngine
from sween.engine.fold_batch_norm import fold_batch_norm
from sween.engine.prepare import InArithmetic, refuse_broken_device
from sween.ensemble import WeightedEnsemble
from sween.ensemble.weighted import add_weighted
from sween.errors import warn_fallback
from sween.models.device import is_out_of_memory
from sween.smoothing.smoothed_logits import PlainProbabilities, Probabilities

PASS_ROWS = 512
"""Rows of one compiled pass: enough to keep a GPU busy, few to fill up."""

ROWS_TRIED = 64
"""On which compiled gradients are compared with plain ones."""

MEDIAN_COSINE, LEAST_COSINE = 0.97, 0.8
"""Between a compiled gradient and a plain one: rounding turns it less, a fault more."""

MOST_APART = 0.05
"""Between compiled probabilities and plain ones."""


Pull = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""From noisy images, and a gradient in their probabilities, to the gradient in the images."""


class FastProbabilities:
    """An ensemble's members folded and compiled for passes of one shape.

    Gradients compute a pass again, forth and back, which on a GPU is recorded as one CUDA graph.

    Attributes:
        name: for the config of a run.

    Args:
        ensemble: in evaluation mode, on the device that will run it.
        compile: makes a function faster.
        rows: of a pass.
        values: the probabilities where another has them faster; its own when None.
    """

    name = "compiled"

    def __init__(
        self,
        ensemble: WeightedEnsemble,
        *,
        compile: Callable[[nn.Module], Forward],
        rows: int = PASS_ROWS,
        values: Forward | None = None,
    ) -> None:
        weights = ensemble.weights.tolist()
        device = next(ensemble.parameters()).device
        self.rows = rows
        self.values = self._of_members if values is None else values
        self._pull_pass: Pull | None = None
        folded = [
            InArithmetic(fold_batch_norm(m), device, torch.bfloat16) for m in ensemble.members
        ]
        self._members = [
            (weight, compile(member.requires_grad_(False)))  # else gradients of weights come too
            for weight, member in zip(weights, folded, strict=True)
            if weight > 0
        ]

    def __call__(self, noisy: torch.Tensor) -> torch.Tensor:
        probabilities: torch.Tensor = _Probabilities.apply(noisy, self)  # type: ignore[no-untyped-call]
        return probabilities

    def pull(self, noisy: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        """The gradient in the images that a gradient (B, M) in their probabilities comes to."""
        parts = []
        for images, own in zip(
            torch.split(noisy, self.rows), torch.split(gradient, self.rows), strict=True
        ):
            inputs = self._filled(images.detach()), self._filled(own)
            if self._pull_pass is None:
                on_gpu = noisy.is_cuda
                self._pull_pass = CudaGraph(self._pull, *inputs) if on_gpu else self._pull
            parts.append(self._pull_pass(*inputs)[: len(images)])
        return torch.cat(parts)

    def _of_members(self, noisy: torch.Tensor) -> torch.Tensor:
        parts = [
            self._scores(self._filled(part))[: len(part)] for part in torch.split(noisy, self.rows)
        ]
        return torch.cat(parts)

    def _filled(self, part: torch.Tensor) -> torch.Tensor:
        missing = self.rows - len(part)
        return torch.cat([part, part.new_zeros((missing, *part.shape[1:]))]) if missing else part

    def _pull(self, images: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        own = images.detach().requires_grad_()
        with torch.enable_grad():
            return torch.autograd.grad(self._scores(own), own, gradient)[0]

    def _scores(self, images: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor | None = None
        with torch._dynamo.config.patch(
            recompile_limit=MAX_GRAPHS, accumulated_recompile_limit=MAX_GRAPHS
        ):
            for weight, member in self._members:
                scores = add_weighted(scores, weight, torch.softmax(member(images), dim=1))
        assert scores is not None  # weights sum to 1
        return scores


class _Probabilities(torch.autograd.Function):
    """Values from wherever they come fastest, gradients by passes forth and back."""

    @staticmethod
    def forward(ctx: Any, noisy: torch.Tensor, fast: FastProbabilities) -> torch.Tensor:
        ctx.save_for_backward(noisy)
        ctx.fast = fast
        return fast.values(noisy)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        (noisy,) = ctx.saved_tensors
        return ctx.fast.pull(noisy, gradient), None


def probabilities_of(
    ensemble: WeightedEnsemble, engine: VoteEngine, image: torch.Tensor
) -> Probabilities:
    """Compiled ones where the engine's members are compiled and both agree, else plain ones.

    Args:
        ensemble: in evaluation mode, without gradients of its weights.
        engine: the one that judges; prepared.
        image: (C, H, W), to try it on.
    """
    plain = PlainProbabilities(ensemble)
    if not engine.compiled:
        return plain
    try:
        fast = FastProbabilities(
            ensemble,
            compile=lambda member: torch.compile(member, dynamic=False),
            values=engine.probabilities,
        )
        with same_each_time():
            # Recorded here: a backward pass, which runs in a thread of its own, is no place for it.
            fast.pull(image[None], torch.zeros_like(fast.values(image[None])))
            check_agreement(fast, plain, image)
        return fast
    except Exception as error:  # compilers fail in many ways, all of which mean: do without
        if not is_out_of_memory(error):  # plain ones can do with less
            refuse_broken_device(error)
        warn_fallback("the attacker's gradients cannot be compiled", error)
        return plain


def check_agreement(fast: Forward, plain: Forward, image: torch.Tensor) -> None:
    """Refuse probabilities that differ from plain ones, or whose gradients lead elsewhere.

    An attack with a false gradient would be weak, and the model look strong.
    """
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(ROWS_TRIED, *image.shape, generator=generator).to(image.device)
    noisy = (image + 0.25 * noise).clamp(0, 1)
    found = []
    for probabilities in (fast, plain):
        own = noisy.clone().requires_grad_()
        with torch.enable_grad():
            outputs = probabilities(own)
            direction = torch.linspace(-1, 1, outputs.shape[1], device=image.device)
            (gradient,) = torch.autograd.grad((outputs * direction).sum(), own)
        found.append((outputs.detach(), gradient.flatten(1)))
    (ours, our_gradient), (theirs, their_gradient) = found
    apart = float((ours - theirs).abs().max())
    if not apart <= MOST_APART:
        raise RuntimeError(f"its probabilities are {apart:.3g} apart")
    lengths = their_gradient.norm(dim=1)
    steep = lengths >= 0.05 * lengths.max()  # nearly flat ones are rounding
    cosines = torch.nn.functional.cosine_similarity(our_gradient, their_gradient, dim=1)[steep]
    if not float(lengths.max()) > 0:
        raise RuntimeError("there is no gradient to compare with")
    median, least = float(cosines.median()), float(cosines.min())
    if not (median >= MEDIAN_COSINE and least >= LEAST_COSINE):
        raise RuntimeError(f"its gradients lead elsewhere, cosines from {least:.3g}")


@contextlib.contextmanager
def same_each_time() -> Iterator[None]:
    """Convolutions, and their gradients, that give the same each time."""
    known = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    try:
        yield
    finally:
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = known
