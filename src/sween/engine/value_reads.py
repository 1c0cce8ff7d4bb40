"""Notices code that reads the values of tensors made of the images, as by `if x.max() > 1`."""

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree

_METADATA = {
    *("dim", "ndimension", "size", "stride", "numel", "nelement", "element_size", "storage_offset"),
    *("is_contiguous", "is_floating_point", "is_complex", "is_signed", "is_same_size", "type"),
    *("is_inference", "is_pinned", "is_shared", "is_tensor", "is_conj", "is_neg", "has_names"),
    *("get_device", "result_type", "can_cast", "__get__", "__len__", "__hash__", "__iter__"),
}  # fmt: skip
"""Functions whose results other than tensors depend on shape, type and place alone."""

_OF_LISTS = (torch.tensor, torch.as_tensor, torch.asarray, torch.Tensor.new_tensor)
"""Functions that take the values of tensors in a list without an operation of torch."""

_KNOWN = (torch.Tensor, type(None), torch.Size, torch.dtype, torch.device, torch.layout)
"""Results that hold no values of pixels for Python."""


class ReadsOfValues(TorchFunctionMode):
    """Watches code while it runs.

    Attributes:
        found: whether it read values, even if it goes on after an error.
        replaced: whether it set a tensor's `data`, from where on the tensor stands for something
            else.
    """

    def __init__(self, is_constant: Callable[[torch.Tensor], bool]) -> None:
        """`is_constant` is true for tensors that are known not to be made of the images."""
        super().__init__()
        self.found = self.replaced = False
        self._is_constant = is_constant

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        try:
            result = func(*args, **kwargs)
        except Exception:
            self.found |= self._takes_images((args, kwargs))
            raise
        if func == torch.Tensor.data.__set__:  # type: ignore[attr-defined]
            self.replaced |= self._takes_images((args, kwargs))
        elif not self.found and _may_read(func, args, result):
            self.found = self._takes_images((args, kwargs))
        return result

    def _takes_images(self, given: Any) -> bool:
        return any(
            isinstance(own, torch.Tensor) and not self._is_constant(own)
            for own in _pytree.tree_leaves(given)
        )


def _may_read(func: Any, args: tuple[Any, ...], result: Any) -> bool:
    """Whether a function gives Python values of the tensors among its arguments."""
    if func in _OF_LISTS and any(isinstance(own, list | tuple) for own in args[:2]):
        return True
    if func in (torch.tensor_split, torch.Tensor.tensor_split) and any(
        isinstance(own, torch.Tensor) for own in args[1:]
    ):
        return True
    if getattr(func, "__name__", "") in _METADATA:
        return False
    return any(not isinstance(own, _KNOWN) for own in _pytree.tree_leaves(result))
