"""Exponential moving average of the weights, which often certifies better than the last ones."""

import contextlib
from collections.abc import Iterator, Mapping

import torch
from torch import nn


class MovingAverage:
    """average <- decay * average + (1 - decay) * weights, batch-norm statistics included."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self._sources = {
            name: tensor
            for name, tensor in model.state_dict().items()
            if tensor.is_floating_point()
        }
        self.tensors = {name: tensor.clone() for name, tensor in self._sources.items()}

    @torch.no_grad()
    def update(self) -> None:
        torch._foreach_lerp_(
            list(self.tensors.values()), list(self._sources.values()), 1 - self.decay
        )

    @contextlib.contextmanager
    def in_place_of_the_weights(self) -> Iterator[None]:
        """The model has the average inside the block, and its own weights, to the bit, after it."""
        own = {name: tensor.clone() for name, tensor in self._sources.items()}
        self._fill(self.tensors)
        try:
            yield
        finally:
            self._fill(own)

    @torch.no_grad()
    def _fill(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Copied, so that a captured step finds the weights where they were."""
        for name, tensor in tensors.items():
            self._sources[name].copy_(tensor)
