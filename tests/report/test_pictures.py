"""Figures of attacks, weights, evaluations and noise."""

import dataclasses
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from matplotlib.patches import Rectangle
from PIL import Image

from sween.data import load_dataset
from sween.errors import BadInput
from sween.report import load_run, write_report
from sween.report.attacked import load_attacked
from sween.report.illustrate import attacks_on, figures_of
from sween.report.pictures import draw_attacked, draw_evaluations, draw_noisy, draw_weights
from tests.evaluation.certificates import certificate
from tests.report.folders import CANDIDATES, ensemble_rows, write_run
from tests.report.test_more_tables import OUTCOMES, SETTINGS, write_attacked


def test_attacked_accuracy_stands_above_the_curve(tmp_path: Path) -> None:
    attacked = load_attacked(write_attacked(tmp_path / "attacks", OUTCOMES))
    rows = [row for row in ensemble_rows() if row.model == "sween"]
    axes = draw_attacked({"sween": rows}, [attacked]).axes[0]
    curve, points = axes.get_lines()
    assert np.asarray(points.get_xdata()).tolist() == [0, 0.25, 0.75]
    assert np.asarray(points.get_ydata()).tolist() == [0.75, 0.75, 0.5]
    assert float(np.asarray(curve.get_ydata()).max()) == 0.75


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
    grey = np.full((2, 24, 24, 3), 0.5)
    figure = draw_noisy(grey, [0.1, 0.1, 0.0], labels=["x", "y"])
    shown = [np.asarray(axes.get_images()[0].get_array()) for axes in figure.axes]
    assert len(shown) == 4
    assert np.allclose(shown[0], 0.5)
    assert abs(float(np.std(shown[1])) - 0.1) < 0.01
    with pytest.raises(BadInput, match="1 or 3 channels"):
        draw_noisy(np.zeros((2, 3, 8, 8)), [0.5])


def test_a_report_has_the_figures_that_there_is_something_for(tmp_path: Path) -> None:
    rows = ensemble_rows()
    run = write_run(
        tmp_path / "run",
        rows,
        ensemble="sween",
        model="sween",
        fingerprint="f" * 64,
        members=CANDIDATES,
        candidates=CANDIDATES,
        weights=[0.25, 0.75],
        **SETTINGS,
    )
    attacks = write_attacked(tmp_path / "attacks", OUTCOMES)
    text = write_report([run, attacks], tmp_path / "report").read_text()
    for name in ("attacked-run", "weights-run", "noise-digits"):
        assert f"({name}.png)" in text
        with Image.open(tmp_path / "report" / f"{name}.png") as image:
            assert min(image.size) > 300
    page = (tmp_path / "report" / "report.html").read_text()
    assert "pgd" in page
    again = write_attacked(tmp_path / "again", OUTCOMES)
    write_report([run, attacks, again], tmp_path / "twice")  # the page shows the first
    other = write_attacked(tmp_path / "other", OUTCOMES, fingerprint="e" * 64)
    assert attacks_on(load_run(run), [load_attacked(other)]) == []
    assert set(figures_of(load_run(run), [])) == {"weights"}
    of_candidate = [dataclasses.replace(row, model=CANDIDATES[0]) for row in OUTCOMES]
    lone = write_attacked(tmp_path / "lone", of_candidate, model=CANDIDATES[0])
    both = [load_attacked(lone), load_attacked(attacks)]
    axes = figures_of(load_run(run), both)["attacked"].axes[0]
    labels = [str(line.get_label()) for line in axes.get_lines()]
    names = ("sween", CANDIDATES[0])
    assert labels == [f"{name}, {what}" for what in ("certified", "under pgd") for name in names]
    twice = [load_attacked(attacks), load_attacked(again)]
    lines = figures_of(load_run(run), twice)["attacked"].axes[0].get_lines()[1:]
    shown = [str(line.get_label()) for line in lines]
    assert shown == ["sween, under pgd (attacks)", "sween, under pgd (again)"]
    assert len({line.get_marker() for line in lines}) == 2
    fewer = write_attacked(tmp_path / "fewer", [row for row in OUTCOMES if row.index < 12])
    figures = figures_of(load_run(run), [load_attacked(fewer), load_attacked(attacks)])
    titles = [figures[name].axes[0].get_title(loc="left") for name in ("attacked", "attacked-2")]
    assert all(title.startswith("sween on") for title in titles)
    curve, points = figures["attacked-2"].axes[0].get_lines()
    kept = [row for row in rows if row.model == "sween" and row.index < 12]
    right = sum(row.prediction == row.label for row in kept) / len(kept)
    assert float(np.asarray(curve.get_ydata()).max()) == right
    assert len(np.asarray(points.get_xdata())) == 3


def test_images_of_another_data_set_are_refused(tmp_path: Path) -> None:
    data = load_dataset("digits").test.pixels.fingerprint()
    good = write_run(tmp_path / "good", [certificate(0, 0.5)], data=data, **SETTINGS)
    write_report([good], tmp_path / "report")
    bad = write_run(tmp_path / "bad", [certificate(0, 0.5)], data="0" * 64, **SETTINGS)
    with pytest.raises(BadInput, match="test images of digits"):
        write_report([bad], tmp_path / "other")
    far = write_run(tmp_path / "far", [certificate(10_000, 0.5)], **SETTINGS)
    with pytest.raises(BadInput, match="indices of far"):
        write_report([far], tmp_path / "other")
    assert not (tmp_path / "other").exists()
