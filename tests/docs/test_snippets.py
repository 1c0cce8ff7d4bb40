"""Every snippet runs: Python on Markdown pages, by Sybil, and examples in docstrings.

On a page, the blocks in ```python run in order, in one namespace and in an empty folder. A block in
`<!-- invisible-code-block: python ... -->` sets up what the text takes for granted. A block that
takes long has `<!-- skip: next if(quick, reason="takes a minute") -->` before it, and one that
cannot run here `<!-- skip: next "needs two machines" -->`.
"""

import contextlib
import doctest
import importlib
import inspect
import os
import re
from collections.abc import Iterator
from pathlib import Path
from unittest import SkipTest, mock

import pytest
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser

import sween
from sween.bounds import BOUNDS
from sween.data import DATASETS
from sween.models import ARCHITECTURES
from sween.sampling.strategy import STRATEGIES

from .pages import ROOT, markdown_pages

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
SYBIL = Sybil([PythonCodeBlockParser(doctest_optionflags=FLAGS), SkipParser()])
PAGES = [
    page
    for page in markdown_pages()
    if "```python" in (ROOT / page).read_text(encoding="utf-8")
    and page.parent != Path("docs/reference")  # docstrings again
]
SLOW = [page for page in PAGES if "if(quick" in (ROOT / page).read_text(encoding="utf-8")]


def modules() -> list[str]:
    """Modules with examples in docstrings."""
    package = Path(sween.__file__).parent
    files = [path for path in package.rglob("*.py") if ">>> " in path.read_text(encoding="utf-8")]
    names = [".".join(path.relative_to(package.parent).with_suffix("").parts) for path in files]
    return sorted(name.removesuffix(".__init__") for name in names)


@pytest.fixture(autouse=True)
def _as_a_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In an empty folder next to results/; what a snippet registers is forgotten."""
    (tmp_path / "results").symlink_to(ROOT / "results")
    monkeypatch.chdir(tmp_path)
    with registered_for_now():
        yield


@contextlib.contextmanager
def registered_for_now() -> Iterator[None]:
    """Forgets what a snippet registers, and its environment variables."""
    with contextlib.ExitStack() as stack:
        for changed in (ARCHITECTURES, BOUNDS, DATASETS, STRATEGIES, os.environ):
            stack.enter_context(mock.patch.dict(changed))
        yield


def run_page(page: Path, *, quick: bool) -> int:
    """Run a page's snippets; returns how many ran."""
    document = SYBIL.parse(ROOT / page)
    document.namespace["quick"] = quick
    ran = 0
    for example in document.examples():
        with contextlib.suppress(SkipTest):
            example.evaluate()
            ran += 1
    return ran


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_snippets_of_a_page_run(page: Path) -> None:
    run_page(page, quick=True)


@pytest.mark.slow
@pytest.mark.parametrize("page", SLOW, ids=str)
def test_long_snippets_of_a_page_run(page: Path) -> None:
    assert run_page(page, quick=False)


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_what_does_not_run_says_why(page: Path) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for reason in re.findall(r"<!--+ *skip: *(?:next|start) *(.*?)--+>", text):
        assert len(re.sub(r'.*"(.*)".*', r"\1", reason).split()) > 1, reason


@pytest.mark.parametrize("name", modules())
def test_examples_of_docstrings_run(name: str) -> None:
    """Each by itself, as someone would paste it."""
    module = importlib.import_module(name)
    report = list[str]()
    for example in doctest.DocTestFinder().find(module, globs={}):
        folder = Path(example.name)
        if example.examples:
            folder.mkdir()
            with contextlib.chdir(folder), registered_for_now():
                doctest.DocTestRunner(optionflags=FLAGS).run(example, out=report.append)
    assert not report, "".join(report)


def public_things() -> dict[str, object]:
    """The classes and functions of `sween`, and the methods that their classes document."""
    found = dict[str, object]()
    for name in sween.__all__:
        value = getattr(sween, name)
        if callable(value):
            found[name] = value
        if inspect.isclass(value):
            own = {key: getattr(value, key) for key in vars(value) if not key.startswith("_")}
            methods = {key: each for key, each in own.items() if inspect.isroutine(each)}
            found |= {f"{name}.{key}": each for key, each in methods.items() if each.__doc__}
    return found


@pytest.mark.parametrize("name", public_things())
def test_every_public_name_has_an_example(name: str) -> None:
    assert ">>> import sween" in (public_things()[name].__doc__ or "")


def reference_names() -> dict[str, object]:
    """The classes and functions that docs/reference describes: `sween`'s and its packages'."""
    found = dict[str, object]()
    for page in ("python.md", "packages.md"):
        text = (ROOT / "docs" / "reference" / page).read_text(encoding="utf-8")
        for section in re.split(r"^## (?=sween)", text, flags=re.M)[1:]:
            module = importlib.import_module(section.split()[0])
            for name in re.findall(r"^### (\w+)$", section, re.M):
                value = getattr(module, name)
                if inspect.isclass(value) or inspect.isroutine(value):
                    found[name] = value
    return found


def example_of(value: object) -> str:
    return (value.__doc__ or "").partition("Example:")[2]


@pytest.mark.parametrize("name", reference_names())
def test_every_name_of_the_reference_has_an_example_or_says_where_one_is(name: str) -> None:
    names = reference_names()
    example = example_of(names[name])
    elsewhere = re.fullmatch(r"\s*See `(\w+)`\.\s*", example)
    if elsewhere:
        example = example_of(names[elsewhere[1]])
        assert re.search(rf"\b{name}\b", example) or inspect.isclass(names[name])
    assert ">>> " in example
