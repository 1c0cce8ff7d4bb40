"""The attacked model's probabilities, with fast gradients with respect to the images.

An attack only needs a direction, so on a GPU the paper's CIFAR networks run on custom kernels, and
other members in bfloat16, with folded batch norms, compiled for one batch shape. No certificate and
no judgement of an attack depends on it.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from sween.engine.arithmetic import InArithmetic
from sween.engine.cuda_graph import MAX_GRAPHS, CudaGraph, Forward
from sween.engine.engine import VoteEngine
from sween.engine.fold_batch_norm import fold_batch_norm
from sween.engine.kernels import (
    FusedGradients,
    GradientShape,
    MaskShape,
    is_cifar_resnet,
    launcher,
    supports,
)
from sween.engine.model_errors import refuse_broken_device
from sween.engine.same_operations import is_read_rightly
from sween.ensemble import WeightedEnsemble
from sween.ensemble.weighted import add_weighted
from sween.errors import is_out_of_memory, warn_fallback
from sween.smoothing.smoothed_logits import PlainProbabilities, Probabilities

PASS_ROWS = 512
"""Rows of one compiled pass: enough to keep a GPU busy, with little padding."""

KERNEL_ROWS = 2048
"""Rows of a pass of custom kernels, which are faster."""

ROWS_TRIED = 64
"""Noisy images on which compiled gradients are compared with plain ones."""

MEDIAN_COSINE, LEAST_COSINE = 0.97, 0.8
"""Least similarity of compiled and plain gradients: rounding stays above it, a fault below."""

MOST_APART = 0.05
"""Largest difference of compiled and plain probabilities."""


Pull = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Vector-Jacobian product: noisy images and a gradient in the probabilities to one in images."""


