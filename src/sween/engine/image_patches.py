"""The first layer of a network that cuts its normalised images into patches.

conv((x - mean) / std) with windows that do not overlap: the normalisation becomes part of the
weights, which is exact where nothing is padded, and the layer a product of the patches, copied once
from the images as they are, with the weights.
"""

import copy

import torch
from torch import nn
from torch.nn import functional

from sween.engine.layer_kernels import affine_of, agrees

IMAGES_COMPARED = 64


class ImagePatches(nn.Module):
    """conv((x - mean) / std).

    Args:
        conv: one that `has_patches`; not changed.
        mean: of the normalisation, (C, 1, 1) or such that it can be expanded to that; None if the
            images are not normalised.
        std: likewise.

    Attributes:
        product: of the patches; None if the layers run as written. See `let_run`.
    """

    mean: torch.Tensor | None
    std: torch.Tensor | None

    def __init__(
        self, conv: nn.Conv2d, mean: torch.Tensor | None, std: torch.Tensor | None
    ) -> None:
        super().__init__()
        self.conv = conv
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)
        self.product: PatchProduct | None = None

    @property
    def by_kernel(self) -> bool:
        """Whether the patches are read from the images as they are."""
        return self.product is not None

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if self.product is not None:
            out: torch.Tensor = self.product(self._patches(images, self.product))
            return out
        if self.mean is not None and self.std is not None:
            images = (images - self.mean) / self.std
        out = self.conv(images)
        return out  # noqa: RET504  # of a known type

    def let_run(self, images: torch.Tensor, dtype: torch.dtype) -> None:
        """Read patches from the images if that is faster; if it is wrong, with a warning.

        Args:
            images: a batch of the only shape that will be evaluated.
            dtype: of the network, which is still in float32.
        """
        fits = images.ndim == 4 and images.shape[1] == self.conv.in_channels
        if not fits or not images.is_cuda or dtype not in (torch.float16, torch.bfloat16):
            return
        few, product = images[:IMAGES_COMPARED], PatchProduct(self.conv, self.mean, self.std)
        half = copy.deepcopy(product).to(dtype)
        if agrees(lambda: half(self._patches(few, half)), lambda: self(few), "patches of images"):
            self.product = product

    @staticmethod
    def _patches(images: torch.Tensor, product: "PatchProduct") -> torch.Tensor:
        reader = product.reader
        out = reader.like(images)
        reader.write(images, out)
        return out

    @property
    def reader(self) -> "PatchReader":
        """What reads the images; `rest` is what follows."""
        assert self.product is not None
        return self.product.reader

    @property
    def rest(self) -> nn.Module | None:
        return self.product


class PatchProduct(nn.Module):
    """Patches (N, rows, columns, C * height * width) to images of features.

    The arguments are those of `ImagePatches`.
    """

    @torch.no_grad()
    def __init__(
        self, conv: nn.Conv2d, mean: torch.Tensor | None, std: torch.Tensor | None
    ) -> None:
        super().__init__()
        weight = conv.weight.detach()
        affine = affine_of(mean, std, conv.in_channels, weight.device)
        factor, summand = affine.view(2, -1, 1, 1)
        bias = (weight * summand).sum(dim=(1, 2, 3)) + (0 if conv.bias is None else conv.bias)
        self.weight = nn.Parameter((weight * factor).flatten(1), requires_grad=False)
        self.bias = nn.Parameter(bias, requires_grad=False)
        high, wide = conv.kernel_size
        self.size = high, wide

    @property
    def reader(self) -> "PatchReader":
        return PatchReader(self.size, self.weight.dtype)

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        return functional.linear(patches, self.weight, self.bias).permute(0, 3, 1, 2)


class PatchReader:
    """Writes patches of images where a network reads them; see `after_images`."""

    def __init__(self, size: tuple[int, int], dtype: torch.dtype) -> None:
        self.size, self.dtype = size, dtype

    def like(self, images: torch.Tensor) -> torch.Tensor:
        """A tensor that `write` can fill."""
        patches = self._view(images)
        out = torch.empty(patches.shape, dtype=self.dtype, device=images.device)
        return out.flatten(3)

    def write(self, images: torch.Tensor, out: torch.Tensor) -> None:
        patches = self._view(images)
        out.view(patches.shape).copy_(patches)

    def _view(self, images: torch.Tensor) -> torch.Tensor:
        """(N, rows, columns, C, height, width), at the place of the images."""
        (rows, high), (columns, wide) = (
            (side // own, own) for side, own in zip(images.shape[2:], self.size, strict=True)
        )
        # What is left over at the lower and right edge belongs to no window.
        pixels = images[..., : rows * high, : columns * wide]
        apart = pixels.reshape(*images.shape[:2], rows, high, columns, wide)
        return apart.permute(0, 2, 4, 1, 3, 5)
