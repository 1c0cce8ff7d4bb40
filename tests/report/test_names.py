"""Names of folders, models and data sets are shown as they are: they may be a stranger's."""

import dataclasses
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from sween.report import write_report
from sween.report.grid import latex_text, markdown_text
from tests.evaluation.certificates import certificate
from tests.report.folders import ensemble_rows, write_run
from tests.report.page.samples import HOSTILE, read_page
from tests.report.test_more_tables import OUTCOMES, SETTINGS, write_attacked
from tests.report.test_refusals import HEAD, _train

NAMES = (
    HOSTILE,
    "a|b||c",
    "`code` ``",
    "__init__ _x_ snake_case_",
    "[text](javascript:alert(1)) ![i](x)",
    "two\nlines\n\n# heading",
    "**bold** ~~gone~~ $x$ &lt;",
    "- item",
    "1. item",
    "# heading #",
    "{: onclick=alert(1)} \\",
    "\udcff is no Unicode",
)

OWN_TAGS = {
    *("h1", "h2", "h3", "p", "table", "thead", "tbody", "tr", "th", "td"),
    *("strong", "img", "a", "ul", "li"),
}


class Shown(HTMLParser):
    """What a reader sees of rendered Markdown: tags, pictures, and the text of each element."""

    def __init__(self, markdown: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.links: list[str] = []
        self.texts: list[str] = []
        renderer = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
        self.feed(renderer.render(markdown))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]
        self.texts.append("")

    def handle_data(self, data: str) -> None:
        if self.texts:
            self.texts[-1] += data


def as_shown(name: str) -> str:
    """On one line, and with what is no Unicode replaced."""
    return " ".join(name.split()).replace("\udcff", "\ufffd")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("place", ["{}", "# {}", "| a |\n| - |\n| {} |", "**{}**", "by {} then"])
def test_markdown_shows_a_name_as_it_is(name: str, place: str) -> None:
    shown = Shown(place.replace("{}", markdown_text(name)))
    assert shown.tags <= OWN_TAGS - {"img", "a", "ul", "li"}
    assert any(as_shown(name) in text for text in shown.texts), shown.texts


def test_ordinary_names_stay_readable_as_they_are_written() -> None:
    for name in ("cifar10-sween3-sigma0.50", "image_folder", "SWEEN-3+exact", "exit(t=0.9,a=.05)"):
        assert markdown_text(name) == name
    for number in ("-", "+0.043", "-0.031", "0.50", "1,000", "888:1888", "4 of 9"):
        assert markdown_text(number) == number


@pytest.mark.parametrize("name", NAMES)
def test_latex_has_no_character_with_a_meaning(name: str) -> None:
    text = latex_text(name)
    assert "\n" not in text
    ours = r"\\[&%$#_{}]|\\text\w+\{\}|\{[][*]\}"
    assert not re.search(r"[][\\{}&%$#_^~<>|`*\ud800-\udfff]", re.sub(ours, "", text))


MIXTURE = "a|b `c` __d__ [e](f) ![g](h)\ni **j** ~~k~~ $l$ &lt; {m} #n \\"


@pytest.mark.parametrize("name", [HOSTILE, MIXTURE])
def test_a_report_of_such_names(name: str, tmp_path: Path) -> None:
    models = {"ant": name, "bee": f"{name} 2", "sween": f"{name} 3"}
    run = write_run(
        tmp_path / name,
        [dataclasses.replace(row, model=models[row.model]) for row in ensemble_rows()],
        **{**SETTINGS, "dataset": name, "ensemble": models["sween"]},
        environment={"commit": name, "date": name},
    )
    attack = write_attacked(tmp_path / f"{name} attack", OUTCOMES)
    log = tmp_path / f"{name}.tsv"
    log.write_text(HEAD + "".join(f"{index}\t1\t1\t0.5\t1\t1.0\n" for index in range(10, 14)))
    out = tmp_path / "out"
    report = write_report([run, attack, log, _train(tmp_path / "trained" / name)], out)
    shown = Shown(report.read_text(encoding="utf-8"))
    assert shown.tags <= OWN_TAGS
    assert shown.attributes <= {"src", "alt", "href", "style"}
    assert all(re.fullmatch(r"curve-[\w.%~-]+\.(png|svg)", link) for link in shown.links)
    texts = [text.strip() for text in shown.texts]
    for own in (name, models["bee"], f"{name} attack", f"{models['sween']} compared with {name}"):
        assert as_shown(own) in texts
    assert read_page(out / "report.html")[1]["runs"][0]["name"] == name
    for table in ("table", "attacks", "cost"):
        tex = (out / f"{table}.tex").read_text(encoding="utf-8").splitlines()
        assert len({len(re.findall(r"(?<!\\)&", row)) for row in tex if row.endswith("\\\\")}) == 1


def test_a_folder_whose_name_is_no_unicode(tmp_path: Path) -> None:
    run = write_run(tmp_path / "caf\udce9", [certificate(0)], **{**SETTINGS, "dataset": "toys"})
    report = write_report([run], tmp_path / "out")
    text = report.read_text(encoding="utf-8")
    assert "## caf\ufffd" in text
    assert "(curve-caf%E9.png)" in text
    assert (tmp_path / "out" / "curve-caf\udce9.png").is_file()
    assert "caf\\udce9," in (tmp_path / "out" / "table.csv").read_text(encoding="utf-8")
