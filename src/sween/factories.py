"""Factories of architectures and data sets: registered, or imported as `package.module:factory`.

Importing a module runs its code. A name found in a file, such as a checkpoint, is therefore
imported only if the caller passes it too.
"""

import functools
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from sween.errors import BadInput, SweenError, UnknownName, describe_error, describe_type
from sween.registry import Entry, Registry

Factory = Callable[..., Any]

TIMM_PREFIX = "timm:"
FACTORY_FORM = "your own as package.module:factory"


class FactoryRegistry(Registry[Entry]):
    """A registry whose entries are made of factories, which may also be named by their module."""

    def register(self, name: str, factory: Factory | None, make: Callable[[Factory], Entry]) -> Any:
        """Add the entry that `make` makes of a factory; returns the factory, or a decorator."""
        if factory is None:
            return functools.partial(self.register, name, make=make)
        self.add(name, make(factory))
        return factory

    def find_or_import(self, name: str, make: Callable[[Factory], Entry]) -> Entry:
        """The entry of a name, or the one that `make` makes of an imported factory."""
        known = isinstance(name, str) and name in self
        if not known and isinstance(name, str) and is_factory(name):
            return make(_import(self.kind, name))
        if not known:
            raise UnknownName(self.kind, name, self, unlisted=FACTORY_FORM)
        return self[name]

    def build(self, name: str, factory: Factory, options: Mapping[str, Any]) -> Any:
        """Call a factory with those of the options that it takes."""
        try:
            return factory(**{key: options[key] for key in options if takes(factory, key)})
        except Exception as error:  # a custom factory may raise anything
            if name in self.built_in or isinstance(error, SweenError | MemoryError):
                raise
            raise BadInput(
                f"{self.kind} {name!r}: expected a factory that runs without raising, got "
                f"{describe_error(error)}; call it on its own to see where it fails"
            ) from error


def is_factory(name: str) -> bool:
    """Whether a name is `package.module:factory`, or `timm:NAME`, rather than registered."""
    return ":" in name


def check_consent(
    name: str,
    *,
    given: str | None,
    where: str,
    kind: str,
    several: bool = False,
    error: type[BadInput] = BadInput,
) -> None:
    """Refuse to import the module that a file names unless the caller gave the name too.

    `several` says whether the caller's parameter is a list of such names.
    """
    if given is None and is_factory(name) and not name.startswith(TIMM_PREFIX):
        given_as = f"{kind}s=[{name!r}]" if several else f"{kind}={name!r}"
        raise error(
            f"{where} names the {kind} {name!r}, which is not imported without consent",
            fix=f"if you trust that module, pass `{given_as}`",
        )


def _import(kind: str, name: str) -> Factory:
    """Import `package.module:factory`, also from the current folder."""
    module_name, _, factory_name = name.partition(":")
    here = os.getcwd()
    if here not in sys.path:  # as with `python -m`; the installed command lacks it
        sys.path.insert(0, here)
    try:
        factory: object = importlib.import_module(module_name)
        for part in factory_name.split("."):
            factory = getattr(factory, part)
    except Exception as error:  # a custom module may raise anything, SyntaxError included
        raise BadInput(
            f"{kind} {name!r}",
            expected="an importable package.module:factory",
            got=describe_error(error),
            fix="run in the folder of the module or put it on PYTHONPATH, and check both names",
        ) from None
    if not callable(factory):
        raise BadInput(
            f"{kind} {name!r}: expected a factory that can be called, got "
            f"{describe_type(factory)}; name a function or class"
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
    except ValueError:  # some functions written in C have no signature
        return {}
