"""Source code of the kernels."""

from sween import cuda

NETWORKS = ("convolution.cu", "cifar_resnet.cu")
WIDE_NETWORKS = ("convolution.cu", "wide_resnet.cu")
INTEGERS = ("convolution.cu", "integers.cu", "cifar_resnet_int8.cu")
WIDE_INTEGERS = ("convolution.cu", "integers.cu", "wide_resnet_int8.cu")
GRADIENTS = ("convolution.cu", "cifar_resnet_gradient.cu")
NOISE = ("noise.cu",)


def read_source(files: tuple[str, ...] = NETWORKS) -> str:
    """CUDA C++ without includes; for networks, `Shape.definitions` selects the stage."""
    return cuda.read_source("sween.engine.kernels", files)
