"""Evaluations per second of the CIFAR kernels alone, for each way to cut their blocks.

    python benchmarks/kernel_shapes.py --arch resnet20 --arch resnet110 --out FILE

In float16 and in int8.

Stage by stage, since each is limited by something else.
"""

import itertools

import torch
from kernel_timing import options_of, timings, write_results

from sween.engine.kernels import launcher
from sween.engine.kernels.shape import IntegerShape, Shape


def main() -> None:
    options, device = options_of(__doc__), torch.device("cuda")
    shapes = {
        f"{precision} rows {rows} images {images}": kind(rows, images)
        for precision, kind in (("float16", Shape), ("int8", IntegerShape))
        for rows, images in itertools.product((2, 4), (2, 4))
    }
    results: list[dict[str, object]] = []
    known: dict[tuple[str, type], torch.Tensor] = {}
    forms = {form: launcher(device, shape) for form, shape in shapes.items()}
    for timing in timings(options, forms):
        shape = shapes[timing.form]
        wanted = known.setdefault((timing.arch, type(shape)), timing.outputs)
        finite = bool(torch.isfinite(timing.outputs).all())
        results.append(
            {
                **timing.describe(),
                "precision": "int8" if isinstance(shape, IntegerShape) else "float16",
                "shape": {"rows": shape.rows, "images": shape.images},
                "same_outputs": finite and torch.equal(timing.outputs, wanted),
            }
        )
    write_results(options, results)


if __name__ == "__main__":
    main()
