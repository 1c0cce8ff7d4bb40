"""pyproject.toml declares exactly what the package imports."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PROJECT: dict[str, Any] = tomllib.loads(
    (Path(__file__).resolve().parents[1] / "pyproject.toml").read_text(encoding="utf-8")
)["project"]

DISTRIBUTIONS = {"PIL": "pillow", "sklearn": "scikit-learn"}
"""Packages whose name differs from that of their module."""

TOOLS = ("dev", "docs")
"""The extras for tests, checks and the site, which the package itself does not import."""


SOURCE = Path(__file__).resolve().parents[1] / "src" / "sween"


def imported_modules(source: str, package: str) -> Iterator[tuple[int, str]]:
    """(line, absolute name) of every import anywhere in a module, inside functions too.

    `from a import b` gives a.b, since b may be a module; `package` is what dots are relative to.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            above = parts[: len(parts) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = ast.unparse(node.func).rpartition(".")[2]
            if called in {"import_module", "__import__"}:
                yield node.lineno, str(node.args[0].value)


def all_modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def dotted(path: Path) -> str:
    parts = ("sween", *path.relative_to(SOURCE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def distribution(requirement: str) -> str:
    """The normalised package name of a requirement."""
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found, requirement
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def third_party(names: set[str]) -> set[str]:
    tops = {name.split(".")[0] for name in names}
    own = tops - {"sween", "__future__"} - set(sys.stdlib_module_names)
    return {DISTRIBUTIONS.get(top, top).lower() for top in own}


def probed(source: str) -> set[str]:
    """Packages whose presence decides what happens: `find_spec("tensorboard")`."""
    return {
        str(call.args[0].value)
        for call in ast.walk(ast.parse(source))
        if isinstance(call, ast.Call)
        and ast.unparse(call.func).endswith("find_spec")
        and call.args
        and isinstance(call.args[0], ast.Constant)
    }


def imported_at_once(source: str) -> set[str]:
    """What importing a module imports: neither inside functions nor only for type checkers."""
    names = set[str]()
    for node in ast.parse(source).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {name for _, name in imported_modules(ast.unparse(node), "sween")}
    return names


SOURCES = {dotted(path): path.read_text(encoding="utf-8") for path in all_modules()}
DEPENDENCIES = {distribution(one) for one in PROJECT["dependencies"]}
EXTRAS = {
    extra: {distribution(one) for one in requirements}
    for extra, requirements in PROJECT["optional-dependencies"].items()
}
USED = third_party(
    {name for source in SOURCES.values() for _, name in imported_modules(source, "sween")}
    | {name for source in SOURCES.values() for name in probed(source)}
)


def test_every_import_is_declared() -> None:
    declared = DEPENDENCIES.union(*(own for extra, own in EXTRAS.items() if extra not in TOOLS))
    assert USED - declared == set()


def test_every_declared_package_is_used() -> None:
    declared = {"dependencies": DEPENDENCIES, **EXTRAS}
    unused = {where: packages - USED for where, packages in declared.items() if where not in TOOLS}
    assert {where: packages for where, packages in unused.items() if packages} == {}


@pytest.mark.parametrize("module", SOURCES)
def test_optional_packages_are_imported_only_when_used(module: str) -> None:
    assert third_party(imported_at_once(SOURCES[module])) - DEPENDENCIES == set()


def test_declared_python_versions_are_consistent() -> None:
    least, below = map(int, re.findall(r"3\.(\d+)", PROJECT["requires-python"]))
    named = [line.rpartition(" :: ")[2] for line in PROJECT["classifiers"] if ":: 3." in line]
    assert named == [f"3.{minor}" for minor in range(least, below)]
