"""The page as one file: self-contained, and safe against hostile names."""

import base64
import hashlib
import html
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from sween.report.page import render_page
from sween.report.page.render import SCRIPTS, STYLES, _join, to_json_block

from .samples import CLASSES, HOSTILE, measured, random_rows, read_page, toys

ROWS = random_rows(4)


class Elements(HTMLParser):
    """Every element of a page with its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def render(name: str = "name") -> str:
    """A page with that name for a class and a setting."""
    run = measured(ROWS, more={name: [name]})
    images = toys(4, classes=[name, *CLASSES[1:]])
    return render_page([run], datasets={run.name: images})


@pytest.mark.parametrize(
    "name",
    [
        HOSTILE,
        "</script><script>alert(1)</script>",
        "<!--<script>",
        "{{script}}",
        "\u2028\u2029\u0000",
        "\udcff",
        '"&quot;\\',
    ],
)
def test_hostile_names_stay_text(tmp_path: Path, name: str) -> None:
    plain, text = Elements(render()).found, render(name)
    assert [tag for tag, _ in Elements(text).found] == [tag for tag, _ in plain]
    (tmp_path / "page.html").write_text(text, encoding="utf-8")
    run = read_page(tmp_path / "page.html")[1]["runs"][0]
    assert run["classes"][0] == name
    assert [f"more.{name}", name] in dict(run["provenance"])["config.toml"]
    assert "\u2028" not in text
    assert "\u2029" not in text


def test_json_cannot_end_its_block() -> None:
    block = to_json_block(["</script>", "<!--", "\u2028", "\u2029"])
    assert "<" not in block
    assert block.isascii()


def test_the_page_loads_nothing() -> None:
    for tag, attributes in Elements(render()).found:
        for name in ("src", "href", "action", "data"):
            value = attributes.get(name)
            assert value is None or value.startswith(("#", "data:")), (tag, attributes)
    sources = _join((*STYLES, *SCRIPTS))
    assert not re.findall(r"url\(|@import|fetch\(|XMLHttpRequest|import\(", sources)


def test_names_are_never_inserted_as_markup() -> None:
    sources = _join(SCRIPTS)
    for name in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert name not in sources
    assert "</" not in sources


def test_the_policy_allows_this_script_and_style_alone() -> None:
    text = render()
    policy = next(
        html.unescape(attributes["content"] or "")
        for tag, attributes in Elements(text).found
        if attributes.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    for tag, directive in (("script", "script-src"), ("style", "style-src")):
        (inline,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}';" in policy


def test_no_placeholder_is_left_and_alpha_is_named() -> None:
    text = render()
    assert "{{" not in re.sub(r"<script.*?</script>|<style.*?</style>", "", text, flags=re.DOTALL)
    assert "(α&nbsp;=&nbsp;0.001)" in text
