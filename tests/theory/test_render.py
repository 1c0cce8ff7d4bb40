"""The text of `sween plan`, and that the docs page shows exactly it."""

from pathlib import Path

import pytest

from sween.theory import (
    achieved_epsilon,
    expected_radius,
    render_achievement,
    render_expected_radius,
    render_requirement,
    required_sizes,
)

PAGE = Path(__file__).parents[2] / "docs" / "theory.md"


def requirement(epsilon: float = 0.1) -> str:
    return render_requirement(
        required_sizes(epsilon=epsilon, eta=0.05, lipschitz=1, num_classes=10, phi_norm=2, beta=1)
    )


def achievement(members: int, images: int, samples: int) -> str:
    return render_achievement(
        achieved_epsilon(
            members=members,
            images=images,
            samples=samples,
            eta=0.05,
            lipschitz=1,
            num_classes=10,
            phi_norm=2,
            beta=1,
        )
    )


def radius(p: float, sigma: float = 0.5, runner_up: float | None = None) -> str:
    return render_expected_radius(
        expected_radius(p, 100_000, alpha=0.001, sigma=sigma, runner_up=runner_up)
    )


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("sween plan --epsilon 0.1 --eta 0.05 --lipschitz 1 --classes 10 --phi-norm 2 --beta 1", 0),
        (
            "sween plan --members 3 --images 2000 --samples 100 "
            "--eta 0.05 --lipschitz 1 --classes 10 --phi-norm 2 --beta 1",
            1,
        ),
        ("sween plan --p 0.9 --n 100000 --alpha 0.001 --sigma 0.5", 2),
    ],
)
def test_the_docs_show_what_is_printed(command: str, text: int) -> None:
    printed = (requirement(), achievement(3, 2000, 100), radius(0.9))[text]
    assert f"    {command}\n\n```text\n{printed}\n```\n" in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("text", [requirement(), achievement(3, 2000, 100)])
def test_every_term_and_the_assumption_are_shown(text: str) -> None:
    for part in ("2 eps1", "2 eps2", "eps3", "sum", "Lipschitz with 1/p0"):
        assert part in text


def test_the_papers_constants_are_explained() -> None:
    text = requirement()
    assert "the paper's own K = 1,217,224,521" in text
    assert "0.125 = 1.25 epsilon" in text
    assert "1.27916 epsilon" in text


def test_an_epsilon_above_one_is_called_empty() -> None:
    assert "says nothing" in requirement(2.0)
    assert "says nothing" not in requirement(0.5)
    assert "says nothing" in achievement(700, 2000, 100)
    assert "says nothing" not in achievement(10**9, 10**30, 10**8)


def test_too_few_members_name_the_fewest() -> None:
    text = achievement(3, 2000, 100)
    assert "the theorem gives nothing here" in text
    assert "K >= 597" in text
    assert "epsilon   =" not in text


def test_two_bounds_where_there_is_a_runner_up() -> None:
    text = radius(0.35, sigma=1.0, runner_up=0.1)
    assert "probability of abstaining 1\n" in text
    assert "0 of 20,000 draws" in text
    assert "too small to overtake" in text
    assert "two-class" not in radius(0.35)


def test_radii_are_rounded_down_and_may_be_unlimited() -> None:
    text = radius(1.0, sigma=1.0, runner_up=0.0)
    assert "unlimited" in text
    # 3.81148... and 3.80777...
    assert "3.8114" in text
    assert "3.8077" in text
