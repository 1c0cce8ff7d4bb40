"""Forward passes of one fixed shape, and the check that a module treats each row separately.

A certificate is about a deterministic function of ONE noisy image. Kernels may round differently
for different batch shapes, and a module may mix its batch (batch norm left in training mode). So a
member only ever sees batches with a fixed number of rows, padded if necessary, and a module whose
output for one row changes with the other rows is refused.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

from sween.engine.cuda_graph import Forward
from sween.engine.differences import SAME_OUTPUT, class_scales, largest_difference
from sween.engine.kernels import Selection
from sween.engine.member import Member
from sween.errors import BadInput, ContractError, describe_type
from sween.interleave import Steps, to_host_async
from sween.seeding import NOISE_BLOCK, standard_normal

CIFAR_NUMBERS = 3 * 32 * 32

MAX_CPU_BLOCKS = 5
"""The most noise blocks per forward pass on a CPU, for small images; from CIFAR's size on a pass
has one block, which keeps a layer's working set in the cache."""

MAX_GPU_BLOCKS = 100
"""The most noise blocks per forward pass on a GPU, which needs many rows to be busy."""

GPU_FORWARD_NUMBERS = 2 * MAX_GPU_BLOCKS * NOISE_BLOCK * CIFAR_NUMBERS
"""Input values per forward pass on a GPU, for larger images: 400 of 224 x 224 pixels."""

MAX_FORWARD_ROWS = 10**6
"""Far more than keeps any device busy."""


