"""Figures: files that open, the same bytes twice, no global state, names taken literally."""

import dataclasses
import struct
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import matplotlib
import numpy as np
import pytest
from matplotlib.patches import Rectangle

from sween.errors import MissingExtra, UnknownName
from sween.evaluation import by_model
from sween.records import Certificate
from sween.report import draw_curves, load_run, write_report
from sween.report.attacked import load_attacked
from sween.report.canvas import save
from sween.report.curves import Panel, draw_attacked, draw_panels
from sween.report.figures import (
    curve_figures,
    draw_evaluations,
    draw_noise,
    draw_weights,
    more_figures,
)
from tests.evaluation.certificates import abstained, certificate, wrong
from tests.report.folders import (
    CANDIDATES,
    OUTCOMES,
    WITH_MEMBERS,
    ensemble_rows,
    write_attacked,
    write_run,
)
from tests.report.page.samples import measured, toys

MODELS: Mapping[str, Sequence[Certificate]] = by_model(ensemble_rows())


def png_size(path: Path) -> tuple[int, int]:
    content = path.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert content[-8:-4] == b"IEND"
    width, height = struct.unpack(">II", content[16:24])
    return width, height


def test_the_same_certificates_give_the_same_bytes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whatever the user's settings, which are left alone; pyplot is not used."""
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # importing it now fails
    settings: dict[str, Any] = {"a": {}, "b": {"lines.linewidth": 9, "axes.grid": True}}
    for name, own in settings.items():
        with matplotlib.rc_context(own):
            before = matplotlib.rcParams.copy()
            for kind in ("png", "svg"):
                save(draw_curves(MODELS, ensemble="sween"), tmp_path / f"{name}.{kind}")
            assert matplotlib.rcParams.copy() == before
    width, height = png_size(tmp_path / "a.png")
    assert width in (1440, 1800)
    assert height == 880
    for kind in ("png", "svg"):
        assert (tmp_path / f"a.{kind}").read_bytes() == (tmp_path / f"b.{kind}").read_bytes()
    assert "<dc:date>" not in (tmp_path / "a.svg").read_text(encoding="utf-8")


def test_the_ensemble_is_in_front_and_first_in_the_legend() -> None:
    axes = draw_curves(MODELS, ensemble="sween", title="digits").axes[0]
    lines = {str(line.get_label()).split("  ")[0]: line for line in axes.get_lines()}
    assert list(lines) == ["sween", "ant", "bee"]
    others = [lines["ant"], lines["bee"]]
    assert all(lines["sween"].get_linewidth() > 1.5 * line.get_linewidth() for line in others)
    assert all(lines["sween"].get_zorder() > line.get_zorder() for line in others)
    assert len({line.get_color() for line in lines.values()}) == 3
    assert lines["sween"].get_label() == "sween  (ACR 0.650)"
    assert axes.get_xlabel() == "l2 radius, pixels in [0,1]"
    assert axes.get_ylabel() == "certified accuracy"
    assert axes.get_title(loc="left") == "digits"


def test_only_candidates_make_the_envelope() -> None:
    axes = draw_curves(MODELS, ensemble="sween", candidates=CANDIDATES).axes[0]
    assert len(axes.collections) == 1
    assert not draw_curves(MODELS, ensemble="sween").axes[0].collections
    with pytest.raises(UnknownName, match="did you mean 'sween'"):
        draw_curves(MODELS, ensemble="sweep")


def test_panels_are_plots_next_to_each_other_with_their_own_models() -> None:
    small = {name: MODELS[name] for name in (CANDIDATES[0], "sween")}
    figure = draw_panels(
        [
            Panel(small, "one", ensemble="sween"),
            Panel(MODELS, "all", ensemble="sween", candidates=CANDIDATES),
        ]
    )
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["one", "all"]
    for axes, models in zip(figure.axes, (small, MODELS), strict=True):
        legend = axes.get_legend()
        assert legend is not None
        texts = [text.get_text() for text in legend.get_texts()]
        assert texts[0].startswith("sween")
        assert len(texts) == len(models) + (models is MODELS)  # and the envelope of several
    with pytest.raises(UnknownName, match="model"):
        draw_panels([Panel(small, ensemble="sween", candidates=CANDIDATES)])


def test_every_model_has_its_own_look() -> None:
    models = {f"net{number}": [certificate(0)] for number in range(35)}
    looks = {
        (str(line.get_color()), str(getattr(line, "_unscaled_dash_pattern")))  # noqa: B009
        for line in draw_curves(models).axes[0].get_lines()
    }
    assert len(looks) == 35


@pytest.mark.parametrize("rows", [[wrong(0), abstained(1)], [certificate(0, 0.0)]])
def test_models_with_nothing_to_show_can_be_drawn(rows: list[Certificate], tmp_path: Path) -> None:
    save(draw_curves({"net": rows}), tmp_path / "a.png")
    assert png_size(tmp_path / "a.png")


def test_names_are_text_and_neither_formulas_nor_hidden(tmp_path: Path) -> None:
    rows = [certificate(0)]
    models = {"$x^{$": rows, "_hidden": rows, "a" * 80: rows}
    figure = draw_curves(models, title="100 $ for $y_", ensemble="_hidden")
    save(figure, tmp_path / "a.svg")
    labels = [str(line.get_label()) for line in draw_curves(models).axes[0].get_lines()]
    assert any(label.startswith("hidden") for label in labels)
    assert max(len(label) for label in labels) < 45


