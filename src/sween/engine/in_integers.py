"""CIFAR ResNets in 8-bit integers, another function than the module: no other form computes it."""

import math
from collections.abc import Sequence

import torch
from torch import nn

from sween.engine.check_kernels import check_order
from sween.engine.differences import refuse_change, relative_change
from sween.engine.kernels import (
    INTEGER_WIDTHS,
    FusedQuantizedResNet,
    IntegerShape,
    QuantizedResNet,
    WideIntegerShape,
    WideQuantizedResNet,
    is_cifar_resnet,
    launcher,
    supports,
)
from sween.engine.model_errors import refuse_broken_device
from sween.engine.preparation import Preparation
from sween.engine.prepared import Prepared
from sween.engine.quantized_on_cpu import CompiledQuantizedResNet, has_bytes
from sween.errors import ContractError, describe_error, warn_fallback

ROWS_SIMULATED = 8
"""Of a batch, on which kernels in integers are compared with the exact simulation on the CPU."""


def in_integers(
    module: nn.Module, preparation: Preparation, images: torch.Tensor, wanted: torch.Tensor
) -> Prepared:
    """A CIFAR ResNet in 8-bit integers; no other form computes the same."""
    device, few = images.device, images[:ROWS_SIMULATED]
    network = QuantizedResNet(_with_ranges(module, images.shape[1:]))
    simulated = network(few.cpu()).to(device)
    # Bytes would hide what is not finite.
    finite = bool(torch.isfinite(wanted).all())
    refuse_change(
        relative_change(simulated, wanted[: len(few)]) if finite else math.inf, torch.int8
    )
    wide = network.width > 1
    shape = WideIntegerShape(width=network.width) if wide else IntegerShape()
    if device.type == "cpu" and not supports(device, shape):
        return _on_cpu(network, preparation, images, simulated)
    try:
        if not supports(device, shape):
            raise RuntimeError(f"no custom kernels for {device}")
        kind = WideQuantizedResNet if wide else FusedQuantizedResNet
        run = kind(network, launcher(device, shape), device)
        if not torch.equal(run(few), simulated):
            raise RuntimeError("outputs that differ from those of the exact simulation")
        check_order(run, images)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # compilers fail in many ways
        refuse_broken_device(error)
        raise ContractError(
            "precision int8",
            expected="a device that runs its kernels",
            got=describe_error(error),
            fix="use float16 precision",
        ) from error
    return Prepared(run, True, preparation.describe(device, "fused"))


def _on_cpu(
    network: QuantizedResNet, preparation: Preparation, images: torch.Tensor, wanted: torch.Tensor
) -> Prepared:
    """The exact simulation, or what gives the same outputs faster; `wanted` are the first ones."""
    arithmetic = preparation.describe(images.device)
    if preparation.compile_mode(images.device) is None:
        return Prepared(network, False, arithmetic)
    try:
        if not has_bytes(images.device):
            raise RuntimeError("this CPU has no fast products of bytes")
        run = CompiledQuantizedResNet(network)
        run.prepare(images)
        if not torch.equal(run(images)[: len(wanted)], wanted):
            raise RuntimeError("outputs that differ from those of the exact simulation")
        return Prepared(run, True, arithmetic)
    except Exception as error:  # compilers fail in many ways
        warn_fallback("the model cannot be compiled", error)
        return Prepared(network, False, arithmetic)


def _with_ranges(module: nn.Module, image_shape: Sequence[int]) -> nn.Module:
    """The module, if it can run in integers."""
    got, fix = f"{type(module).__name__} for {tuple(image_shape)} images", "use another precision"
    if is_cifar_resnet(module, image_shape, widths=INTEGER_WIDTHS):
        ranges = module.state_dict().get("1.activation_ranges")
        if ranges is not None and bool((ranges > 0).all() & ranges.isfinite().all()):
            return module
        got = "no ranges" if ranges is None else f"ranges {ranges.min():.3g} to {ranges.max():.3g}"
        fix = "measure them with sween quantize"
    expected = "a registered CIFAR ResNet with its activation ranges"
    raise ContractError("precision int8", expected=expected, got=got, fix=fix)
