"""A member of the ensemble, prepared again when its module changes."""

from collections.abc import Sequence

import torch
from torch import nn

from sween.engine.kernels import FusedResNet
from sween.engine.model_errors import explain_model_errors
from sween.engine.module_state import same_parts, same_tensors, state_of
from sween.engine.preparation import Preparation
from sween.engine.prepare import prepare
from sween.engine.prepared import Prepared


class Member:
    """A module and its prepared form, which follows changes of parameters, buffers and modes.

    A module is prepared, and checked for mixing its batch, once per state: its submodules, their
    parameters, buffers and hooks, and their modes during evaluation. Other changes after its first
    use, such as a flag that its code reads, are not noticed.

    Args:
        module: from float32 images (rows, C, H, W) to outputs (rows, M).
        preparation: how to prepare it.
    """

    def __init__(self, module: nn.Module, preparation: Preparation) -> None:
        self.module = module
        self.preparation = preparation
        self._state: list[torch.Tensor] = []
        self._parts: list[object] = []
        self._shape: tuple[int, ...] = ()
        self._prepared: Prepared | None = None
        self._probed = dict[tuple[int, ...], bool]()

    @property
    def compiled(self) -> bool:
        """Whether the prepared form is compiled; known after `refresh`."""
        return self._ready.compiled

    @property
    def _ready(self) -> Prepared:
        if self._prepared is None:
            raise RuntimeError("refresh the member first")
        return self._prepared

    @property
    def shared(self) -> bool:
        """Whether the prepared form changes with the module; known after `refresh`."""
        return self._ready.shared

    @property
    def one_at_a_time(self) -> bool:
        """Whether the images of a batch are run one by one; known after `refresh`."""
        return self._ready.one_at_a_time

    @property
    def fused(self) -> FusedResNet | None:
        """The prepared form, if it runs on custom kernels."""
        run = None if self._prepared is None else self._prepared.run
        return run if isinstance(run, FusedResNet) else None

    @property
    def arithmetic(self) -> str:
        """The arithmetic of the prepared form, for records; see `Preparation.describe`."""
        return self._ready.arithmetic

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        if self._prepared is None:
            self.refresh(images)
        assert self._prepared is not None
        return self._prepared.run(images)

    @torch.no_grad()
    def refresh(self, images: torch.Tensor) -> None:
        """Prepare the module, which is in evaluation mode, unless nothing changed since last time.

        Args:
            images: a batch of the only shape that will be evaluated; of the only size of images
                if the prepared form is not compiled.
        """
        if self.is_current(images.shape):
            return
        self.forget()
        # Read before preparing, so that the next call notices a change made by another thread.
        parts, tensors = state_of(self.module)
        with explain_model_errors(self.module, images.shape[1:]):  # a lazy layer has no numbers yet
            state = [tensor.detach().clone() for tensor in tensors]
        self._prepared = prepare(self.module, self.preparation, images)
        self._state, self._parts, self._shape = state, parts, tuple(images.shape)

    def is_current(self, shape: Sequence[int]) -> bool:
        """Whether the module is prepared in its current state, for batches of this shape."""
        if self._prepared is None:
            return False
        same_size = tuple(shape[1:]) == self._shape[1:]
        if (self._prepared.compiled and tuple(shape) != self._shape) or (
            self._prepared.rewritten and not same_size
        ):
            return False
        parts, tensors = state_of(self.module)
        return same_parts(parts, self._parts) and same_tensors(tensors, self._state)

    def forget(self) -> None:
        """Drop the prepared form, its memory, and the results of the batch-mixing check."""
        self._prepared, self._state, self._parts = None, [], []
        self._probed.clear()

    def is_probed(self, shape: Sequence[int]) -> bool:
        """Whether the prepared form passed the batch-mixing check for that shape."""
        return tuple(shape) in self._probed

    def note_probed(self, shape: Sequence[int], *, by_place: bool) -> None:
        """Remember that the prepared form passed the batch-mixing check for that shape.

        `by_place` says whether it rounds a row by its place in the batch.
        """
        self._probed[tuple(shape)] = by_place

    def rounds_by_place(self, shape: Sequence[int]) -> bool:
        """Whether the batch-mixing check found that a row's place in the batch matters."""
        return self._probed.get(tuple(shape), False)
