"""The gallery in a browser, and the whole page by keys alone."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sween.records import ABSTAIN, Certificate

from .conftest import Open
from .samples import CLASSES, ENSEMBLE, random_rows

ROWS = random_rows(1000, first=888)


def expected(passes: Callable[[Certificate], bool], model: str = ENSEMBLE) -> list[Certificate]:
    return [row for row in ROWS if row.model == model and passes(row)]


def judged(row: Certificate) -> str:
    if row.prediction == ABSTAIN:
        return "abstained"
    return "correct" if row.prediction == row.label else "wrong"


def count(page: Any) -> int:
    text: str = page.locator(".count").inner_text()
    number, total = text.split(" images")[0].split(" of ")
    assert total == "1,000"
    return int(number.replace(",", ""))


def shown_indices(page: Any) -> list[int]:
    return [int(text.split()[-1]) for text in page.locator(".card .index").all_inner_texts()]


def test_filters_by_class_answer_radius_and_model(large: Any) -> None:
    assert count(large) == 1000
    large.get_by_label("True class").select_option(label=CLASSES[2])
    assert count(large) == len(expected(lambda row: row.label == 2))
    for answer in ("correct", "wrong", "abstained"):
        button = large.get_by_role("button", name=answer, exact=True)
        button.click()
        assert button.get_attribute("aria-pressed") == "true"
        same = [row for row in expected(lambda row: row.label == 2) if judged(row) == answer]
        assert 0 < count(large) == len(same)
    large.get_by_role("button", name="all", exact=True).click()
    slider = large.get_by_role("slider", name="Radius at least")
    slider.focus()
    for _ in range(10):
        large.keyboard.press("ArrowRight")
    assert large.locator(".filter output").inner_text() == "0.50"
    assert count(large) == len(expected(lambda row: row.label == 2 and row.radius >= 0.5))
    large.get_by_label("Model", exact=True).select_option(label="ant")
    assert count(large) == len(expected(lambda row: row.label == 2 and row.radius >= 0.5, "ant"))


def test_order_by_radius(large: Any) -> None:
    assert shown_indices(large)[:3] == [888, 889, 890]
    large.get_by_label("Order").select_option(label="largest radius first")
    ordered = sorted(expected(lambda row: True), key=lambda row: -row.radius)
    assert shown_indices(large) == [row.index for row in ordered[: len(shown_indices(large))]]


def test_a_card_says_what_its_certificate_says(large: Any) -> None:
    cards = large.locator(".card")
    for number, row in enumerate(expected(lambda row: True)[:20]):
        text = cards.nth(number).inner_text()
        assert row.label is not None
        assert f"image {row.index}\n{CLASSES[row.label]}" in text.replace("\n\n", "\n")
        if row.abstained:
            assert "abstained" in text
            assert "no radius" in text
        else:
            assert f"radius {int(1000 * row.radius) / 1000:.3f}" in text
            assert ("correct" if row.correct else f"wrong: {CLASSES[row.prediction]}") in text
        top = max(row.estimation_counts)
        assert cards.nth(number).locator(".share").first.inner_text() == f"{top / 10:.1f}%"


def test_every_image_can_be_reached(large: Any) -> None:
    assert len(shown_indices(large)) < 100, "the first paint waits for a part only"
    large.get_by_role("button", name="Show 48 more").click()
    assert len(shown_indices(large)) == 96
    assert large.evaluate("document.activeElement.className").startswith("card")
    large.get_by_role("button", name="Show the remaining 904").press("Enter")
    assert sorted(shown_indices(large)) == list(range(888, 1888))
    assert large.locator(".more button").count() == 0
    broken = "[...document.images].filter((image) => !image.complete || !image.naturalWidth).length"
    large.wait_for_timeout(200)
    assert large.evaluate(broken) == 0


def test_missing_images_are_named(small: Any) -> None:
    assert small.locator(".gap").count() == 0
    small.get_by_label("Run", exact=True).select_option(label="second")
    assert small.locator(".gap").all_inner_texts() == ["image not available"] * 12
    assert small.evaluate("document.activeElement.id") == "gallery-run"
    assert small.locator(".count").inner_text() == "12 of 12 images"


def test_attacks_on_an_image(small: Any) -> None:
    assert small.locator(".outcomes").count() == 10
    assert small.locator(".outcomes").nth(0).inner_text() == "pgd: robust at ε 0.25, 0.50"
    assert "Alarm at ε 0.50" in small.locator(".outcomes").nth(1).inner_text()
    small.get_by_label("Model", exact=True).select_option(label="ant")
    assert small.locator(".outcomes").count() == 0, "the attacks were on another model"


@pytest.mark.parametrize("width", [1280, 390])
def test_bars_begin_at_one_place(open_page: Open, large_page: Path, width: int) -> None:
    page = open_page(large_page, width=width)
    starts: list[float] = page.locator(".card").evaluate_all(
        """(cards) => cards.flatMap((card) => [...card.querySelectorAll(".bar")].map(
          (bar) => bar.getBoundingClientRect().left - card.getBoundingClientRect().left))"""
    )
    assert len(starts) > 100
    assert max(starts) - min(starts) < 1
    cut = "(names) => names.filter((name) => name.scrollWidth > name.clientWidth).length"
    assert page.locator(".votes .name").evaluate_all(cut) == 0, "the names have room"


@pytest.mark.parametrize("width", [1280, 390])
def test_everything_by_keys_alone(open_page: Open, large_page: Path, width: int) -> None:
    page = open_page(large_page, width=width, reduced_motion="reduce")

    def tab_to(selector: str) -> None:
        for _ in range(80):
            page.keyboard.press("Tab")
            if page.evaluate("(name) => document.activeElement.matches(name)", selector):
                outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
                assert outline != "none", f"no visible focus on {selector}"
                return
        pytest.fail(f"{selector} cannot be reached by Tab")

    tab_to(".skip")
    tab_to("#theme")
    page.keyboard.press("Enter")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    tab_to(".scroll")
    tab_to("th.at-radius button")
    page.keyboard.press("Space")
    assert page.locator("th[aria-sort=descending]").count() == 1
    tab_to(".bounds button[aria-pressed=false]")
    page.keyboard.press("Enter")
    tab_to(".plot")
    page.keyboard.press("End")
    tab_to(".legend button")
    page.keyboard.press("Space")
    assert page.locator(".legend button[aria-pressed=false]").count() == 1
    tab_to("select")
    page.keyboard.press("ArrowUp")
    assert page.get_by_label("Model", exact=True).evaluate("(select) => select.selectedIndex") == 1
    tab_to("input[type=range]")
    page.keyboard.press("ArrowRight")
    assert count(page) < 1000
    tab_to(".more button")
    page.keyboard.press("Enter")
    assert page.locator(".card").count() == 96
    tab_to("summary")
    page.keyboard.press("Enter")
    assert page.locator("details[open] dd").count() > 10
