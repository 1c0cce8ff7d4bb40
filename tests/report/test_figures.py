"""The figure: files that open, the same bytes twice, no global state, names taken literally."""

import dataclasses
import struct
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
import pytest

from sween.errors import BadInput, MissingExtra, UnknownName
from sween.evaluation import by_model
from sween.records import Certificate
from sween.report import draw_curves, write_curves
from tests.evaluation.certificates import abstained, certificate, wrong

from .folders import ensemble_rows

MODELS: Mapping[str, Sequence[Certificate]] = by_model(ensemble_rows())


def png_size(path: Path) -> tuple[int, int]:
    content = path.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert content[-8:-4] == b"IEND"
    width, height = struct.unpack(">II", content[16:24])
    return width, height


def test_png_and_svg_are_written(tmp_path: Path) -> None:
    paths = [tmp_path / "deep" / "curve.png", tmp_path / "deep" / "curve.svg"]
    write_curves(MODELS, paths, title="digits", subtitle="n = 1,000", ensemble="sween")
    width, height = png_size(paths[0])
    assert width in (1440, 1800)
    assert height == 880
    assert "</svg>" in paths[1].read_text(encoding="utf-8")
    assert sorted(path.name for path in paths[0].parent.iterdir()) == ["curve.png", "curve.svg"]


def test_the_same_certificates_give_the_same_bytes(tmp_path: Path) -> None:
    first = [tmp_path / "a.svg", tmp_path / "a.png"]
    second = [tmp_path / "b.svg", tmp_path / "b.png"]
    write_curves(MODELS, first, ensemble="sween")
    with matplotlib.rc_context({"lines.linewidth": 9, "axes.grid": True, "font.size": 30}):
        write_curves(MODELS, second, ensemble="sween")
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()
    assert "<dc:date>" not in first[0].read_text(encoding="utf-8")


def test_global_settings_are_left_alone_and_pyplot_is_not_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # importing it now fails
    before = matplotlib.rcParams.copy()
    write_curves(MODELS, [tmp_path / "a.png"], ensemble="sween")
    assert matplotlib.rcParams.copy() == before


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


def test_curves_by_the_other_bound_have_its_areas() -> None:
    rows = [
        dataclasses.replace(certificate(k, 0.5, model="m"), radius_two_class=0.8) for k in range(3)
    ]
    (line,) = draw_curves({"m": rows}, radius="radius_two_class").axes[0].get_lines()
    assert line.get_label() == "m  (ACR 0.800)"


def test_only_candidates_make_the_envelope() -> None:
    assert len(draw_curves(MODELS, ensemble="sween").axes[0].collections) == 1
    assert not draw_curves(MODELS).axes[0].collections
    assert not draw_curves(MODELS, ensemble="sween", candidates=[]).axes[0].collections


def test_every_model_has_its_own_look() -> None:
    models = {f"net{number}": [certificate(0)] for number in range(35)}
    looks = {
        (str(line.get_color()), str(getattr(line, "_unscaled_dash_pattern")))  # noqa: B009
        for line in draw_curves(models).axes[0].get_lines()
    }
    assert len(looks) == 35


@pytest.mark.parametrize("rows", [[wrong(0), abstained(1)], [certificate(0, 0.0)]])
def test_models_with_nothing_to_show_can_be_drawn(rows: list[Certificate], tmp_path: Path) -> None:
    write_curves({"net": rows}, [tmp_path / "a.png"])
    assert png_size(tmp_path / "a.png")


def test_names_are_text_and_neither_formulas_nor_hidden(tmp_path: Path) -> None:
    rows = [certificate(0)]
    models = {"$x^{$": rows, "_hidden": rows, "a" * 80: rows}
    write_curves(models, [tmp_path / "a.svg"], title="100 $ for $y_", ensemble="_hidden")
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


def test_without_matplotlib_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra, match=r"pip install 'sween\[report\]'"):
        write_curves(MODELS, [tmp_path / "a.png"])
    assert not list(tmp_path.iterdir())


def test_arguments_are_checked(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"\.png or \.svg"):
        write_curves(MODELS, [tmp_path / "a.pdf"])
    with pytest.raises(UnknownName, match="did you mean 'sween'"):
        draw_curves(MODELS, ensemble="sweep")
    with pytest.raises(UnknownName, match="wasp"):
        draw_curves(MODELS, candidates=["wasp"])
    with pytest.raises(BadInput, match="models"):
        draw_curves({})
