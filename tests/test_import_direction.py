"""Rooms import one way only, and the core imports without the optional parts."""

import ast
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src" / "sween"
FACADE = "(the package itself)"
ORDER = (
    *("errors", "paths", "steps", "tracing", "philox", "seeding", "version", "locks"),
    *("records", "runs", "progress"),
    *(
        "data",
        "models",
        "kernels",
        "training",
        "ensemble",
        "zoo",
        "smoothing",
        "bench",
        "attack",
        "evaluation",
    ),
    *("distributed", "report", "theory", FACADE, "demo", "cli", "serve", "__main__"),
)
"""A room imports itself and what stands before it. `sween/__init__.py` stands where it does so
that no room whose names it collects can import it back."""

WITHOUT_TORCH = (
    "smoothing/bounds.py",
    "smoothing/radius.py",
    "smoothing/decision.py",
    "smoothing/sequence.py",
    "smoothing/soft.py",
    "smoothing/allocation.py",
    "ensemble/simplex.py",
    "evaluation/*.py",
)
OPTIONAL = (
    *("sklearn", "joblib", "matplotlib", "mpmath", "pandas", "plotly", "ray", "fastapi"),
    *("uvicorn", "pyautoattack", "autoattack", "torchvision", "timm", "hypothesis", "pytest"),
)


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


def room_of(module: str) -> str:
    """The room of an absolute name inside sween; names of the package itself are the facade's."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in ORDER else FACADE


def wrong_imports(source: str, module: str, *, is_package: bool = False) -> list[str]:
    """One line for each import of a room that stands after the module's own."""
    package = module if is_package else module.rpartition(".")[0]
    own = room_of(module)
    return [
        f"{module}, line {line}: {own} imports {room_of(name)}"
        for line, name in imported_modules(source, package)
        if name.split(".")[0] == "sween" and ORDER.index(room_of(name)) > ORDER.index(own)
    ]


def imports_torch(source: str) -> bool:
    return any(name.split(".")[0] == "torch" for _, name in imported_modules(source, "sween"))


def all_modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def dotted(path: Path) -> str:
    parts = ("sween", *path.relative_to(SOURCE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_every_module_stands_in_a_known_room() -> None:
    known = {"__init__", *ORDER}
    for path in all_modules():
        assert path.relative_to(SOURCE).with_suffix("").parts[0] in known, (
            f"{path.relative_to(SOURCE)}: give its room a place in ORDER"
        )


@pytest.mark.parametrize(
    "path", all_modules(), ids=lambda path: path.relative_to(SOURCE).as_posix()
)
def test_imports_go_one_way(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    assert wrong_imports(source, dotted(path), is_package=path.name == "__init__.py") == []


@pytest.mark.parametrize("pattern", WITHOUT_TORCH)
def test_pure_mathematics_does_not_import_torch(pattern: str) -> None:
    paths = list(SOURCE.glob(pattern))
    assert paths
    assert [path for path in paths if imports_torch(path.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("sween.data.dataset", "from sween.models import create_model"),
        ("sween.data.dataset", "from sween import models"),
        ("sween.data.dataset", "import sween.training.loop as loop"),
        ("sween.data.dataset", "import sween"),
        ("sween.data.dataset", "from sween import WeightedEnsemble"),
        ("sween.data.dataset", "from ..models.registry import create_model"),
        ("sween.data.dataset", "from .. import cli"),
        ("sween.data.dataset", "def late():\n    from sween.report import write_report"),
        ("sween.data.dataset", "class A:\n    def b(self):\n        import sween.cli"),
        ("sween.data.dataset", "import importlib\nimportlib.import_module('sween.serve')"),
        ("sween.errors", "from sween.seeding import derive_key"),
        ("sween.records", "from sween.runs import write_json"),
        ("sween.runs", "from . import progress"),
        ("sween.cli.app", "from sween.serve import app"),
        ("sween", "from sween.demo import run_demo"),
    ],
)
def test_a_wrong_import_is_found(module: str, source: str) -> None:
    found = wrong_imports(source, module, is_package=module == "sween")
    assert len(found) == 1
    assert found[0].startswith(f"{module}, line {len(source.splitlines())}: ")


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("sween.models.registry", "from sween.data import Dataset"),
        ("sween.models.registry", "from .normalize import Normalize"),
        ("sween.models.registry", "from . import cost"),
        ("sween.models.registry", "from ..errors import BadInput"),
        ("sween.models.registry", "import torch, sweenlike.cli"),
        ("sween.cli.app", "from sween import __version__"),
        ("sween.__main__", "from sween.cli import main"),
    ],
)
def test_a_right_import_passes(module: str, source: str) -> None:
    assert wrong_imports(source, module) == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import torch", True),
        ("from torch import nn", True),
        ("def late():\n    import torch.nn as nn", True),
        ("import torchlike\nfrom sween.ensemble import torch_free", False),
    ],
)
def test_an_import_of_torch_is_found(source: str, found: bool) -> None:
    assert imports_torch(source) is found


def test_the_core_and_the_command_line_import_without_optional_parts() -> None:
    script = f"""
        import sys
        import torch, scipy, rich.progress, typer  # whatever these load for themselves is theirs

        optional = {OPTIONAL!r}

        class Blocker:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] in optional:
                    raise ImportError(f"{{name}} is blocked")

        before = set(sys.modules)
        sys.meta_path.insert(0, Blocker())
        import sween
        import sween.cli
        loaded = {{name.partition(".")[0] for name in set(sys.modules) - before}}
        assert not loaded & set(optional), loaded & set(optional)
        try:
            sween.load_dataset("digits")
        except sween.SweenError as error:
            print(error)
    """
    answer = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert answer.returncode == 0, answer.stderr
    assert "scikit-learn" in answer.stdout, "the blocker did not block"
