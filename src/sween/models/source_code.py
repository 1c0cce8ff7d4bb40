"""A digest of the custom source code behind a model, which weights and names do not reveal."""

import hashlib
import inspect
import sys
from collections.abc import Iterable
from typing import Any

from torch import nn

from sween.factories import is_factory
from sween.models.registry import ARCHITECTURES


def source_digest(model: nn.Module, archs: Iterable[str] = ()) -> str | None:
    """SHA-256 of a model's custom code; None if all of it comes from torch and sween.

    It covers the source files that define the classes of all submodules and the factories of the
    architectures; of a script or notebook, only the class or function itself. What these files
    import is not covered, nor is code without source, such as extensions.
    """
    objects: set[Any] = {type(part) for part in model.modules()}
    for arch in archs:
        if arch in ARCHITECTURES:
            objects.add(ARCHITECTURES[arch].build)
        elif is_factory(arch):
            objects.add(sys.modules.get(arch.partition(":")[0]))
    sources = {name: text for name, text in map(_source, objects) if text is not None}
    if not sources:
        return None
    return hashlib.sha256(repr(sorted(sources.items())).encode()).hexdigest()


def _source(thing: Any) -> tuple[str, str | None]:
    """The name and text of the source that defines a class, function or module."""
    thing = getattr(thing, "func", thing)  # functools.partial
    name = thing.__name__ if inspect.ismodule(thing) else str(getattr(thing, "__module__", None))
    if name.partition(".")[0] in ("torch", "sween"):
        return name, None
    try:
        if name == "__main__":
            return f"{name}.{thing.__qualname__}", inspect.getsource(thing)
        return name, inspect.getsource(sys.modules[name])
    except (AttributeError, KeyError, OSError, TypeError):
        return name, None
