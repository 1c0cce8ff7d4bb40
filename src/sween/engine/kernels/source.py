"""The kernels' sources, each as one text."""

import importlib.resources

NETWORKS = ("convolution.cu", "cifar_resnet.cu")
NOISE = ("noise.cu",)


def read_source(files: tuple[str, ...] = NETWORKS) -> str:
    """CUDA C++ without includes; of NETWORKS `Shape.definitions` says which stage it gives."""
    folder = importlib.resources.files("sween.engine.kernels")
    return "\n".join(folder.joinpath(name).read_text(encoding="utf-8") for name in files)
