"""Muon (Jordan et al. 2024): matrices move by momentum whose singular values are brought near one.

SGD moves a filter bank mostly along the few directions in which its gradient is large. Muon moves
it along all of them alike, which takes fewer epochs to the same loss. What is not a matrix (biases,
batch norms) and the last layer move by SGD.
"""

import contextlib
import math
from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional

from sween.models.evaluation_mode import evaluating

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the published quintic, whose five iterations bring singular values into about [0.7, 1.2]."""

ITERATIONS = 5

_NO_DIVISION_BY_ZERO = 1e-7


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalised for matrices and plain for all else.

    A matrix is first scaled back to the Frobenius norm of an orthogonal one, so that `rate` is the
    length of a step relative to it: before a batch norm its scale has no effect, and in front of
    other layers these can take its place (of queries and keys in attention, nothing does). It has
    no other weight decay.

    Args:
        matrices: weights of two dimensions or more; a filter bank is a matrix with a row for each
            filter.
        others: groups of other parameters with their weight decays.
        rate: of SGD for the others: a number, or a tensor that a captured step reads.
        matrix_rate: of the matrices, in multiples of `rate`, so that one schedule drives both.
        momentum: of both.
        nesterov: in Nesterov's form.
        low_precision: orthogonalise in bfloat16.
    """

    def __init__(
        self,
        matrices: Sequence[torch.Tensor],
        others: Sequence[dict[str, object]],
        *,
        rate: float | torch.Tensor,
        matrix_rate: float,
        momentum: float,
        nesterov: bool,
        low_precision: bool,
    ) -> None:
        groups = [{"params": list(matrices), "matrices": True, "weight_decay": 0.0}, *others]
        super().__init__(
            [group for group in groups if group["params"]], {"lr": rate, "matrices": False}
        )
        self.matrix_rate, self.low_precision = matrix_rate, low_precision
        self.momentum, self.nesterov = momentum, nesterov

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One step by the gradients at hand."""
        for group in self.param_groups:
            parameters = [one for one in group["params"] if one.grad is not None]
            if not parameters:
                continue
            directions = self._with_momentum(parameters, group["weight_decay"])
            if not group["matrices"]:
                _descend(parameters, directions, group["lr"])
                continue
            rate = self.matrix_rate * group["lr"]
            filters, turned = _as_in_memory(parameters, directions)
            found = orthogonalise_all(
                [one.flatten(1) for one in turned], low_precision=self.low_precision
            )
            for alike, orthogonal in _by_shape(filters, found):
                matrices = torch.stack([one.flatten(1) for one in alike])
                moved = _scaled_back(matrices) - rate * torch.stack(orthogonal)
                torch._foreach_copy_(alike, list(moved.view(-1, *alike[0].shape)))

    def _with_momentum(
        self, parameters: list[torch.Tensor], weight_decay: float
    ) -> list[torch.Tensor]:
        """The directions of torch.optim.SGD, whose buffers start at the gradient."""
        gradients = [one.grad for one in parameters if one.grad is not None]
        if weight_decay:
            gradients = list(torch._foreach_add(gradients, parameters, alpha=weight_decay))
        buffers = []
        for parameter in parameters:
            state = self.state[parameter]
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(parameter)
            buffers.append(state["momentum_buffer"])
        torch._foreach_mul_(buffers, self.momentum)
        torch._foreach_add_(buffers, gradients)
        if not self.nesterov:
            return buffers
        return list(torch._foreach_add(gradients, buffers, alpha=self.momentum))


def orthogonalise(matrices: torch.Tensor, *, low_precision: bool = False) -> torch.Tensor:
    """The same singular vectors with singular values near one, times (rows/columns)^.5 if tall.

    Newton-Schulz iterations of the published quintic. Rows then have norm one on average.

    Args:
        matrices: (K, rows, columns).
        low_precision: iterate in bfloat16.
    """
    rows, columns = matrices.shape[1:]
    tall = rows > columns
    current: torch.Tensor = matrices.mT if tall else matrices
    norms = torch.linalg.vector_norm(current, dim=(1, 2), keepdim=True)
    current = current / (norms + _NO_DIVISION_BY_ZERO)
    if low_precision:
        current = current.bfloat16()
    first, second, third = COEFFICIENTS
    for _ in range(ITERATIONS):
        gram = current @ current.mT
        mixed = torch.baddbmm(gram, gram, gram, beta=second, alpha=third)
        current = torch.baddbmm(current, mixed, current, beta=first)
    current = current.to(matrices.dtype)
    return current.mT * math.sqrt(rows / columns) if tall else current


def orthogonalise_all(
    matrices: Sequence[torch.Tensor], *, low_precision: bool = False
) -> list[torch.Tensor]:
    """`orthogonalise` of each, in few batches.

    Columns of zeros do not change what becomes of the others, so matrices of different widths share
    a batch: a GPU would take longer to start the products of many small batches than to compute
    those of a padded one.
    """
    wide = [one.mT if one.shape[0] > one.shape[1] else one for one in matrices]
    batches: dict[int, list[int]] = defaultdict(list)
    for position, one in enumerate(wide):
        batches[len(one)].append(position)
    found = dict[int, torch.Tensor]()
    for positions in batches.values():
        width = max(wide[position].shape[1] for position in positions)
        padded = [
            functional.pad(wide[position], (0, width - wide[position].shape[1]))
            for position in positions
        ]
        orthogonal = orthogonalise(torch.stack(padded), low_precision=low_precision)
        found |= dict(zip(positions, orthogonal, strict=True))
    shaped = [found[position][:, : one.shape[1]] for position, one in enumerate(wide)]
    return [
        one.mT * math.sqrt(matrix.shape[0] / matrix.shape[1])
        if matrix.shape[0] > matrix.shape[1]
        else one
        for one, matrix in zip(shaped, matrices, strict=True)
    ]


def matrices_of(model: nn.Module, images: torch.Tensor | None = None) -> list[torch.Tensor]:
    """Weights of convolutions and linear layers, without those of the last one.

    A weight that is computed from other parameters, as by weight normalisation, is not among them.

    Args:
        model: in any mode.
        images: a batch for it, which shows which layer runs last; without, the last one that the
            model has.
    """
    layers = [
        module
        for module in model.modules()
        if isinstance(module, nn.Linear | nn.modules.conv._ConvNd)
        and isinstance(module.weight, nn.Parameter)
        and module.weight.requires_grad
    ]
    last = layers[-1:] if images is None else _last_to_run(model, layers, images)
    weights: list[torch.Tensor] = [own.weight for own in layers if own not in last]
    return list(dict.fromkeys(weights))  # a weight may be shared by several layers


@torch.no_grad()
def _last_to_run(
    model: nn.Module, layers: Sequence[nn.Module], images: torch.Tensor
) -> list[nn.Module]:
    """The layer that gives the logits; a model may declare it before others."""
    ran = list[nn.Module]()
    with contextlib.ExitStack() as stack:
        for layer in layers:
            hook = layer.register_forward_hook(lambda module, given, out: ran.append(module))
            stack.callback(hook.remove)
        stack.enter_context(evaluating(model))
        model(images)
    return ran[-1:]


def _scaled_back(matrices: torch.Tensor) -> torch.Tensor:
    norms: torch.Tensor = torch.linalg.vector_norm(matrices, dim=(1, 2), keepdim=True)
    return matrices * (math.sqrt(matrices.shape[1]) / (norms + _NO_DIVISION_BY_ZERO))


def _descend(
    parameters: list[torch.Tensor], directions: list[torch.Tensor], rate: float | torch.Tensor
) -> None:
    if isinstance(rate, torch.Tensor):
        torch._foreach_sub_(parameters, torch._foreach_mul(directions, rate))
    else:
        torch._foreach_add_(parameters, directions, alpha=-rate)


def _as_in_memory(
    parameters: Sequence[torch.Tensor], directions: Sequence[torch.Tensor]
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Views in the order in which each parameter lies in memory: of columns it does not matter."""
    views: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
    for pair in zip(parameters, directions, strict=True):
        last = pair[0].ndim == 4 and pair[0].is_contiguous(memory_format=torch.channels_last)
        for view, one in zip(views, pair, strict=True):
            view.append(one.permute(0, 2, 3, 1) if last else one)
    return views


def _by_shape(
    parameters: Sequence[torch.Tensor], directions: Sequence[torch.Tensor]
) -> list[tuple[list[torch.Tensor], list[torch.Tensor]]]:
    """Parameters with their directions, those of one shape together."""
    found: dict[torch.Size, tuple[list[torch.Tensor], list[torch.Tensor]]] = defaultdict(
        lambda: ([], [])
    )
    for parameter, direction in zip(parameters, directions, strict=True):
        alike = found[parameter.shape]
        alike[0].append(parameter)
        alike[1].append(direction)
    return list(found.values())
