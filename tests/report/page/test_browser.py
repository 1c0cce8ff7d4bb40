"""The page in a browser: table, curves and looks."""

import math
import time
from pathlib import Path
from typing import Any

import pytest

from sween.report.tables import Column, Table, make_table
from tests.evaluation.certificates import certificate

from .conftest import Open
from .samples import (
    ENSEMBLE,
    HOSTILE,
    VOTES,
    attack_with,
    measured,
    outcome_of,
    random_rows,
    read_page,
    write_page,
)

ROWS = random_rows(1000, first=888)


def certified_percent(model: str, radius: float, field: str = "radius") -> str:
    """Recomputed from the rows: the share of all images that are right with that radius."""
    own = [row for row in ROWS if row.model == model]
    right = [
        row for row in own if (row.prediction if field == "radius" else row.candidate) == row.label
    ]
    return f"{100 * (sum(getattr(row, field) >= radius for row in right) / len(own)):.1f}%"


def table_column(page: Any, heading: str) -> list[str]:
    headings = page.locator(".results thead tr:last-child th").all_inner_texts()
    place = [text.strip() for text in headings].index(heading)
    cells = page.locator(f".results tbody tr > :nth-child({place + 1})")
    return [text.strip() for text in cells.all_inner_texts()]


def heading(page: Any, name: str) -> Any:
    return page.locator(".results th", has=page.get_by_role("button", name=name, exact=True))


def test_first_paint_of_a_thousand_images(large: Any) -> None:
    deadline = time.monotonic() + 5
    paints: list[dict[str, Any]] = []
    while not paints and time.monotonic() < deadline:
        paints = large.evaluate(
            "performance.getEntriesByType('paint').map((paint) => paint.toJSON())"
        )
        large.wait_for_timeout(20)
    first = {paint["name"]: paint["startTime"] for paint in paints}
    assert first["first-contentful-paint"] < 1000


def test_sorting_by_click_and_keys(large: Any) -> None:
    before = table_column(large, "Model")
    assert before == ["ant", "bee", "AVG", "UE", ENSEMBLE]
    acr = heading(large, "ACR")
    acr.get_by_role("button").click()
    assert acr.get_attribute("aria-sort") == "descending"
    values = [float(text) for text in table_column(large, "ACR")]
    assert values == sorted(values, reverse=True)
    acr.get_by_role("button").press("Enter")
    assert acr.get_attribute("aria-sort") == "ascending"
    assert [float(text) for text in table_column(large, "ACR")] == sorted(values)
    acr.get_by_role("button").press("Space")
    assert acr.get_attribute("aria-sort") == "none"
    assert table_column(large, "Model") == before
    heading(large, "abstain %").get_by_role("button").click()
    assert table_column(large, "abstain %")[-1] == "–", "what has no value stays last"
    assert large.locator(".results th[aria-sort=ascending]").count() == 1


def test_best_is_bold_and_summaries_are_apart(large: Any) -> None:
    assert large.locator(".results tbody strong").count() > 5
    assert large.locator(".kind-average strong, .kind-envelope strong").count() == 0
    ground = "(cell) => getComputedStyle(cell).backgroundColor"
    model, *others = (
        large.locator(f".kind-{kind} th").evaluate(ground)
        for kind in ("ensemble", "average", "envelope")
    )
    assert model not in others


def test_curves_toggle(large: Any) -> None:
    curves = large.locator(".plot path.curve")
    entry = large.locator(".legend button", has_text="bee")
    assert curves.count() == 3
    assert large.locator(".plot path.ensemble").evaluate(
        "(curve) => parseFloat(getComputedStyle(curve).strokeWidth)"
    ) > large.locator(".plot path.series-0").evaluate(
        "(curve) => parseFloat(getComputedStyle(curve).strokeWidth)"
    )
    entry.click()
    assert entry.get_attribute("aria-pressed") == "false"
    assert curves.count() == 2
    assert entry.locator(".at").inner_text() == "–"
    entry.press("Enter")
    assert entry.get_attribute("aria-pressed") == "true"
    assert curves.count() == 3


