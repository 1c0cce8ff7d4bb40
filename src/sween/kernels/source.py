"""The kernels' source, as one text."""

import importlib.resources

_FILES = ("convolution.cu", "cifar_resnet.cu")


def read_source() -> str:
    """CUDA C++ without includes; `Shape.definitions` says which kernel it gives: stage1, ..."""
    folder = importlib.resources.files("sween.kernels")
    return "\n".join(folder.joinpath(name).read_text(encoding="utf-8") for name in _FILES)