def test_a_legend_that_curves_would_cross_stands_beside_the_plot() -> None:
    high = draw_curves({"net": [certificate(0, 2.0)]})
    low = draw_curves({"net": [certificate(0, 2.0), *(wrong(i) for i in range(1, 20))]})
    steep = draw_curves({"net": [certificate(0, 2.0), *(certificate(i, 0.1) for i in range(1, 9))]})
    assert (len(high.legends), high.axes[0].get_legend()) == (1, None)
    assert not steep.legends
    assert low.axes[0].get_ylim()[1] == pytest.approx(0.2)


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra, match=r"pip install 'sween\[report\]'"):
        draw_curves(MODELS)


def test_each_figure_of_curves_is_under_its_own_bound() -> None:
    rows = [certificate(0, 0.5, radius_cohen=0.5, radius_two_class=0.7)]
    figures = curve_figures(measured(rows, name="run", ensemble=None))
    furthest = {name: _drawn(figure)[0][0].max() for name, figure in figures.items()}
    assert furthest == {"curve-run": 0.5, "curve-two-class-run": 0.7}
    alone = [certificate(0, 0.5, radius_two_class=None)]
    assert list(curve_figures(measured(alone, name="run", ensemble=None))) == ["curve-run"]


def _drawn(figure: Any) -> list[tuple[Any, Any]]:
    """The points of each line."""
    lines = figure.axes[0].get_lines()
    return [(np.asarray(line.get_xdata()), np.asarray(line.get_ydata())) for line in lines]


def test_accuracy_under_attack_is_above_the_curve(tmp_path: Path) -> None:
    attacked = load_attacked(write_attacked(tmp_path / "attacks"))
    rows = [row for row in ensemble_rows() if row.model == "sween"]
    curve, points = _drawn(draw_attacked({"sween": rows}, [attacked]))
    assert [own.tolist() for own in points] == [[0, 0.25, 0.75], [0.75, 0.75, 0.5]]
    assert float(curve[1].max()) == 0.75


def test_weights_are_the_bars() -> None:
    figure = draw_weights({"sgd": [0.2, 0.8], "convex": [0.0, 1.0]}, ["a", "b"])
    widths = [cast(Rectangle, bar).get_width() for bar in figure.axes[0].patches]
    assert widths == [0.2, 0.8, 0.0, 1.0]


def test_evaluations_are_sorted_images() -> None:
    rows = [certificate(i, 0.5, samples=100, member_evaluations=100 * (3 - i)) for i in range(3)]
    (line,) = draw_evaluations({"m": rows}).axes[0].get_lines()
    assert np.asarray(line.get_ydata()).tolist() == [1.0, 2.0, 3.0]
    assert "mean 2.00" in str(line.get_label())


def test_noise_has_the_deviation_it_says() -> None:
    grey = toys(2, (3, 24, 24))
    grey.test.pixels.load_all().fill_(128)
    rows = [certificate(index, 0.1, sigma=0.1) for index in range(2)]
    figure = draw_noise([measured(rows, ensemble=None)] * 2, grey)
    shown = [np.asarray(axes.get_images()[0].get_array()) for axes in figure.axes]
    assert len(shown) == 4
    assert np.allclose(shown[0], 128 / 255)
    assert abs(float(np.std(shown[1])) - 0.1) < 0.01


def test_a_report_has_the_figures_that_there_is_something_for(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", ensemble_rows(), **WITH_MEMBERS)
    attacks = write_attacked(tmp_path / "attacks")
    text = write_report([folder, attacks], tmp_path / "report").read_text()
    for name in ("attacked-run", "weights-run", "noise-digits"):
        assert f"({name}.png)" in text
        assert min(png_size(tmp_path / "report" / f"{name}.png")) > 300
    run, all_images = load_run(folder), load_attacked(attacks)
    assert set(more_figures(run, [])) == {"weights"}
    of_candidate = [dataclasses.replace(row, model=CANDIDATES[0]) for row in OUTCOMES]
    lone = load_attacked(write_attacked(tmp_path / "lone", of_candidate, model=CANDIDATES[0]))
    assert _labels(more_figures(run, [lone, all_images])["attacked"]) == [
        f"{name}, {what}"
        for what in ("certified", "under pgd")
        for name in ("sween", CANDIDATES[0])
    ]
    again = load_attacked(write_attacked(tmp_path / "again"))
    twice = more_figures(run, [all_images, again])["attacked"]
    assert _labels(twice)[1:] == ["sween, under pgd (attacks)", "sween, under pgd (again)"]
    assert len({line.get_marker() for line in twice.axes[0].get_lines()[1:]}) == 2


def _labels(figure: Any) -> list[str]:
    return [str(line.get_label()) for line in figure.axes[0].get_lines()]


def test_attacks_on_fewer_images_have_their_own_figure(tmp_path: Path) -> None:
    rows = [row for row in ensemble_rows() if row.model == "sween"]
    run = load_run(write_run(tmp_path / "run", rows))
    fewer = write_attacked(tmp_path / "fewer", [row for row in OUTCOMES if row.index < 12])
    attacked = [load_attacked(fewer), load_attacked(write_attacked(tmp_path / "all"))]
    figures = more_figures(run, attacked)
    titles = [figures[name].axes[0].get_title(loc="left") for name in ("attacked", "attacked-2")]
    assert all(title.startswith("sween on") for title in titles)
    curve, points = _drawn(figures["attacked-2"])
    kept = [row for row in rows if row.index < 12]
    assert float(curve[1].max()) == sum(row.prediction == row.label for row in kept) / len(kept)
    assert len(points[0]) == 3