def test_bounds_switch(large: Any, large_page: Path) -> None:
    content = read_page(large_page)[1]["runs"][0]["models"]
    acr = large.locator(".legend button.ensemble .acr")
    before = large.locator(".plot path.ensemble").get_attribute("d")
    assert acr.inner_text() == content[-1]["curves"]["cohen"]["acr"]
    large.get_by_role("button", name="two-class", exact=True).click()
    assert acr.inner_text() == content[-1]["curves"]["two-class"]["acr"]
    assert large.locator(".plot path.ensemble").get_attribute("d") != before
    assert "not both at once" in large.locator(".bounds .note").inner_text()
    at_half = large.locator(".legend button.ensemble .at").inner_text()
    assert at_half == certified_percent(ENSEMBLE, 0.5, "radius_two_class")


def test_a_bound_that_is_missing_is_disabled(small: Any) -> None:
    first, second = small.locator(".bounds").all()
    assert first.locator("button:disabled").count() == 0
    assert second.locator("button:disabled").all_inner_texts() == ["two-class"]


@pytest.mark.parametrize("share", [0.1, 0.33, 0.71])
def test_hovering_reads_every_visible_curve(
    open_page: Open, large_page: Path, share: float
) -> None:
    page = open_page(large_page)
    plot = page.locator(".plot")
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    page.mouse.move(box["x"] + share * box["width"], box["y"] + 100)
    radius = float(plot.get_attribute("aria-valuenow"))
    limit = float(plot.get_attribute("aria-valuemax"))
    assert math.isclose(radius, share * limit, abs_tol=0.08 * limit)
    assert page.locator(".guide text").text_content() == f"r = {radius:.2f}"
    for model in ("ant", "bee", ENSEMBLE):
        shown = page.locator(".legend button", has_text=model).locator(".at").inner_text()
        assert shown == certified_percent(model, radius)
        assert f"{model} {shown}" in plot.get_attribute("aria-valuetext")


def test_the_radius_moves_by_keys(open_page: Open, large_page: Path) -> None:
    page = open_page(large_page, reduced_motion="reduce")
    plot = page.locator(".plot")
    plot.focus()
    top = page.evaluate("scrollY")
    for key, radius in (
        ("ArrowRight", "0.51"),
        ("Shift+ArrowRight", "0.61"),
        ("PageUp", "0.86"),
        ("ArrowLeft", "0.85"),
        ("Home", "0.00"),
        ("ArrowLeft", "0.00"),
    ):
        page.keyboard.press(key)
        assert plot.get_attribute("aria-valuenow") == radius
    assert page.evaluate("scrollY") == top, "the keys move the radius, not the page"
    assert page.locator(".legend button.ensemble .at").inner_text() == certified_percent(
        ENSEMBLE, 0
    )


def test_an_image_counts_at_its_own_radius_and_ties_round_as_in_the_table(
    open_page: Open, tmp_path: Path
) -> None:
    rows = [
        certificate(index, 0.5, prediction=int(index < 49), estimation_counts=(0, VOTES))
        for index in range(400)
    ]
    write_page(tmp_path / "page.html", measured(rows, ensemble=None))
    page = open_page(tmp_path / "page.html")
    shown = page.locator(".legend .at")
    assert table_column(page, "0.50") == ["12.2"]
    assert shown.inner_text() == "12.2%"
    page.locator(".plot").press("ArrowRight")
    assert shown.inner_text() == "0.0%"


def test_attacked_accuracy_is_shown_as_points(small: Any) -> None:
    marks = small.locator(".plot path.mark")
    assert marks.count() == 3  # one of them at 0, without an attack
    entry = small.locator(".legend button", has_text="under pgd attack")
    assert entry.locator(".at").inner_text() == "50.0%"
    entry.click()
    assert marks.count() == 0
    assert small.locator("#curves table").count() == 0, "the numbers are in the tables, once"
    assert small.locator("#curves a").all_inner_texts() == ["tables"]


def test_hostile_names_are_shown_as_they_are(small: Any) -> None:
    assert HOSTILE in small.locator("#figures h3").first.inner_text()
    assert small.locator("img:not([src^='data:image/png'])").count() == 0
    small.locator("summary").first.click()
    assert small.get_by_text(HOSTILE, exact=True).count() > 1
    assert small.locator(".warning").first.inner_text().startswith("Incomplete: 30 of the 40")


@pytest.mark.parametrize("width", [320, 390, 820])
def test_the_page_never_scrolls_sideways(open_page: Open, small_page: Path, width: int) -> None:
    page = open_page(small_page, width=width, height=800)
    for summary in page.locator("summary").all():
        summary.click()
    widths = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert widths[0] <= widths[1]
    table = page.locator(".scroll").first.evaluate("(box) => [box.scrollWidth, box.clientWidth]")
    assert table[0] > table[1], "the wide table scrolls in its own box"


