"""A caller's own data sets and architectures by the text `package.module:factory`.

To import a module is to run it. So a text is imported only where the caller wrote it; one that
stands in a file, such as a checkpoint, must be named by the caller too.
"""

import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

from sween.errors import BadInput

Factory = Callable[..., Any]

_NAME = re.compile(r"[A-Za-z0-9][\w.+-]*", re.ASCII)


def is_factory(name: str) -> bool:
    """Whether a name is `package.module:factory` rather than registered."""
    return ":" in name


def import_factory(name: str, kind: str) -> Factory:
    """Import `package.module:factory`, from the current folder too.

    Args:
        name: the text, written by the caller.
        kind: `architecture` or `data set`, for errors.
    """
    module_name, _, factory_name = name.partition(":")
    here = os.getcwd()
    if here not in sys.path:  # as `python -m` has it; the installed command does not
        sys.path.insert(0, here)
    try:
        factory: object = importlib.import_module(module_name)
        for part in factory_name.split("."):
            factory = getattr(factory, part)
    except Exception as error:  # a caller's own module may raise anything, SyntaxError included
        raise BadInput(
            f"{kind} {name!r}",
            expected="an importable package.module:factory",
            got=first_line(error),
            fix="run in the folder of the module or put it on PYTHONPATH, and check both names",
        ) from None
    if not callable(factory):
        raise BadInput(
            f"{kind} {name!r}",
            expected="a factory that can be called",
            got=type(factory).__name__,
            fix="name a function or class",
        )
    return factory


def takes(factory: Factory, option: str) -> bool:
    """Whether a factory has this keyword argument."""
    parameters = _parameters(factory)
    return option in parameters or any(
        parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()
    )


def requires(factory: Factory, option: str) -> bool:
    """Whether a factory cannot be called without this keyword argument."""
    parameter = _parameters(factory).get(option)
    return parameter is not None and parameter.default is parameter.empty


def _parameters(factory: Factory) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(factory).parameters
    except ValueError:  # some functions written in C do not tell
        return {}


def accepted(factory: Factory, options: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the options that a factory has keyword arguments for."""
    return {name: value for name, value in options.items() if takes(factory, name)}


def factory_failed(kind: str, name: str, error: Exception) -> BadInput:
    """The error for a factory that raised."""
    return BadInput(
        f"{kind} {name!r}",
        expected="a factory that returns",
        got=first_line(error),
        fix="call it on its own to see where it fails",
    )


def first_line(error: Exception) -> str:
    """The type of an error and the first line of what it says."""
    text = str(error).splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def check_new_name(kind: str, name: str, taken: bool) -> None:
    """Refuse to register a name that comes with sween, or that could not name a folder."""
    if taken or not _NAME.fullmatch(name):
        raise BadInput(
            f"{kind} name",
            expected="one that does not come with sween" if taken else "letters, digits and ._+-",
            got=repr(name),
            fix="choose another name",
        )
