"""Evaluations per second of the CIFAR kernels alone, for each way to cut their blocks.

    python benchmarks/kernel_shapes.py --arch resnet20 --arch resnet110 --out FILE

With --precision int8, those of quantised networks.

Stage by stage, since each is limited by something else.
"""

import itertools

import torch
from kernel_timing import SHAPES, options_of, timings, write_results

from sween.engine.kernels import launcher


def main() -> None:
    options, device = options_of(__doc__), torch.device("cuda")
    shapes = {
        f"rows {rows} images {images}": SHAPES[options.precision](rows, images)
        for rows, images in itertools.product((2, 4), (2, 4))
    }
    results: list[dict[str, object]] = []
    known: dict[str, torch.Tensor] = {}
    forms = {form: launcher(device, shape) for form, shape in shapes.items()}
    for timing in timings(options, forms):
        wanted, shape = known.setdefault(timing.arch, timing.outputs), shapes[timing.form]
        finite = bool(torch.isfinite(timing.outputs).all())
        results.append(
            {
                **timing.describe(),
                "shape": {"rows": shape.rows, "images": shape.images},
                "same_outputs": finite and torch.equal(timing.outputs, wanted),
            }
        )
    write_results(options, results)


if __name__ == "__main__":
    main()
