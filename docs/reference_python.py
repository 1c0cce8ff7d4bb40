"""docs/reference/python.md and packages.md: every public name, its signature and its docstring."""

import ast
import dataclasses
import functools
import importlib
import inspect
import itertools
import pkgutil
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

from docstrings import entries, markdown, sections

import sween

FIRST = (
    *("smoothing", "ensemble", "sampling", "bounds", "evaluation", "data", "models", "training"),
    *("zoo", "runs", "attack", "report", "theory", "engine", "cluster"),
)
"""Packages in the order in which they are described; others come after them."""

MODULES = {
    "records": ("read_certificates", "format_radius"),
    "errors": (
        *("BadInput", "UnknownName", "DataError", "CheckpointError", "RunMismatch", "FolderBusy"),
        *("ContractError", "MissingExtra", "OutOfMemory", "CheckFailed", "SmallSampleWarning"),
        *("ContractWarning", "PreparationWarning", "RepeatedNoiseWarning"),
    ),
    "models.registry": ("Architecture",),
    "data.registry": ("DatasetEntry",),
    "data.conversion": ("Images",),
    "smoothing.classifier": ("Labels", "Indices"),
    "paths": ("AnyPath",),
}
"""Other names that users of `sween` meet."""

WIDTH = 88

PYTHON = """# Python

The public names of `sween`, from the code by `python docs/update_reference.py`. They are all that
most programs need; [packages](packages.md) has those of its packages. Images are float32 tensors
(N, C, H, W) in [0, 1], and `sigma` and all radii are in those units.
[The command line](commands.md) and [rows and configs](rows.md) have pages of their own.
"""

PACKAGES = """# Packages

The public names of sween's packages, for programs that go further than
[those of `sween`](python.md), from the code by `python docs/update_reference.py`.
[Architecture](../architecture.md) says what each package does.
"""


def python_page() -> str:
    """The names of `sween`, its errors, and the types that their signatures name."""
    described = dict[str, object]()
    parts = [PYTHON, *_module("sween", _exported("sween"), described)]
    for room, names in MODULES.items():
        parts += _module(f"sween.{room}", list(names), described)
    return "\n".join(parts)


def packages_page() -> str:
    """The names of the packages that `sween` itself does not have."""
    described = {name: getattr(sween, name) for name in _exported("sween")}
    others = [info.name for info in pkgutil.iter_modules(sween.__path__) if info.ispkg]
    parts = [PACKAGES]
    for room in dict.fromkeys((*FIRST, *sorted({*others} - {"cli"}))):
        parts += _module(f"sween.{room}", _exported(f"sween.{room}"), described)
    return "\n".join(parts)


def _exported(module: str) -> list[str]:
    names = importlib.import_module(module).__all__
    return [name for name in names if not name.startswith("__")]


def _module(name: str, names: list[str], described: dict[str, object]) -> Iterator[str]:
    module = importlib.import_module(name)
    yield f"## {name}\n"
    yield markdown(_summary(module.__doc__)) + "\n"
    known = [each for each in names if described.get(each) is getattr(module, each)]
    if known:
        names_known = ", ".join(f"`{each}`" for each in known)
        yield f"Also here, described above or with [`sween`](python.md): {names_known}.\n"
    for each in names:
        if each not in known:
            described[each] = getattr(module, each)
            yield from _entry(module, each)


def _summary(docstring: str | None) -> str:
    return inspect.cleandoc(docstring or "").split("\n\n")[0]


def _entry(module: ModuleType, name: str) -> Iterator[str]:
    value = getattr(module, name)
    yield f"### {name}\n"
    if inspect.isclass(value):
        yield from _class(name, value)
    elif inspect.isroutine(value):
        yield _signature(name, value, value)
        yield from _docstring(value.__doc__)
    else:
        yield from _constant(module, name, value)


def _class(name: str, cls: type) -> Iterator[str]:
    made = dataclasses.is_dataclass(cls) or issubclass(cls, tuple)  # which have a signature
    if made or str(getattr(cls.__init__, "__module__", None)).startswith("sween"):
        yield _signature(name, cls, cls.__init__)
    yield from _docstring(cls.__doc__)
    comments = [f"- `{each}`: {markdown(text)}" for each, text in _field_comments(cls).items()]
    if comments:
        yield "Fields:\n"
        yield "\n".join(comments) + "\n"
    properties = [
        f"- `{each}`: {markdown(' '.join(_summary(getattr(cls, each).__doc__).split()))}"
        for each in _public(cls)
        if isinstance(getattr(cls, each), property | functools.cached_property)
        and getattr(cls, each).__doc__
    ]
    if properties:
        yield "Properties:\n"
        yield "\n".join(properties) + "\n"
    for each in _public(cls):
        method = getattr(cls, each)
        if inspect.isroutine(method) and _is_described(cls, each):
            yield f"#### {name}.{each}\n"
            yield _signature(each, method, method)
            yield from _docstring(method.__doc__)


