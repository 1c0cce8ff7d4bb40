"""An ensemble whose members are evaluated in their prepared form, for other work than votes.

Solving for the weights evaluates every member on as many noisy images as a few certificates do; on
a GPU the prepared form is many times faster, and it is the one that votes.
"""

import torch
from torch import nn

from sween.engine.forward import (
    FixedShapeForward,
    default_forward_rows,
    probe_batch,
    refuse_non_finite,
)
from sween.engine.member import Member
from sween.engine.preparation import Preparation
from sween.ensemble import LoadedEnsemble, WeightedEnsemble
from sween.ensemble.probabilities import GPU_BLOCKS
from sween.errors import ContractError, warn_fallback
from sween.models.device import device_of
from sween.models.evaluation_mode import evaluating
from sween.seeding import NOISE_BLOCK

FEWEST_EVALUATIONS = 50_000
"""From which preparing a member pays: compiling a network without custom kernels takes seconds."""

MAX_ROWS = GPU_BLOCKS * NOISE_BLOCK
"""Of a forward pass: what the solver asks for at once; in larger ones padding would be wasted."""


class PreparedModule(nn.Module):
    """Logits of a module for any number of images, by its prepared form.

    It is prepared at the first call, in evaluation mode, for one shape of images on one device;
    later changes of its parameters are not noticed. A module that cannot be prepared, since it
    needs float32 for example, is evaluated as it is, with a warning.

    Args:
        module: from float32 images (N, C, H, W) to logits (N, num_classes).
        num_classes: that it distinguishes.
        preparation: how to prepare it.
    """

    def __init__(
        self, module: nn.Module, num_classes: int, preparation: Preparation | None = None
    ) -> None:
        super().__init__()
        self.module = module
        self._member: Member | None = Member(module, preparation or Preparation())
        self._forward = FixedShapeForward(num_classes)

    @torch.no_grad()
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        with evaluating(self.module):
            if not self._forward.has_rows:
                self._prepare(images)
            if self._member is None:
                outputs: torch.Tensor = self.module(images)
                return outputs
            logits = self._forward(self._member, images)
        refuse_non_finite(self._forward.all_finite(images.device))
        return logits

    @torch.inference_mode(False)
    def _prepare(self, images: torch.Tensor) -> None:
        rows = min(default_forward_rows(images.device, images[0].numel()), MAX_ROWS)
        self._forward.fix_rows(rows)
        assert self._member is not None
        try:
            # Noisy, as what it will see: kernels are compared with torch on it.
            self._member.refresh(probe_batch(images[0].clone(), rows, 1.0))
        except ContractError as error:
            warn_fallback("a member cannot be prepared to solve for the weights", error)
            self._member = None


def prepared_ensemble(ensemble: LoadedEnsemble, *, evaluations: int) -> WeightedEnsemble:
    """The same members and weights, evaluated in prepared form where that is faster.

    It is not for few evaluations, nor on a CPU, whose weights would depend on how members are
    prepared: then it is the ensemble itself.

    Args:
        ensemble: in evaluation mode whenever it is evaluated.
        evaluations: about how many noisy images each member will be evaluated on.

    Example:
        >>> import sween
        >>> from sween.engine import prepared_ensemble
        >>> loaded = sween.load("digits-sween3-gaussian-sigma0.50")
        >>> prepared_ensemble(loaded, evaluations=10**6) is loaded  # on a CPU
        True
    """
    if device_of(ensemble).type == "cpu" or evaluations < FEWEST_EVALUATIONS:
        return ensemble
    members = [PreparedModule(own, ensemble.num_classes) for own in ensemble.members]
    return WeightedEnsemble(members, ensemble.weights)
