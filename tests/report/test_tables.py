"""Any table in Markdown, LaTeX and CSV; names from files are shown literally."""

import csv
import dataclasses
import io
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

from sween.evaluation import share_of_images
from sween.markdown import markdown_text
from sween.report import write_report
from sween.report.tables import (
    CSV,
    PAGE,
    Cell,
    Column,
    latex,
    latex_text,
    make_table,
    markdown,
    to_csv,
)
from tests.evaluation.certificates import certificate
from tests.report.folders import (
    ensemble_rows,
    write_attacked,
    write_log,
    write_run,
    write_trained,
)
from tests.report.page.samples import HOSTILE, read_report

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
    "\udcff is not Unicode",
)


def test_a_table_in_three_formats() -> None:
    columns = [
        Column("Model", "model"),
        Column("ε", "eps", "{:.1f}".format, "most"),
        Column("hidden", "exact", str, outputs=(CSV,)),
        Column("shown", "", str, outputs=(PAGE,)),
    ]
    records: list[dict[str, Any]] = [
        {"model": "a|b", "eps": 0.51, "exact": 1 / 3, "": 1},
        {"model": "50%_x", "eps": None, "exact": None, "": 2},
        {"model": "c", "eps": Cell("<0.4", 0.4), "exact": 0, "": 3},
    ]
    table = make_table("name", "Title", columns, records, blocks=[0, 1, 1], rivals=[0, 0, 0])
    lines = ["| Model | ε |", "| :--- | ---: |"]
    lines += ["| a\\|b | **0.5** |", "| 50%\\_x | - |", "| c | &lt;0.4 |"]
    assert markdown(table).splitlines() == lines
    assert latex(table).splitlines() == [
        r"\begin{tabular}{lr}",
        r"\toprule",
        r"Model & $\varepsilon$ \\",
        r"\midrule",
        r"a\textbar{}b & \textbf{0.5} \\",
        r"\midrule",
        r"50\%\_x & - \\",
        r"c & \textless{}0.4 \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]
    assert list(csv.reader(io.StringIO(to_csv(table)))) == [
        ["model", "eps", "exact"],
        ["a|b", "0.51", repr(1 / 3)],
        ["50%_x", "", ""],
        ["c", "0.4", "0"],
    ]


@pytest.mark.parametrize(
    ("best", "rivals", "expected"),
    [
        ("most", [0, 0, 0, 0], [False, True, True, False]),
        ("least", [0, 0, 0, 0], [True, False, False, False]),
        ("most", [0, 1, 2, 3], [False] * 4),
        ("most", [0, None, 0, 0], [False, False, True, False]),
    ],
)
def test_the_best_of_each_group_is_bold(
    best: str, rivals: list[object], expected: list[bool]
) -> None:
    """By what is shown, and nothing where all look the same."""
    column = Column("x", "x", "{:.1f}".format, best)  # type: ignore[arg-type]
    records = [{"x": value} for value in (1.0, 2.01, 2.0, None)]
    table = make_table("name", "", [column], records, rivals=rivals)
    assert [row[0].best for row in table.rows] == expected


@pytest.mark.parametrize(
    ("images", "said"),
    [
        (4, "With only 4 images, .* are wide: 25.0 \\(0.6 to 80.6\\), 50.0 \\(6.7 to 93.3\\)."),
        (1000, "With 1,000 images, .* extend at most 3.2 percentage points to either side."),
    ],
)
def test_accuracies_have_intervals(images: int, said: str) -> None:
    columns = [Column("x", "x", "{:.1f}".format), Column("images", "images", str)]
    shares = [share_of_images(images // part, images) for part in (2, 4)]
    table = make_table("name", "", columns, [{"x": own, "images": images} for own in shares])
    (note,) = table.notes
    assert re.fullmatch(said, note)


OWN_TAGS = {
    *("h1", "h2", "h3", "p", "table", "thead", "tbody", "tr", "th", "td"),
    *("strong", "img", "a", "ul", "li"),
}


class Shown(HTMLParser):
    """What a reader sees of rendered Markdown: tags, pictures, and the text of each element."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.links: list[str] = []
        self.texts: list[str] = []
        renderer = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
        self.feed(renderer.render(text))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]
        self.texts.append("")

    def handle_data(self, data: str) -> None:
        if self.texts:
            self.texts[-1] += data


def as_shown(name: str) -> str:
    """On one line, with invalid characters replaced."""
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
        dataset=name,
        ensemble=models["sween"],
        members=[models["ant"], models["bee"]],
        environment={"commit": name, "date": name},
    )
    attack = write_attacked(tmp_path / f"{name} attack")
    log = write_log(tmp_path / f"{name}.tsv", *((index, 1, "0.5") for index in range(10, 14)))
    out = tmp_path / "out"
    report = write_report([run, attack, log, write_trained(tmp_path / "trained" / name)], out)
    shown = Shown(report.read_text(encoding="utf-8"))
    assert shown.tags <= OWN_TAGS
    assert shown.attributes <= {"src", "alt", "href", "style"}
    assert all(re.fullmatch(r"(curve|weights)-[\w.%~-]+\.(png|svg)", link) for link in shown.links)
    texts = [text.strip() for text in shown.texts]
    for own in (name, models["bee"], f"{name} attack", f"{models['sween']} compared with {name}"):
        assert as_shown(own) in texts
    assert read_report(report)["runs"][0]["name"] == name
    for table in ("table", "attacks", "cost"):
        tex = (out / f"{table}.tex").read_text(encoding="utf-8").splitlines()
        assert len({len(re.findall(r"(?<!\\)&", row)) for row in tex if row.endswith("\\\\")}) == 1


def test_a_folder_whose_name_is_not_unicode(tmp_path: Path) -> None:
    run = write_run(tmp_path / "caf\udce9", [certificate(0)], dataset="toys")
    report = write_report([run], tmp_path / "out")
    text = report.read_text(encoding="utf-8")
    assert "## caf\ufffd" in text
    assert "(curve-caf%E9.png)" in text
    assert (tmp_path / "out" / "curve-caf\udce9.png").is_file()
    assert "caf\\udce9," in (tmp_path / "out" / "table.csv").read_text(encoding="utf-8")
