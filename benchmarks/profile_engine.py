"""Where a GPU's time goes while an ensemble votes, kernel by kernel, and the chip's limits.

    python benchmarks/profile_engine.py cifar10-sween3-gaussian-sigma0.50 --out FILE
    python benchmarks/profile_engine.py imagenet-resnet50 --image-size 224 --n 10000 --out FILE

With --image-size, an untrained network by its registered name.

Votes on grey images, one set of them after the other as `sween certify` counts them, after a pass
that compiles. Of every kernel its share of the time; of the whole the time in which no kernel ran,
and the arithmetic per second compared with a large matrix product. `pass` has the kernels of one
forward pass in their order, with the microseconds of each.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

import sween
from sween.bench.untrained import calibrate_batch_norm
from sween.cuda import compile_kernel
from sween.engine import VoteEngine, VoteRequest
from sween.engine.kernels import supports
from sween.models import count_matrix_flops, create_model
from sween.run_folder import describe_environment, write_json
from sween.smoothing import SmoothedClassifier

LEAST_SHARE = 0.002
"""Kernels that take less are summed up."""

PRODUCTS = r"""
extern "C" __global__ void __launch_bounds__(256) products(float *out, int rounds) {
    unsigned a[4], b[2];
    for (int i = 0; i < 4; i++) a[i] = 0x34003400u + threadIdx.x * (i + 1);
    for (int i = 0; i < 2; i++) b[i] = 0x2c002c00u + threadIdx.x * (i + 5);
    float sums[8][4] = {};
    for (int round = 0; round < rounds; round++) {
        #pragma unroll
        for (int k = 0; k < 8; k++)
            asm volatile(
                "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
                "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                : "+f"(sums[k][0]), "+f"(sums[k][1]), "+f"(sums[k][2]), "+f"(sums[k][3])
                : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
    float total = 0;
    for (int k = 0; k < 8; k++)
        for (int i = 0; i < 4; i++) total += sums[k][i];
    out[blockIdx.x * 256 + threadIdx.x] = total;
}
"""
"""The instruction of the networks' kernels and nothing else: registers in, registers out."""


def instruction_flops(device: torch.device, rounds: int = 4096) -> float | None:
    """Operations per second of the matrix instruction alone; None where it is not there."""
    if not supports(device):
        return None
    kernel = compile_kernel(PRODUCTS, "products")
    blocks = 8 * torch.cuda.get_device_properties(device).multi_processor_count
    out = torch.empty(blocks * 256, device=device)

    def run() -> None:
        kernel(grid=(blocks, 1, 1), block=(256, 1, 1), args=[out, rounds])

    return blocks * 8 * rounds * 8 * (2 * 16 * 8 * 16) / _seconds(run)


def limits(device: torch.device) -> dict[str, float | None]:
    """Per second: operations of a large float16 product and of the kernels' instruction, and bytes
    of a large copy.
    """
    left, right = (torch.randn(8192, 8192, device=device, dtype=torch.float16) for _ in range(2))
    large = torch.empty(2**31, dtype=torch.uint8, device=device)
    target = torch.empty_like(large)
    product = _seconds(lambda: torch.mm(left, right))
    copy = _seconds(lambda: target.copy_(large))
    return {
        "flops": 2 * 8192**3 / product,
        "instruction_flops": instruction_flops(device),
        "bytes": 2 * 2**31 / copy,
    }


def _seconds(run: Any, repeats: int = 10) -> float:
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(repeats):
        run()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / repeats


Kernels = list[tuple[str, float]]
"""Names and seconds, in the order in which they ran."""


def kernels_of(
    engine: VoteEngine, image: torch.Tensor, images: int, n: int
) -> tuple[Kernels, float]:
    """The kernels, and wall-clock seconds, while n votes per image are counted."""
    sets = [VoteRequest(image[None], [example], "profile", [n]) for example in range(images)]

    def vote() -> None:
        list(engine.count(sets, seed=0))

    vote()
    torch.cuda.synchronize()
    began = time.perf_counter()
    vote()
    wall = time.perf_counter() - began
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        vote()
    events = [event for event in profiled.events() or () if event.device_type.name == "CUDA"]
    events.sort(key=lambda event: event.time_range.start)
    return [(event.name, event.device_time * 1e-6) for event in events], wall


def one_pass(kernels: Kernels) -> list[tuple[str, float]]:
    """From one kernel of the noise to the next, in the middle of the run, in microseconds."""
    starts = [place for place, (name, _) in enumerate(kernels) if "gaussian" in name]
    if len(starts) < 3:
        return []
    middle = len(starts) // 2
    own = kernels[starts[middle] : starts[middle + 1]]
    return [(name, round(seconds * 1e6, 1)) for name, seconds in own]


def subject(
    source: str, image_size: int | None
) -> tuple[sween.WeightedEnsemble, tuple[int, int, int], int, float]:
    """The model, its image shape, its classes and its noise level."""
    if image_size is None:
        loaded = sween.load(source)
        return loaded, loaded.image_shape, loaded.num_classes, loaded.sigma
    shape = (3, image_size, image_size)
    model = create_model(source, num_classes=10, image_shape=shape)
    return sween.WeightedEnsemble([calibrate_batch_norm(model, shape)]), shape, 10, 0.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source")
    parser.add_argument("--image-size", type=int)
    parser.add_argument("--exit", default="none")
    parser.add_argument("--noise", default="float32")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--images", type=int, default=4)
    parser.add_argument("--n", type=int, default=100_000)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = torch.device("cuda")
    model, shape, classes, sigma = subject(options.source, options.image_size)
    smoothed = SmoothedClassifier(
        model.to(device),
        sigma=sigma,
        num_classes=classes,
        exit=options.exit,
        noise=options.noise,
        precision=options.precision,
    )
    image = torch.full(shape, 0.5, device=device)
    smoothed.engine.prepare(image)
    kernels, wall = kernels_of(smoothed.engine, image, options.images, options.n)
    seconds: dict[str, float] = {}
    for name, spent in kernels:
        seconds[name] = seconds.get(name, 0.0) + spent
    chip, busy, samples = limits(device), sum(seconds.values()), options.images * options.n
    flops = sum(count_matrix_flops(member, shape) for member in model.members)
    shares = {name: spent / busy for name, spent in seconds.items()}
    shown = {name: share for name, share in shares.items() if share >= LEAST_SHARE}
    result = {
        "source": options.source,
        "exit": options.exit,
        "noise": options.noise,
        "images": options.images,
        "n": options.n,
        "precision": smoothed.engine.precision,
        "samples_per_second": samples / wall,
        "seconds": wall,
        "idle_share": max(0.0, 1 - busy / wall),
        "kernel_shares": dict(sorted(shown.items(), key=lambda item: -item[1])),
        "other_kernels_share": 1 - sum(shown.values()),
        "flops_per_second": flops * samples / wall if options.exit == "none" else None,
        "pass": one_pass(kernels),
        "forward_rows": smoothed.engine.forward_rows,
        "limits": chip,
        "environment": describe_environment(),
    }
    for name, share in result["kernel_shares"].items():
        print(f"{100 * share:5.1f}% {name[:100]}")  # noqa: T201
    print(f"{100 * result['other_kernels_share']:5.1f}% others")  # noqa: T201
    print(f"no kernel ran in {100 * result['idle_share']:.1f}% of {wall:.3f} s")  # noqa: T201
    print(f"{result['samples_per_second']:,.0f} samples a second")  # noqa: T201
    if result["flops_per_second"]:
        share = result["flops_per_second"] / chip["flops"]
        print(f"{100 * share:.1f}% of a large product's operations a second")  # noqa: T201
        if chip["instruction_flops"]:
            share = result["flops_per_second"] / chip["instruction_flops"]
            print(f"{100 * share:.1f}% of the matrix instruction's")  # noqa: T201
    if options.out is not None:
        write_json(options.out, result)


if __name__ == "__main__":
    main()
