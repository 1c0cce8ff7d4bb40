"""A quantised network on a CPU: oneDNN's convolutions of bytes, compiled with what is between.

CPUs with instructions for products of bytes (VNNI) compute them several times faster than float32.
The sums are whole numbers and exact, and the compiler keeps every rounding to float16, so that the
outputs are those of `QuantizedResNet`, bit for bit.
"""

import torch

from sween.engine.compile_cache import compiling
from sween.engine.kernels.quantized import IntegerConvolution, QuantizedResNet
from sween.engine.tracing import compile_locked


def has_bytes(device: torch.device) -> bool:
    """Whether a device is a CPU that multiplies bytes fast, with a torch that can use it."""
    fast = getattr(torch.cpu, "_is_vnni_supported", lambda: False)
    return (
        device.type == "cpu"
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and hasattr(torch.ops.onednn, "qconv2d_pointwise")
        and bool(fast())
    )


class CompiledQuantizedResNet:
    """The outputs of a network for batches of one shape, on a CPU with `has_bytes`.

    Args:
        network: to run.
    """

    def __init__(self, network: QuantizedResNet) -> None:
        self._network = network
        self._packed = {id(conv): _Packed(conv) for conv in network.convolutions}
        keep = {"emulate_precision_casts": True}  # else float16 values would keep all their bits
        self._features = compile_locked(self._by_onednn, options=keep)

    @torch.no_grad()
    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        return self._network.logits(self._features(images))

    def prepare(self, images: torch.Tensor) -> None:
        """Compile for batches of this shape."""
        shape = " x ".join(map(str, images.shape))
        what = f"compiling a network for batches of {shape}, which can take half a minute at first"
        with compiling(what, images.device):
            self(images)

    def _by_onednn(self, images: torch.Tensor) -> torch.Tensor:
        return self._network.features(images, self._convolve)

    def _convolve(self, conv: IntegerConvolution, inputs: torch.Tensor) -> torch.Tensor:
        return self._packed[id(conv)](inputs) * conv.scale[:, None, None]


class _Packed:
    """The sums of a convolution, as oneDNN computes them."""

    def __init__(self, conv: IntegerConvolution) -> None:
        channels, *_, side = conv.weight.shape
        geometry = [conv.stride] * 2, [side // 2] * 2, [1, 1], 1
        one, self._zero = torch.ones(channels), torch.zeros(channels, dtype=torch.int64)
        self._one, self._bias, self._geometry = one, conv.bias.float(), geometry
        weight = conv.weight.contiguous()
        self._weight = torch.ops.onednn.qconv_prepack(weight, one, 1.0, 0, *geometry, None)

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        # Scales of 1 and outputs in float32: the sums themselves.
        sums: torch.Tensor = torch.ops.onednn.qconv2d_pointwise(
            inputs.to(torch.uint8).contiguous(memory_format=torch.channels_last),
            *(1.0, 0, self._weight, self._one, self._zero, self._bias),
            *self._geometry,
            *(1.0, 0, torch.float32, "none", [], ""),
        )
        return sums
