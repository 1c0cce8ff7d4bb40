"""Forward passes of one fixed shape, and the checks that make a module a member.

A certificate speaks of a deterministic function of ONE noisy image. Kernels may round differently
for different batch shapes, and a module may mix its batch (batch norm left in training mode). So a
member only ever sees batches of one fixed number of rows, padded where needed, and a module whose
answer for a row changes with the other rows is refused.
"""

import torch
from torch import nn

from sween.errors import BadInput, ContractError
from sween.seeding import NOISE_BLOCK, standard_normal

CPU_FORWARD_ROWS = NOISE_BLOCK
"""On a CPU one forward pass is one noise block: the same rows in the same places, always."""

GPU_FORWARD_ROWS = 10 * NOISE_BLOCK
"""A GPU needs more rows to be busy."""

BATCH_MATE_TOLERANCE = 1e-4
"""Rounding differs by far less between rows, a module that mixes its batch by far more."""


def default_forward_rows(device: torch.device) -> int:
    """Rows of one forward pass on this kind of device."""
    return CPU_FORWARD_ROWS if device.type == "cpu" else GPU_FORWARD_ROWS


def device_of(module: nn.Module) -> torch.device:
    """The device of a module's parameters or buffers; the CPU where it has none."""
    for tensor in (*module.parameters(), *module.buffers()):
        return tensor.device
    return torch.device("cpu")


class FixedShapeForward:
    """Evaluates modules on any number of rows through batches of exactly `rows`."""

    def __init__(self, rows: int, num_classes: int) -> None:
        if rows < 1:
            raise BadInput("forward_rows", expected="at least 1", got=rows, fix="try 100")
        self.rows = rows
        self.num_classes = num_classes

    def __call__(self, module: nn.Module, images: torch.Tensor) -> torch.Tensor:
        """Outputs (B, num_classes) for images (B, C, H, W)."""
        outputs = [self._one(module, part) for part in torch.split(images, self.rows)]
        if not outputs:
            return images.new_zeros((0, self.num_classes))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def _one(self, module: nn.Module, part: torch.Tensor) -> torch.Tensor:
        count = len(part)
        if count < self.rows:
            part = torch.cat([part, part.new_zeros((self.rows - count, *part.shape[1:]))])
        output = module(part)
        if not isinstance(output, torch.Tensor) or output.shape != (self.rows, self.num_classes):
            got = tuple(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
            raise ContractError(
                "model output",
                expected=f"a tensor of shape ({self.rows}, {self.num_classes})",
                got=got,
                fix="pass the model's number of classes as num_classes",
            )
        output = output[:count]
        if not torch.isfinite(output).all():
            raise ContractError(
                "model output",
                expected="finite numbers for every noisy image",
                got="NaN or infinity",
                fix="check the weights; a vote cannot be counted without an answer",
            )
        return output


@torch.inference_mode()
def check_row_independence(
    module: nn.Module, forward: FixedShapeForward, image: torch.Tensor, sigma: float
) -> None:
    """Refuse a module whose answer for one noisy image changes with the rest of the batch."""
    if forward.rows == 1:
        return
    block = image + sigma * standard_normal(
        (forward.rows, *image.shape),
        seed=0,
        purpose="row independence",
        example=0,
        block=0,
        device=image.device,
    )
    mixed = block.flip(0).clone()
    mixed[0] = block[0]
    together, apart = forward(module, block)[0], forward(module, mixed)[0]
    difference = float((together - apart).abs().max())
    scale = max(1.0, float(together.abs().max()))
    if difference > BATCH_MATE_TOLERANCE * scale:
        raise ContractError(
            "model",
            expected="an answer for each image that does not depend on the rest of its batch",
            got=f"outputs that change by {difference:.3g} with other batch-mates",
            fix="put batch norm in evaluation mode (model.eval()) and turn off dropout",
        )
