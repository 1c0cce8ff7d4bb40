"""Differentiable smoothed logits, for gradient attacks on a smoothed classifier."""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import nn

from sween.ensemble import WeightedEnsemble
from sween.models.evaluation_mode import evaluating
from sween.seeding import standard_normal

PURPOSE = "attack"

_SMALLEST = 1e-30
"""Floor of a mean probability, so that its logarithm is finite."""


class Probabilities(Protocol):
    """From noisy images (B, C, H, W) to probabilities (B, M), differentiable in the images."""

    name: str

    def __call__(self, noisy: torch.Tensor) -> torch.Tensor: ...


class PlainProbabilities:
    """The model itself, in bfloat16 on a GPU.

    Attributes:
        name: for the config of a run.

    Args:
        model: a `WeightedEnsemble`, or any module to logits; in evaluation mode.

    Example:
        >>> import sween
        >>> from sween.attack import PlainProbabilities, SmoothedLogits
        >>> digits = sween.load_dataset("digits").test
        >>> probabilities = PlainProbabilities(sween.load("digits-sween3-gaussian-sigma0.50"))
        >>> surrogate = SmoothedLogits(probabilities, sigma=0.5, samples=8, seed=0)
        >>> surrogate(digits.images([0])).shape
        torch.Size([1, 10])
    """

    name = "plain"

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __call__(self, noisy: torch.Tensor) -> torch.Tensor:
        with torch.autocast(noisy.device.type, torch.bfloat16, enabled=noisy.is_cuda):
            outputs = self.model(noisy)
        if not isinstance(self.model, WeightedEnsemble):
            outputs = torch.softmax(outputs.float(), dim=1)
        probabilities: torch.Tensor = outputs.float()
        return probabilities


class FrozenProbabilities:
    """A model's probabilities in evaluation mode, differentiable in the images only.

    The model's mode, statistics and parameter gradients are left unchanged.

    Args:
        model: a `WeightedEnsemble`, or any module to logits.
    """

    name = "frozen"

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __call__(self, noisy: torch.Tensor) -> torch.Tensor:
        parameters = {name: own.detach() for name, own in self.model.named_parameters()}
        with evaluating(self.model):
            outputs: torch.Tensor = torch.func.functional_call(self.model, parameters, (noisy,))
        if isinstance(self.model, WeightedEnsemble):
            return outputs.float()
        return torch.softmax(outputs.float(), dim=1)


class SmoothedLogits(nn.Module):
    """log of the model's mean probabilities over m noisy copies (Salman et al. 2019).

    Noise is keyed by (seed, unit, call), or by (seed, unit) if not fresh. It never comes from
    torch's global generators, which AutoAttack reseeds.

    Args:
        model: `Probabilities`, or a module: a `WeightedEnsemble`, or any other that returns logits.
        sigma: noise level.
        samples: m.
        seed: of the noise.
        unit: number of the batch of images.
        fresh: new noise at every call; otherwise a deterministic function.
        rows: noisy images per pass; with more, the gradient is computed part by part.

    Example:
        >>> import sween
        >>> from sween.smoothing import SmoothedLogits
        >>> digits = sween.load_dataset("digits").test
        >>> ensemble = sween.load("digits-sween3-gaussian-sigma0.50")
        >>> surrogate = SmoothedLogits(ensemble, sigma=0.5, samples=8, seed=0)
        >>> surrogate(digits.images([0, 1])).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        model: Probabilities | nn.Module,
        *,
        sigma: float,
        samples: int,
        seed: int,
        unit: int = 0,
        fresh: bool = True,
        rows: int = 4096,
    ) -> None:
        super().__init__()
        self.probabilities = PlainProbabilities(model) if isinstance(model, nn.Module) else model
        self.sigma, self.samples = sigma, samples
        self.seed, self.unit, self.fresh, self.rows = seed, unit, fresh, rows
        self.calls = 0

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """log mean probabilities (B, M); all images of a call share noise."""
        noise = self.sigma * standard_normal(
            (self.samples, *images.shape[1:]),
            seed=self.seed,
            purpose=PURPOSE,
            example=self.unit,
            block=self.calls if self.fresh else 0,
            device=images.device,
        )
        self.calls += 1
        if len(self.parts(noise, len(images))) == 1:
            mean = self.sum(images, noise) / self.samples
        else:
            mean = _Mean.apply(images, self, noise)  # type: ignore[no-untyped-call]
        return mean.clamp_min(_SMALLEST).log()

    def parts(self, noise: torch.Tensor, images: int) -> Sequence[torch.Tensor]:
        """The noise, split into one part per pass."""
        return torch.split(noise, max(1, self.rows // images))

    def sum(self, images: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        """Probabilities (B, M), summed over the noise."""
        noisy = (images[None] + noise[:, None]).flatten(0, 1)
        return self.probabilities(noisy).view(len(noise), len(images), -1).sum(dim=0)


class _Mean(torch.autograd.Function):
    """Mean probabilities whose gradient is recomputed part by part.

    Memory use is that of one part, whatever the number of noise samples.
    """

    @staticmethod
    def forward(
        ctx: Any, images: torch.Tensor, surrogate: SmoothedLogits, noise: torch.Tensor
    ) -> torch.Tensor:
        ctx.save_for_backward(images, noise)
        ctx.surrogate = surrogate
        parts = surrogate.parts(noise, len(images))
        total = torch.stack([surrogate.sum(images, part) for part in parts]).sum(dim=0)
        return total / len(noise)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        images, noise = ctx.saved_tensors
        own = images.detach().requires_grad_()
        total = torch.zeros_like(images)
        for part in ctx.surrogate.parts(noise, len(images)):
            with torch.enable_grad():
                summed = ctx.surrogate.sum(own, part)
                total += torch.autograd.grad(summed, own, gradient / len(noise))[0]
        return total, None, None
