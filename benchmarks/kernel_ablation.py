"""What the CIFAR kernels spend their time on: each stage again with one kind of work left out.

    python benchmarks/kernel_ablation.py --arch resnet20 --arch resnet110 --out FILE

With --precision int8, those of quantised networks.

What is left out overlaps with the rest, so the shares are not a sum: a stage that is as slow
without its products does not wait for them. Outputs of the cut kernels mean nothing.
"""

import functools

from kernel_timing import options_of, timings, write_results

from sween.cuda import compile_kernel
from sween.engine.kernels.launch import STAGES, Launcher
from sween.engine.kernels.shape import Shape
from sween.engine.kernels.source import read_source

# From a primitive of convolution.cu to one that keeps its operands alive and costs next to nothing.
CUTS: dict[str, tuple[str, str]] = {
    "nothing": ("", ""),
    "products of bytes": (
        """    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+r"(sum[0]), "+r"(sum[1]), "+r"(sum[2]), "+r"(sum[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));""",
        """    asm volatile("{.reg .b32 t; xor.b32 t, %1, %2; xor.b32 t, t, %3; xor.b32 t, t, %4;"
                 "xor.b32 t, t, %5; xor.b32 %0, t, %6;}"
                 : "+r"(sum[0])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));""",
    ),
    "products": (
        """    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." HALF "." HALF ".f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));""",
        """    asm volatile("{.reg .b32 t; xor.b32 t, %1, %2; xor.b32 t, t, %3; xor.b32 t, t, %4;"
                 "xor.b32 t, t, %5; xor.b32 t, t, %6; mov.b32 %0, t;}"
                 : "+f"(sum[0])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));""",
    ),
    "reads of activations": (
        """    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\"""",
        """    asm volatile("{mov.b32 %0, %4; mov.b32 %1, %4; mov.b32 %2, %4; mov.b32 %3, %4;}\"""",
    ),
    "reads of weights": (
        "DEVICE uint4 load(const uint4 *where) { return __ldg(where); }",
        "DEVICE uint4 load(const uint4 *where) {\n"
        "    u32 word = static_cast<u32>(reinterpret_cast<size_t>(where));\n"
        "    return uint4{word, word, word, word};\n}",
    ),
    "barriers": ("DEVICE void barrier() { __syncthreads(); }", "DEVICE void barrier() {}"),
}


def cut_source(what: str, shape: Shape) -> str:
    """The kernels' source without one kind of work."""
    source, (old, new) = read_source(shape.files), CUTS[what]
    if source.count(old) != 1 and old:
        raise ValueError(f"{what}: the primitive is not in convolution.cu any more")
    return source.replace(old, new) if old else source


@functools.cache
def launcher_without(what: str, shape: Shape) -> Launcher:
    """The kernels, compiled without one kind of work."""
    source = cut_source(what, shape)
    kernels = {}
    for stage in STAGES:
        kernels[stage] = compile_kernel(source, f"stage{stage}", shape.definitions(stage))
        kernels[stage].set_shared_memory_config(shape.shared_bytes(stage))
    return Launcher(kernels, shape)


def main() -> None:
    options = options_of(__doc__)
    other = "products" if options.precision == "int8" else "products of bytes"
    cuts = [what for what in CUTS if what != other]

    def forms(shape: Shape) -> dict[str, Launcher]:
        return {f"without {what}": launcher_without(what, shape) for what in cuts}

    results = [
        {**timing.describe(), "without": timing.form.removeprefix("without ")}
        for timing in timings(options, forms)
    ]
    write_results(options, results)


if __name__ == "__main__":
    main()
