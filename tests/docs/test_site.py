"""The site builds without a warning, and its pages work on a code host as well."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(page for page in DOCS.rglob("*.md") if "_build" not in page.parts)
LINK = re.compile(r"\]\(([^)\s]+)\)")
ELSEWHERE = ("http://", "https://", "#")
REPOSITORY = "https://code.example/sween"


def build(source: Path, out: Path, builder: str = "html") -> subprocess.CompletedProcess[str]:
    options = ["-W", "--keep-going", "-q", "-b", builder]
    return subprocess.run(
        [sys.executable, "-m", "sphinx", *options, source, out],
        env={**os.environ, "SWEEN_REPOSITORY_URL": REPOSITORY},
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    built = build(DOCS, out)
    assert built.returncode == 0, built.stderr
    return out


def test_every_page_is_in_the_site(site: Path) -> None:
    for page in PAGES:
        assert (site / page.relative_to(DOCS).with_suffix(".html")).is_file()


def test_links_to_files_of_the_tree_lead_into_the_repository(site: Path) -> None:
    page = (site / "results.html").read_text(encoding="utf-8")
    for path in ("results", "configs/fast/macer.toml", "results/tuning/README.md"):
        assert f'href="{REPOSITORY}/{path}"' in page


def test_pictures_come_in_light_and_dark(site: Path) -> None:
    page = (site / "how-it-works.html").read_text(encoding="utf-8")
    images = {name: tag for tag in re.findall("<img[^>]*>", page)
              for name in re.findall(r'src="_images/([^"]*)"', tag)}  # fmt: skip
    for name in ("idea", "radius", "noise", "sigma", "ensembles", "exits"):
        assert "only-light" in images[f"{name}.png"]
        assert "only-dark" in images[f"{name}-dark.png"]


def test_formulas_and_everything_else_need_no_network(site: Path) -> None:
    assert "<math" in (site / "mathematics.html").read_text(encoding="utf-8")
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r"<(?:script|link|img|iframe)\b[^>]*?(?:src|href)=\"([^\"]*)", text)
        assert not [address for address in loaded if address.startswith(("http", "//"))], page


def test_a_formula_that_is_not_understood_fails_the_build(tmp_path: Path) -> None:
    (tmp_path / "conf.py").write_text(
        f"import sys\nsys.path.insert(0, {str(DOCS)!r})\nextensions = ['myst_parser', 'mathml']\n"
        "myst_enable_extensions = ['dollarmath']\nroot_doc = 'page'\n"
        "html_math_renderer = 'mathml'\n",
        encoding="utf-8",
    )
    (tmp_path / "page.md").write_text("# Page\n\n$\\nosuchcommand$\n", encoding="utf-8")
    built = build(tmp_path, tmp_path / "out")
    assert built.returncode == 1
    assert "nosuchcommand" in built.stderr


def test_links_that_lead_nowhere_fail_the_build(tmp_path: Path) -> None:
    links = ["../nothing1", "nothing2.md", "page.md#nothing3", "../nothing4/README.md"]
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "conf.py").write_text(
        f"import sys\nsys.path.insert(0, {str(DOCS)!r})\n"
        "extensions = ['myst_parser', 'repository_pages']\n"
        "myst_heading_anchors = 4\nroot_doc = 'page'\n",
        encoding="utf-8",
    )
    (docs / "page.md").write_text(
        "# Page\n\n" + "\n\n".join(f"[here]({link})" for link in links), encoding="utf-8"
    )
    built = build(docs, tmp_path / "out")
    assert built.returncode == 1
    assert set(re.findall(r"nothing\d", built.stderr)) == {f"nothing{k}" for k in range(1, 5)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_links_work_in_the_tree_itself(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    for target in LINK.findall(text):
        if not target.startswith(ELSEWHERE):
            assert (page.parent / target.partition("#")[0]).exists(), target


@pytest.mark.slow
def test_links_to_other_sites_are_alive(tmp_path: Path) -> None:
    try:
        socket.create_connection(("github.com", 443), timeout=5).close()
    except OSError as error:
        pytest.skip(f"the network cannot be reached: {error}")
    checked = build(DOCS, tmp_path, "linkcheck")
    assert checked.returncode == 0, checked.stdout
