"""Training in several processes, started by torchrun: one on each GPU, or several on CPUs (gloo).

Each process takes its part of every batch. Sums over all processes make gradients, loss and batch
statistics those of the whole batch, so that the number of processes does not change the run. Only
the first process writes.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from sween.errors import BadInput, SweenError, first_line
from sween.run_folder import config_differences

Value = TypeVar("Value")


class Processes:
    """The processes of one training run, as seen by one of them.

    Attributes:
        rank: number of this process.
        count: of all processes.
        local_rank: number of this process on its machine.
    """

    def __init__(self, rank: int, count: int, local_rank: int = 0) -> None:
        self.rank, self.count, self.local_rank = rank, count, local_rank

    @property
    def first(self) -> bool:
        """Whether this is the process that writes and shows progress."""
        return self.rank == 0

    def part(self, batch_size: int) -> slice:
        """This process's part of a batch; parts differ by at most one image."""
        if batch_size < self.count:
            raise BadInput(
                "batch_size",
                expected=f"at least {self.count}, one image for each process",
                got=batch_size,
                fix="start fewer processes",
            )
        first, end = (batch_size * rank // self.count for rank in (self.rank, self.rank + 1))
        return slice(first, end)

    def from_first(self, value: Value) -> Value:
        """The first process's value."""
        values = [value]
        with noticing_loss():
            dist.broadcast_object_list(values)
        return values[0]

    def check_same(self, found: Mapping[str, Any]) -> None:
        """Refuse a process that found something else than the first one, such as other images."""
        everyone: list[Mapping[str, Any]] = [{}] * self.count
        with noticing_loss():
            dist.all_gather_object(everyone, found)
        for rank, other in enumerate(everyone):
            differences = config_differences(everyone[0], other)
            if differences:
                raise BadInput(
                    f"process {rank}",
                    expected="the same as in process 0",
                    got="; ".join(differences),
                    fix="give every machine the same command and the same files",
                )

    def sum_gradients(self, parameters: Iterable[torch.Tensor], loss: torch.Tensor) -> torch.Tensor:
        """Sum gradients over all processes, in place, and the loss, which is returned.

        One reduction after the backward pass. DistributedDataParallel would average the parts'
        gradients, which is not the gradient of the batch if the parts are unequal.
        """
        gradients = [one.grad for one in parameters if one.grad is not None]
        flat = torch.cat([loss.detach().reshape(1), *(one.flatten() for one in gradients)])
        total, *sums = torch.split(_sum(flat), [1, *(one.numel() for one in gradients)])
        for gradient, summed in zip(gradients, sums, strict=True):
            gradient.copy_(summed.view_as(gradient))
        return total[0]


def _sum(tensor: torch.Tensor) -> torch.Tensor:
    """The sum of a tensor over all processes, in place."""
    with noticing_loss():
        dist.all_reduce(tensor)
    return tensor


@contextlib.contextmanager
def noticing_loss() -> Iterator[None]:
    """Say in one line that another process did not answer."""
    try:
        yield
    except RuntimeError as error:  # torch has no type of its own for it
        raise SweenError(
            f"no answer from another process of this run ({first_line(error)}); run the same "
            "command again to resume"
        ) from None


class _Sum(torch.autograd.Function):
    """`_sum`, differentiable: the loss of a batch is the sum of what the processes have of it."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        return _sum(tensor.clone())

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return _sum(gradient.clone())


class GlobalBatchStatistics(TorchFunctionMode):
    """Within the block, batch norms in training mode normalise by the batch of all processes.

    It replaces the function that all batch norms call, so that it covers torch's modules, other
    libraries' subclasses of them and direct calls. torch's SyncBatchNorm runs on GPUs only.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        function = batch_norm if func is functional.batch_norm else func
        return function(*args, **kwargs or {})


def batch_norm(
    input: torch.Tensor,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> torch.Tensor:
    """torch's `batch_norm` of the batch of all processes, each of which passes its part."""
    if not training:
        return functional.batch_norm(
            input, running_mean, running_var, weight, bias, False, momentum, eps
        )
    values = input.to(torch.promote_types(input.dtype, torch.float32))
    dims = [dim for dim in range(values.ndim) if dim != 1]
    shape = [-1 if dim == 1 else 1 for dim in range(values.ndim)]
    count = values.new_full((1,), values.numel() // values.shape[1])
    total: Callable[[torch.Tensor], torch.Tensor] = _Sum.apply
    sums = total(torch.cat([values.sum(dims), count]))
    mean, counted = sums[:-1] / sums[-1], sums[-1]
    centred = values - mean.view(shape)
    # In a second pass: a difference of two large sums would lose digits.
    variance = total(centred.square().sum(dims)) / counted
    if running_mean is not None and running_var is not None:
        with torch.no_grad():
            running_mean.lerp_(mean.to(running_mean.dtype), momentum)
            unbiased = variance * counted / (counted - 1)
            running_var.lerp_(unbiased.to(running_var.dtype), momentum)
    scale = torch.rsqrt(variance + eps)
    scale = scale if weight is None else scale * weight
    normalised = centred * scale.view(shape)
    normalised = normalised if bias is None else normalised + bias.view(shape)
    return normalised.to(input.dtype)