def default_forward_rows(device: torch.device, image_numbers: int) -> int:
    """Rows per forward pass on this kind of device, for images of `image_numbers` values."""
    if device.type == "cpu":
        return max(1, min(CIFAR_NUMBERS // image_numbers, MAX_CPU_BLOCKS)) * NOISE_BLOCK
    blocks = GPU_FORWARD_NUMBERS // (image_numbers * NOISE_BLOCK)
    return max(1, min(blocks, MAX_GPU_BLOCKS)) * NOISE_BLOCK


class FixedShapeForward:
    """Evaluates modules on any number of rows through batches of exactly `rows`."""

    def __init__(self, num_classes: int, rows: int | None = None) -> None:
        self.num_classes = num_classes
        self._rows: int | None = None
        self._sum: torch.Tensor | None = None
        self._on_pass: Callable[[], None] | None = None
        if rows is not None:
            self.fix_rows(rows)

    @property
    def has_rows(self) -> bool:
        return self._rows is not None

    @property
    def rows(self) -> int:
        """Rows of every forward pass."""
        if self._rows is None:
            raise RuntimeError("fix the number of rows first")
        return self._rows

    def clear_rows(self) -> None:
        """Forget the number of rows, so that the next `fix_rows` starts anew."""
        self._rows = None

    def fix_rows(self, rows: int) -> None:
        """Set the number of rows; outputs from before are not bit-for-bit comparable."""
        if not 1 <= rows <= MAX_FORWARD_ROWS:
            raise BadInput(
                "forward_rows", expected=f"1 to {MAX_FORWARD_ROWS}", got=rows, fix="try 100"
            )
        self._rows = rows

    @contextlib.contextmanager
    def shaped(self, rows: int | None) -> Iterator[None]:
        """Use another number of rows while the block runs; None leaves it unchanged."""
        before = self._rows
        if rows is not None:
            self.fix_rows(rows)
        try:
            yield
        finally:
            self._rows = before

    @contextlib.contextmanager
    def reporting(self, on_pass: Callable[[], None]) -> Iterator[None]:
        """Call `on_pass` after each forward pass while the block runs."""
        before, self._on_pass = self._on_pass, on_pass
        try:
            yield
        finally:
            self._on_pass = before

    def __call__(self, module: Forward, images: torch.Tensor) -> torch.Tensor:
        """Outputs (B, num_classes) for images (B, C, H, W)."""
        if len(images) <= self.rows:
            return self._one(module, images)
        return torch.cat([self._one(module, part) for part in torch.split(images, self.rows)])

    def where(
        self, member: Member, images: torch.Tensor, wanted: torch.Tensor
    ) -> Steps[torch.Tensor]:
        """Outputs (B, num_classes) for the images where `wanted` (B,) is true; zeros elsewhere.

        Members that run on custom kernels read the selected images in place, and the host need not
        know how many there are. For all other members the images are gathered, once their number
        has reached the host; but where a member rounds a row by its place, all rows stay in theirs:
        a gathered row's place depends on which others are wanted.
        """
        selection = Selection.of(wanted)
        if member.fused is not None:
            return self._watched(member.fused.selected(images, selection, at_once=self.rows))
        (count,) = yield from to_host_async(selection.count)
        if not count:
            return images.new_zeros((len(images), self.num_classes))
        if member.rounds_by_place((self.rows, *images.shape[1:])):
            return self(member, images) * wanted[:, None]
        rows = selection.rows[: int(count)].long()
        found = self(member, images[rows])
        return found.new_zeros((len(images), self.num_classes)).index_copy_(0, rows, found)

    def _one(self, module: Forward, part: torch.Tensor) -> torch.Tensor:
        count = len(part)
        if count < self.rows:
            part = torch.cat([part, part.new_zeros((self.rows - count, *part.shape[1:]))])
        output = module(part)
        if not isinstance(output, torch.Tensor) or output.shape != (self.rows, self.num_classes):
            raise _wrong_output(output, self.rows, self.num_classes)
        if self._on_pass is not None:
            self._on_pass()
        return self._watched(output if count == self.rows else output[:count])

    def _watched(self, output: torch.Tensor) -> torch.Tensor:
        # A float64 sum of float32 outputs cannot overflow: it is finite if and only if every term
        # is. Kept on the device: reading it now would stall the GPU's queue.
        total = output.sum(dtype=torch.float64)
        self._sum = total if self._sum is None else self._sum + total
        return output

    def forget_non_finite(self) -> None:
        """Reset the check, after passes whose outputs are not counted."""
        self._sum = None

    def all_finite(self, device: torch.device) -> torch.Tensor:
        """Whether every output since the last call was finite, as a tensor on the device."""
        total, self._sum = self._sum, None
        return torch.isfinite(torch.zeros((), device=device) if total is None else total)


def _wrong_output(output: object, rows: int, num_classes: int) -> ContractError:
    """The error for an output that is not one row of `num_classes` numbers per image."""
    expected = f"a tensor of shape ({rows}, {num_classes})"
    if not isinstance(output, torch.Tensor):
        fix = "wrap the model in a module that returns its logits alone"
        return ContractError("model output", expected=expected, got=describe_type(output), fix=fix)
    fix = "return one row of logits per image"
    if output.ndim == 2 and output.shape[0] == rows:
        fix = f"pass num_classes={output.shape[1]}, or a model with {num_classes} classes"
    return ContractError("model output", expected=expected, got=tuple(output.shape), fix=fix)


def refuse_non_finite(finite: torch.Tensor) -> None:
    """Raise if `all_finite` found an output that was not."""
    if not finite:
        raise ContractError(
            "model output",
            expected="finite numbers for every noisy image",
            got="NaN or infinity",
            fix="check the weights, or use float32 precision",
        )


def _probed_places(rows: int) -> list[list[int]]:
    """Rows that stay the same while all others change, for each comparison."""
    places = sorted({0, rows // 2, rows - 1})
    # All rows of a small batch together would leave none that changes.
    return [places] if len(places) < rows else [[place] for place in places]


def probe_passes(rows: int) -> int:
    """Forward passes of `check_row_independence`, if it finds nothing."""
    return 1 + 3 * len(_probed_places(rows)) if rows > 1 else 0


class Probed(NamedTuple):
    """What `check_row_independence` noticed.

    Attributes:
        by_place: outputs change at another place in the batch.
        probabilities: outputs are not negative and sum to 1 in every row.
    """

    by_place: bool = False
    probabilities: bool = False


@torch.inference_mode()
def check_row_independence(
    module: Forward,
    forward: FixedShapeForward,
    image: torch.Tensor,
    sigma: float,
    *,
    elsewhere_allowed: float = SAME_OUTPUT,
) -> Probed:
    """Refuse a module whose output for one noisy image changes with the rest of the batch.

    A few rows are evaluated among other noisy copies, then among zeros (as in a padded batch) and
    among images of a different scale, and at other places among these. At its own place a row's
    output must stay the same bit for bit: a library's kernels for one shape do the same for a row
    whatever is in the others, so that any change is the module's own. At another place the outputs
    of each class may differ by rounding, relative to its range (see `class_scales`).

    Args:
        module: from a batch to outputs.
        forward: fixes the rows of a batch.
        image: whose noisy copies are evaluated.
        sigma: noise level.
        elsewhere_allowed: how far outputs may change at another place in the batch. Libraries add
            up the products of some rows in another order than those of others, which changes the
            last bit, and float16 has few of them.
    """
    if forward.rows == 1:
        return Probed()
    noisy = probe_batch(image, forward.rows, sigma, block=0)
    outputs = forward(module, noisy)
    refuse_non_finite(forward.all_finite(image.device))
    scales, by_place = class_scales(outputs), False
    others = 0.7 - 3 * probe_batch(image, forward.rows, sigma, block=1)
    groups = _probed_places(forward.rows)
    for places in groups:
        # More rows among the others: where there are few bits, a small change shows in few of them.
        many = places if len(groups) > 1 else sorted({*places, *range(0, forward.rows, 3)})
        elsewhere = [(place + 1) % forward.rows for place in places]
        for around, before, rows in (
            (torch.zeros_like(noisy), places, places),
            (others, many, many),
            (others, places, elsewhere),
        ):
            batch = around.clone()
            batch[rows] = noisy[before]
            found, wanted = forward(module, batch)[rows], outputs[before]
            if torch.equal(found, wanted):
                continue
            change, moved = largest_difference(found, wanted, scales), rows is elsewhere
            by_place = by_place or moved
            if not moved or not change <= elsewhere_allowed:
                _refuse_unlike(forward(module, noisy), outputs)
                raise _mixes_its_batch(float((found - wanted).abs().max()))
    forward.forget_non_finite()  # caused by all-zero images, or by the different scale
    return Probed(by_place=by_place, probabilities=_sum_to_one(outputs))


def _mixes_its_batch(change: float) -> ContractError:
    return ContractError(
        "model",
        expected="an output for each image that does not depend on the rest of its batch, bit for "
        "bit",
        got=f"outputs that change by {change:.2g} with the rest of the batch",
        fix="put batch norm, with running statistics, in evaluation mode, turn off dropout, and "
        "compute means, maxima and scales for each image separately",
    )


def _refuse_unlike(again: torch.Tensor, outputs: torch.Tensor) -> None:
    """Refuse a module that gives one batch other outputs the second time."""
    if not torch.equal(again, outputs):
        raise ContractError(
            "model",
            expected="the same outputs each time it sees a batch, bit for bit",
            got=f"outputs that change by {float((again - outputs).abs().max()):.2g}",
            fix="call torch.use_deterministic_algorithms(True), which names the operation that "
            "sums in another order each time, and replace it",
        )


def _sum_to_one(outputs: torch.Tensor) -> bool:
    """Whether every row is one of probabilities, to the rounding of float16."""
    totals = outputs.double().sum(dim=1)
    return bool((outputs >= 0).all()) and bool(((totals - 1).abs() <= 0.01).all())


def probe_batch(image: torch.Tensor, rows: int, sigma: float, *, block: int = 0) -> torch.Tensor:
    """Noisy copies of an image for testing a module; no vote uses this noise."""
    noise = standard_normal(
        (rows, *image.shape),
        seed=0,
        purpose="row independence",
        example=0,
        block=block,
        device=image.device,
    )
    return image + sigma * noise