def luminance(colour: list[int]) -> float:
    parts = [value / 255 for value in colour[:3]]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def colours(page: Any, selector: str) -> list[list[int]]:
    """Text and page colour, by painting them: computed values come in many notations."""
    found: list[list[int]] = page.evaluate(
        """(selector) => {
          const often = { willReadFrequently: true };
          const context = document.createElement("canvas").getContext("2d", often);
          const read = (element, name) => {
            context.fillStyle = getComputedStyle(element)[name];
            context.fillRect(0, 0, 1, 1);
            return [...context.getImageData(0, 0, 1, 1).data];
          };
          return [
            read(document.querySelector(selector), "color"),
            read(document.body, "backgroundColor"),
          ];
        }""",
        selector,
    )
    return found


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_dark_and_light(open_page: Open, small_page: Path, scheme: str) -> None:
    page = open_page(small_page, color_scheme=scheme)
    for selector in (
        "body",
        ".note",
        ".wrong .verdict",
        ".correct .verdict",
        "a",
        ".kind-ensemble th",
    ):
        text, ground = map(luminance, colours(page, selector))
        ratio = (max(text, ground) + 0.05) / (min(text, ground) + 0.05)
        assert ratio >= 4.5, (selector, ratio)
    assert (luminance(colours(page, "body")[1]) < 0.1) == (scheme == "dark")
    page.locator("#theme").click()
    assert (luminance(colours(page, "body")[1]) < 0.1) == (scheme == "light")


def test_motion_is_reduced_where_asked(open_page: Open, small_page: Path) -> None:
    for wish, behaviour in (("reduce", "auto"), ("no-preference", "smooth")):
        page = open_page(small_page, reduced_motion=wish)
        found = page.evaluate("getComputedStyle(document.documentElement).scrollBehavior")
        assert found == behaviour


def test_other_tables_sort_and_stand_alone(open_page: Open, tmp_path: Path) -> None:
    columns = [Column("Model", "m"), Column("size", "s", str)]
    records = [{"m": "a", "s": 1}, {"m": "b", "s": 2}]
    table = make_table("numbers", "Numbers", columns, records, notes=["A note."])
    attack = attack_with([outcome_of(ROWS[0], "robust")], name="x")
    write_page(tmp_path / "page.html", tables=[table], attacked=[attack])
    page = open_page(tmp_path / "page.html")
    assert page.locator("#summary").inner_text() == "1 attack · 1 table"
    assert page.locator("#tables h3").inner_text() == "Numbers"
    assert page.locator("#tables .note").inner_text() == "A note."
    for part in ("meaning", "results", "curves", "images"):
        assert page.locator(f"#{part}").is_hidden()
    assert page.locator("nav a:visible").all_inner_texts() == ["Tables", "Provenance"]
    assert page.locator("#skip").get_attribute("href") == "#tables"
    page.get_by_role("button", name="size").click()
    assert table_column(page, "size") == ["2", "1"]
    assert page.locator("details summary").inner_text() == "Attack x"


def attack_table(**shared: str) -> Table:
    """A wide table like that of attacks; its second row has an alarm."""
    numbers = {"certified %": 50.0, "robust %": 60.0, "broken %": 10.0}
    columns = [
        *(Column(name, name) for name in ("Model", "attack")),
        *(Column(name, name, str) for name in ("radius", *numbers, "alarms")),
        *(Column(name, name, setting=True) for name in shared),
    ]
    records = [
        {"Model": f"{HOSTILE} {radius}", "attack": "rand", "radius": radius, "alarms": alarms}
        for radius, alarms in ((0.0, 0), (0.25, 3), (0.5, 0))
    ]
    return make_table("attacks", "Attacks", columns, [own | numbers | shared for own in records])


def test_what_all_rows_share_is_said_once(open_page: Open, tmp_path: Path) -> None:
    shared = {"run": HOSTILE, "σ": "0.50", "images": "100", "votes": "10,000"}
    tables = [attack_table(**shared)]
    write_page(tmp_path / "page.html", measured(random_rows(5)), tables=tables)
    page = open_page(tmp_path / "page.html")
    facts = [" ".join(text.split()) for text in page.locator("p.facts").all_inner_texts()]
    assert facts[0] == "run-a · toys · 5 images at indices 0..4"
    assert facts[-1] == f"run {HOSTILE} · σ 0.50 · images 100 · votes 10,000"
    headings = page.locator("#more th[scope=col]").all_inner_texts()
    assert headings[:3] == ["Model", "attack", "radius"]
    assert not set(headings) & {"run", "σ", "images", "votes"}
    assert "run" not in page.locator("#table th[scope=col]").all_inner_texts()
    alarms = page.locator("#more tr.kind-alarm")
    assert alarms.count() == 1
    assert "0.25" in alarms.inner_text()