class FastProbabilities:
    """An ensemble whose members are folded and compiled for one batch shape, or on kernels.

    The gradient recomputes the forward pass; on a GPU both passes are captured in one CUDA graph.

    Attributes:
        name: for the config of a run.

    Args:
        ensemble: in evaluation mode, on the device that will run it.
        compile: such as `torch.compile`.
        kernels: a member on custom kernels, or None if there are none for it.
        fold: a member without its batch norms, or the member itself.
        rows: images per pass.
        values: a faster source of the probabilities themselves, if there is one.
    """

    def __init__(
        self,
        ensemble: WeightedEnsemble,
        *,
        compile: Callable[[nn.Module], Forward],
        kernels: Callable[[nn.Module], FusedGradients | None] = lambda member: None,
        fold: Callable[[nn.Module], nn.Module] = fold_batch_norm,
        rows: int | None = None,
        values: Forward | None = None,
    ) -> None:
        weights = ensemble.weights.tolist()
        device = next(ensemble.parameters()).device
        self.values = self._of_members if values is None else values
        self._pull_pass: Pull | None = None

        def prepared(member: nn.Module) -> Forward | FusedGradients:
            folded = InArithmetic(fold(member), device, torch.bfloat16)
            return compile(folded.requires_grad_(False))  # no gradients of weights

        self._members = [
            (weight, kernels(member) or prepared(member))
            for weight, member in zip(weights, ensemble.members, strict=True)
            if weight > 0
        ]
        fused = all(isinstance(member, FusedGradients) for _, member in self._members)
        self.name = "fused" if fused else "compiled"
        self.rows = rows or (KERNEL_ROWS if fused else PASS_ROWS)

    def __call__(self, noisy: torch.Tensor) -> torch.Tensor:
        probabilities: torch.Tensor = _Probabilities.apply(noisy, self)  # type: ignore[no-untyped-call]
        return probabilities

    def pull(self, noisy: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        """The vector-Jacobian product of a gradient (B, M) in the probabilities."""
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
        pulled: torch.Tensor | None = None
        for weight, member in self._members:
            if isinstance(member, FusedGradients):
                own = member.pull(images, functools.partial(_softmax_gradient, gradient))
            else:
                own = self._by_autograd(member, images, gradient)
            pulled = add_weighted(pulled, weight, own)
        assert pulled is not None  # weights sum to 1
        return pulled

    def _by_autograd(
        self, member: Forward, images: torch.Tensor, gradient: torch.Tensor
    ) -> torch.Tensor:
        own = images.detach().requires_grad_()
        with torch.enable_grad(), self._without_limit():
            probabilities = torch.softmax(member(own), dim=1)
            return torch.autograd.grad(probabilities, own, gradient)[0]

    def _scores(self, images: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor | None = None
        with self._without_limit():
            for weight, member in self._members:
                scores = add_weighted(scores, weight, torch.softmax(member(images), dim=1))
        assert scores is not None  # weights sum to 1
        return scores

    @staticmethod
    @contextlib.contextmanager
    def _without_limit() -> Iterator[None]:
        """All members share the same code, so torch counts each one's graph as a recompilation."""
        with torch._dynamo.config.patch(
            recompile_limit=MAX_GRAPHS, accumulated_recompile_limit=MAX_GRAPHS
        ):
            yield


def _softmax_gradient(gradient: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """In the logits, of a gradient in their softmax."""
    probabilities = torch.softmax(logits, dim=1)
    return probabilities * (gradient - (probabilities * gradient).sum(dim=1, keepdim=True))


class _Probabilities(torch.autograd.Function):
    """Values from the fastest source, gradients by recomputing the forward pass."""

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
    """On kernels or compiled if the engine's members are, and agree with plain ones; else plain.

    Args:
        ensemble: in evaluation mode, without gradients of its weights.
        engine: of the classifier that judges the attack; prepared.
        image: (C, H, W), for the comparison.
    """
    plain = PlainProbabilities(ensemble)
    if not engine.compiled:
        return plain
    try:
        fast = FastProbabilities(
            ensemble,
            compile=lambda member: torch.compile(member, dynamic=False),
            kernels=functools.partial(_kernels_of, image=image),
            fold=functools.partial(_folded, image=image),
            values=engine.probabilities,
        )
        with deterministic_convolutions():
            # Captured here: a CUDA graph cannot be captured in autograd's backward thread.
            fast.pull(image[None], torch.zeros_like(fast.values(image[None])))
            check_agreement(fast, plain, image)
        return fast
    except Exception as error:  # compilers fail in many ways; plain gradients always work
        if not is_out_of_memory(error):  # plain gradients need less memory
            refuse_broken_device(error)
        warn_fallback("the attacker's gradients cannot be compiled", error)
        return plain


def _folded(member: nn.Module, image: torch.Tensor) -> nn.Module:
    """Without batch norm, if torch.fx reads the member's code as it runs."""
    return fold_batch_norm(member) if is_read_rightly(member, image[None]) else member


def _kernels_of(member: nn.Module, image: torch.Tensor) -> FusedGradients | None:
    if not supports(image.device) or not is_cifar_resnet(member, image.shape):
        return None
    launchers = (launcher(image.device, shape) for shape in (MaskShape(), GradientShape()))
    return FusedGradients(member, *launchers)


def check_agreement(fast: Forward, plain: Forward, image: torch.Tensor) -> None:
    """Refuse probabilities or gradients that differ from plain ones.

    An attack with wrong gradients would be weak, and make the model look robust.
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
        raise RuntimeError(f"probabilities differ by {apart:.3g}")
    lengths = their_gradient.norm(dim=1)
    steep = lengths >= 0.05 * lengths.max()  # the others are dominated by rounding
    cosines = torch.nn.functional.cosine_similarity(our_gradient, their_gradient, dim=1)[steep]
    if not float(lengths.max()) > 0:
        raise RuntimeError("all gradients are zero")
    median, least = float(cosines.median()), float(cosines.min())
    if not (median >= MEDIAN_COSINE and least >= LEAST_COSINE):
        raise RuntimeError(f"gradients differ: cosine {least:.3g} at least, {median:.3g} median")


@contextlib.contextmanager
def deterministic_convolutions() -> Iterator[None]:
    """Deterministic cuDNN convolutions and gradients."""
    known = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    try:
        yield
    finally:
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = known