def _field_comments(cls: type) -> dict[str, str]:
    """The texts under fields in the body of a class."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(node, ast.ClassDef)
    found = dict[str, str]()
    for part, following in itertools.pairwise(node.body):
        text = getattr(getattr(following, "value", None), "value", None)
        if isinstance(part, ast.AnnAssign) and isinstance(following, ast.Expr):
            found[ast.unparse(part.target)] = " ".join(str(text).split())
    return found


def _public(cls: type) -> list[str]:
    """Names of a class and of its bases in sween, in the order of the source."""
    bases = [base for base in cls.__mro__ if base.__module__.split(".")[0] == "sween"]
    names = dict.fromkeys(name for base in bases for name in vars(base))
    return [name for name in names if not name.startswith("_")]


def _is_described(cls: type, name: str) -> bool:
    """Whether a method is for users: its own, with a docstring, or one whose example has it."""
    docstring = getattr(cls, name).__doc__ or ""
    return bool(docstring) if name in vars(cls) else f"{cls.__name__}." in docstring


def _constant(module: ModuleType, name: str, value: object) -> Iterator[str]:
    source, comment = _assignment(module, name)
    if isinstance(value, int | float | str | tuple):
        yield f"```python\n{name} = {value!r}\n```\n"
    elif not isinstance(value, Mapping):
        yield f"```python\n{name} = {source}\n```\n"
    if comment:
        yield markdown(comment) + "\n"
    if isinstance(value, Mapping):
        names = [key for key in value if key in getattr(value, "built_in", value)]
        yield f"Names: {', '.join(f'`{key}`' for key in names)}.\n"


def _assignment(module: ModuleType, name: str) -> tuple[str, str]:
    """What is assigned to a constant, in the module that it comes from, and the text under it."""
    tree = ast.parse(inspect.getsource(module))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and any(one.name == name for one in node.names):
            return _assignment(importlib.import_module(str(node.module)), name)
    for node, following in itertools.pairwise([*tree.body, ast.Pass()]):
        if isinstance(node, ast.Assign | ast.AnnAssign) and name in _targets(node):
            text = getattr(getattr(following, "value", None), "value", None)
            is_text = isinstance(following, ast.Expr) and isinstance(text, str)
            source = ast.unparse(node.value) if node.value else ""
            return source, inspect.cleandoc(str(text)) if is_text else ""
    raise LookupError(f"{module.__name__}.{name} is not assigned there")


def _targets(node: ast.Assign | ast.AnnAssign) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [ast.unparse(target) for target in targets]


def _signature(name: str, called: Callable[..., Any], source: Callable[..., Any]) -> str:
    """The signature with annotations as the source has them: Python versions print them alike."""
    try:
        signature = inspect.signature(called)
        annotations = _annotations(called, source)
    except (TypeError, ValueError, OSError):
        return f"```python\n{name}\n```\n"
    parts, only = list[str](), False
    for parameter in signature.parameters.values():
        if parameter.name in ("self", "cls"):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not only:
            parts, only = [*parts, "*"], True
        annotation = annotations.get(parameter.name)
        text = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        text += parameter.name + (f": {annotation}" if annotation else "")
        if parameter.default is not parameter.empty:
            text += f" = {_default(parameter.default)}"
        parts.append(text)
    end = f" -> {annotations['return']}" if annotations.get("return", "None") != "None" else ""
    line = f"{name}({', '.join(parts)}){end}"
    if len(line) > WIDTH:
        line = f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){end}"
    return f"```python\n{line}\n```\n"


def _default(value: object) -> str:
    text = repr(value)
    return "..." if text.startswith("<") else text


def _annotations(called: Callable[..., Any], source: Callable[..., Any]) -> dict[str, str]:
    found = dict[str, str]()
    if inspect.isclass(called):
        for base in reversed(called.__mro__):
            if base.__module__.split(".")[0] == "sween":
                found |= _of_class(base)
    if inspect.isfunction(source) or inspect.ismethod(source):
        if inspect.getsourcefile(source) == "<string>" or "sween" not in source.__module__:
            return found
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(source))).body
        assert isinstance(node, ast.FunctionDef)
        given = (*node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg)
        found |= {one.arg: ast.unparse(one.annotation) for one in given if one and one.annotation}
        if node.returns:
            found["return"] = ast.unparse(node.returns).strip("'\"")
    return found


def _of_class(cls: type) -> dict[str, str]:
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(node, ast.ClassDef)
    return {
        str(getattr(part.target, "id", "")): ast.unparse(part.annotation)
        for part in node.body
        if isinstance(part, ast.AnnAssign)
    }


def _docstring(docstring: str | None) -> Iterator[str]:
    found = sections(docstring)
    if found[""]:
        yield markdown(found[""]) + "\n"
    for name, heading in (
        ("Args", "Arguments"),
        ("Attributes", "Attributes"),
        ("Raises", "Raises"),
    ):
        if name in found:
            yield f"{heading}:\n"
            items = entries(found[name])
            yield "".join(f"- `{each}`: {markdown(text)}\n" for each, _, text in items)
    if "Returns" in found:
        yield f"Returns: {markdown(found['Returns'])}\n"
    example = found.get("Example", "")
    elsewhere = re.fullmatch(r"See `(\w+)`\.", example)
    if elsewhere:
        on_page = elsewhere[1] in {*sween.__all__, *itertools.chain(*MODULES.values())}
        page = "python.md" if on_page else ""
        yield f"Example: see [`{elsewhere[1]}`]({page}#{elsewhere[1].lower()}).\n"
    elif example:
        yield f"```pycon\n{example}\n```\n"
