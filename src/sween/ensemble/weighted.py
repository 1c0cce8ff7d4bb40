"""The weighted ensemble: sum_k w_k softmax(logits_k)."""

from collections.abc import Iterable, Sequence

import torch
from torch import nn

from sween.errors import BadInput, ContractError, describe_type

SIMPLEX_TOLERANCE = 1e-6


def check_weights(
    weights: Sequence[float] | torch.Tensor, members: int, *, what: str = "weights"
) -> torch.Tensor:
    """Weights as a float64 vector on the simplex, exactly normalised; refuse anything else."""
    try:
        vector = torch.as_tensor(weights, dtype=torch.float64).detach().cpu().clone()
    except (TypeError, ValueError, RuntimeError):
        raise BadInput(
            what, expected="numbers", got=repr(weights), fix="pass one number per member"
        ) from None
    if vector.shape != (members,):
        raise BadInput(
            f"{what}: expected {members} numbers, one per member, got shape {tuple(vector.shape)}; "
            "pass as many weights as members"
        )
    total = float(vector.sum())
    valid = bool(torch.isfinite(vector).all()) and bool((vector >= 0).all())
    if not valid or abs(total - 1) > SIMPLEX_TOLERANCE:
        raise BadInput(
            what,
            expected="non-negative numbers that sum to 1",
            got=f"{[round(float(w), 6) for w in vector]} with sum {total:.6g}",
            fix="divide them by their sum" if valid and total > 0 else "pass weights such as 0.5",
        )
    # Unchanged if the sum is 1 up to rounding, so that checking twice changes nothing.
    return vector if abs(total - 1) < 1e-12 else vector / total


def evaluation_order(weights: Sequence[float]) -> list[int]:
    """Members by descending weight; equal weights keep their order."""
    return sorted(range(len(weights)), key=lambda k: (-weights[k], k))


def member_probabilities(member: nn.Module, images: torch.Tensor) -> torch.Tensor:
    """Softmax of one member's logits, (B, M).

    The member gets a copy: one that works in place would change what the next one sees.
    """
    return torch.softmax(member(images.clone()).float(), dim=1)


def add_weighted(
    scores: torch.Tensor | None, weight: float, probabilities: torch.Tensor
) -> torch.Tensor:
    """scores + weight * probabilities, in two separately rounded steps.

    The full ensemble and every early exit add members with this function and in the same order, so
    that with all members evaluated they agree bit for bit.
    """
    term = weight * probabilities
    return term if scores is None else scores + term


class WeightedEnsemble(nn.Module):
    """A module from [0,1] images to the probabilities sum_k w_k softmax(logits_k).

    Members are any modules from image batches (N, C, H, W) to logits (N, M); they are not modified,
    and sween always evaluates them in evaluation mode. `weights` stays on the simplex.

    Args:
        members: the modules, at least one.
        weights: one per member, non-negative, with sum 1; equal by default.

    Example:
        >>> import sween, torch
        >>> networks = [
        ...     torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)) for _ in range(2)
        ... ]
        >>> ensemble = sween.WeightedEnsemble(networks, weights=[0.75, 0.25])
        >>> ensemble(torch.zeros(5, 1, 8, 8)).shape
        torch.Size([5, 10])
        >>> ensemble.weights = [0.5, 0.5]
        >>> ensemble.weights.tolist()
        [0.5, 0.5]
    """

    def __init__(
        self, members: Iterable[nn.Module], weights: Sequence[float] | torch.Tensor | None = None
    ) -> None:
        super().__init__()
        if isinstance(members, nn.Sequential):  # whose items are layers
            raise ContractError(
                "members", expected="a list of modules", got="a Sequential", fix="put it in a list"
            )
        modules = list(members)
        if not modules:
            raise BadInput("members", expected="at least one module", got="none", fix="add one")
        for position, member in enumerate(modules):
            if not isinstance(member, nn.Module):
                raise ContractError(
                    f"member {position}: expected a torch.nn.Module from images to logits, got "
                    f"{describe_type(member)}; wrap a function in a module"
                )
            if isinstance(member, WeightedEnsemble):
                raise ContractError(
                    f"member {position}",
                    expected="a module that returns logits",
                    got="a WeightedEnsemble, which returns probabilities",
                    fix="pass its members, with the products of the weights",
                )
        self.members = nn.ModuleList(modules)
        uniform = [1 / len(modules)] * len(modules)
        # Plain numbers, so that no computation depends on a tensor's values and the module can be
        # exported.
        self._weights: tuple[float, ...]
        self.weights = uniform if weights is None else weights

    @property
    def weights(self) -> torch.Tensor:
        """The weights, float64 on the CPU, non-negative, summing to 1."""
        return torch.tensor(self._weights, dtype=torch.float64)

    @weights.setter
    def weights(self, weights: Sequence[float] | torch.Tensor) -> None:
        self._weights = tuple(check_weights(weights, len(self.members)).tolist())

    def get_extra_state(self) -> torch.Tensor:  # torch's way to have them in `state_dict`
        return self.weights

    def set_extra_state(self, state: torch.Tensor) -> None:
        self.weights = state

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor | None = None
        for k in evaluation_order(self._weights):
            probabilities = member_probabilities(self.members[k], images)
            if scores is not None and probabilities.shape != scores.shape:
                raise ContractError(
                    f"member {k}: expected {scores.shape[1]} classes, like the other members, got "
                    f"{probabilities.shape[1]}; combine only members trained on the same data set"
                )
            scores = add_weighted(scores, self._weights[k], probabilities)
        assert scores is not None  # there is at least one member
        return scores
