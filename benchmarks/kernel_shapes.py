"""Evaluations per second of the CIFAR kernels alone, for each way to cut their blocks.

    python benchmarks/kernel_shapes.py --arch resnet20 --arch resnet110 --out FILE

With --precision int8, those of quantised networks. Kernels that divide their work in one way only,
as those of wide quantised networks do, are timed by that.

Stage by stage, since each is limited by something else.
"""

import dataclasses
import itertools

import torch
from kernel_timing import options_of, timings, write_results

from sween.engine.kernels import WideIntegerShape, WideShape, launcher
from sween.engine.kernels.launch import Launcher
from sween.engine.kernels.shape import Shape

ALONE = "its own"
"""The form of kernels that have one shape."""


def shapes_like(shape: Shape) -> dict[str, Shape]:
    """The ways in which these kernels can divide their work, by name."""
    if isinstance(shape, WideIntegerShape):
        return {ALONE: shape}
    if isinstance(shape, WideShape):
        return {f"parts {parts}": dataclasses.replace(shape, parts=parts) for parts in (2, 1)}
    return {
        f"rows {rows} images {images}": dataclasses.replace(shape, rows=rows, images=images)
        for rows, images in itertools.product((2, 4), (2, 4))
    }


def main() -> None:
    options, device = options_of(__doc__), torch.device("cuda")
    results: list[dict[str, object]] = []
    known: dict[str, torch.Tensor] = {}

    def forms(shape: Shape) -> dict[str, Launcher]:
        return {form: launcher(device, own) for form, own in shapes_like(shape).items()}

    for timing in timings(options, forms):
        wanted = known.setdefault(timing.arch, timing.outputs)
        finite = bool(torch.isfinite(timing.outputs).all())
        results.append(
            {
                **timing.describe(),
                "shape": _numbers(timing.form),
                "same_outputs": finite and torch.equal(timing.outputs, wanted),
            }
        )
    write_results(options, results)


def _numbers(form: str) -> dict[str, int] | None:
    if form == ALONE:
        return None
    words = form.split()
    return {name: int(number) for name, number in zip(words[::2], words[1::2], strict=True)}


if __name__ == "__main__":
    main()
