"""A mode that watches torch's operations."""

from torch.utils._python_dispatch import TorchDispatchMode


class WatchingMode(TorchDispatchMode):
    """A dispatch mode that does not import torch's compiler."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """torch would import its compiler, which takes seconds, to keep it out of this class."""
        return False
