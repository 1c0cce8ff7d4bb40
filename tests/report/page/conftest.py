"""A browser for the page's tests; they are skipped where playwright or chromium is missing."""

import dataclasses
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .samples import (
    CLASSES,
    HOSTILE,
    attack_with,
    measured,
    outcome_of,
    random_rows,
    toys,
    write_page,
)

FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking")

Open = Callable[..., Any]


# Not for the session: playwright keeps an event loop running in this thread, which other packages'
# tests may want for themselves.
@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not installed")
    with playwright.sync_playwright() as started:
        launched = started.chromium.launch(executable_path=chromium, args=list(FLAGS))
        yield launched
        launched.close()


@pytest.fixture(scope="package")
def large_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A thousand incompressible images of CIFAR's size."""
    run = measured(random_rows(1000, first=888), name="thousand")
    path = tmp_path_factory.mktemp("page") / "large.html"
    write_page(path, run, datasets={run.name: toys(1888, (3, 32, 32))})
    return path


@pytest.fixture(scope="package")
def small_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Hostile names and attacks in the first run; no images and one bound in the second."""
    rows = random_rows(30)
    name = f"a-{'very-' * 20}long-name-{HOSTILE}"
    first = measured(rows, name=name, indices="0:40", images=40, more={HOSTILE: "f" * 200})
    own = [row for row in rows if row.model == "SWEEN-2" and row.prediction == row.label][:10]
    attacks = [
        outcome_of(row, outcome, eps, alarm=number == 1 and eps == 0.5, distance=9.0)
        for eps in (0.25, 0.5)
        for number, (row, outcome) in enumerate(zip(own, ["robust", "broken"] * 5, strict=True))
    ]
    one_bound = [dataclasses.replace(row, radius_two_class=None) for row in random_rows(12)]
    second = measured(one_bound, name="second", ensemble=None)
    path = tmp_path_factory.mktemp("page") / "small.html"
    images = toys(30, (1, 8, 8), classes=[HOSTILE, "x" * 90, *CLASSES[2:]])
    attacked = [attack_with(attacks)]
    write_page(path, first, second, attacked=attacked, datasets={name: images})
    return path


@pytest.fixture
def open_page(browser: Any) -> Iterator[Open]:
    """Opens a page from disk; anything on its console and any request of it fails the test."""
    complaints: list[str] = []
    contexts = []

    def open_it(path: Path, *, width: int = 1280, height: int = 900, **options: Any) -> Any:
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        context.set_default_timeout(5000)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(dialog.message))
        page.on("requestfailed", lambda request: complaints.append(request.url[:100]))
        page.on("request", lambda request: _note(request.url, path, complaints))
        page.goto(path.as_uri())
        return page

    yield open_it
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture
def large(open_page: Open, large_page: Path) -> Any:
    """The page of a thousand images, opened."""
    return open_page(large_page)


@pytest.fixture
def small(open_page: Open, small_page: Path) -> Any:
    """The page of hostile names, opened."""
    return open_page(small_page)


def _note(url: str, path: Path, complaints: list[str]) -> None:
    if url != path.as_uri() and not url.startswith("data:"):
        complaints.append(f"asked for {url}")