@pytest.mark.parametrize("width", [1300, 390])
def test_columns_out_of_view_are_hinted_at(open_page: Open, tmp_path: Path, width: int) -> None:
    shared = dict.fromkeys(("run", "σ", "images", "indices", "draws", "steps", "votes"), "x" * 8)
    runs = [measured(random_rows(5), name=f"run-of-a-long-name-{n}") for n in range(2)]
    path = tmp_path / "page.html"
    write_page(path, *runs, tables=[attack_table(**shared)])
    page = open_page(path, width=width)
    boxes = page.locator(".table-box").all()
    assert len(boxes) == 2
    for box in boxes:
        scroll, hint = box.locator(".scroll"), box.locator(".hint")
        hidden = scroll.evaluate("(box) => box.scrollWidth - box.clientWidth")
        if width == 1300:
            assert hidden <= 0, "all columns fit"
            assert hint.is_hidden()
            continue
        assert hidden > 0
        scroll.evaluate("(box) => box.scrollTo({ left: 0, behavior: 'instant' })")
        box.page.wait_for_function("(box) => !box.matches('.more-left')", arg=box.element_handle())
        assert hint.inner_text() == "Scroll sideways for more columns"
        shadow = "(box) => getComputedStyle(box, '::after').opacity"
        assert box.locator(".edges").evaluate(shadow) == "1"
        scroll.evaluate("(box) => box.scrollTo({ left: 9999, behavior: 'instant' })")
        box.page.wait_for_function("(box) => box.matches('.more-left')", arg=box.element_handle())
        assert box.locator(".edges").evaluate(shadow) == "0"
        assert hint.is_visible(), "there are columns to the left"


def test_captions_explain_what_the_table_has(open_page: Open, tmp_path: Path) -> None:
    alone = [row for row in random_rows(5) if row.model == "ant"]
    write_page(tmp_path / "all.html", measured(random_rows(5)))
    write_page(tmp_path / "one.html", measured(alone, ensemble=None))
    summaries = "AVG is the mean"
    assert summaries in open_page(tmp_path / "all.html").locator("#results").inner_text()
    single = open_page(tmp_path / "one.html").locator("#results")
    for word in (summaries, "Shaded rows", "bold"):
        assert word not in single.inner_text()
    assert "ACR is the average certified radius" in single.inner_text()


def test_percentages_of_few_images_show_their_intervals(
    open_page: Open, large_page: Path, tmp_path: Path
) -> None:
    rows = [certificate(index, 0.5, prediction=int(index < 2)) for index in range(5)]
    write_page(tmp_path / "page.html", measured(rows, ensemble=None))
    page = open_page(tmp_path / "page.html")
    cell = page.locator("#table td.at-radius").first
    assert cell.inner_text().split() == ["40.0", "5–86"]
    assert cell.get_attribute("title") == "95% confidence interval: 5.2 to 85.4"
    assert "With only 5 images" in page.locator("#results").inner_text()
    page = open_page(large_page)
    assert page.locator("#table .interval").count() == 0
    assert page.locator("#table td.at-radius[title]").count() == 27, "AVG and UE have none"
    assert "extend at most 3." in page.locator("#results").inner_text()


def test_keys_stop_at_attacked_radii_between_the_steps(open_page: Open, tmp_path: Path) -> None:
    run = measured(random_rows(10))
    attack = attack_with([outcome_of(row, "robust", 0.523) for row in run.models[ENSEMBLE]])
    write_page(tmp_path / "page.html", run, attacked=[attack])
    slider = open_page(tmp_path / "page.html").get_by_role("slider").first
    seen = [slider.get_attribute("aria-valuenow")]
    for key in (*["ArrowRight"] * 4, *["ArrowLeft"] * 4, "Shift+ArrowRight"):
        slider.press(key)
        seen.append(slider.get_attribute("aria-valuenow"))
    up = ["0.50", "0.51", "0.52", "0.523", "0.53"]
    assert seen == [*up, *up[-2::-1], "0.60"]
