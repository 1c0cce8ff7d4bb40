"""Weights are solved on the images held out for that, never on the ones that are certified."""

import dataclasses
from pathlib import Path
from typing import cast

import pytest

from sween.data import Dataset, load_dataset
from sween.data.dataset import Pixels
from sween.ensemble import METHODS, WeightSolution, load_members, solve_weights, weigh
from sween.run_folder import read_config
from tests.cli.command import run_line, succeed
from tests.cli.conftest import SIGMA, Made
from tests.training.datasets import UNTOUCHABLE, Untouchable


def held_out_alone() -> Dataset:
    """The digits, whose test images, and pixels to train on, raise when they are asked for."""
    digits = load_dataset("digits")
    train = dataclasses.replace(digits.train, pixels=cast(Pixels, Untouchable()))
    return dataclasses.replace(digits, train=train, test=UNTOUCHABLE)


def solved(made: Made, method: str) -> WeightSolution:
    split = load_dataset("digits").weights
    members, images = load_members(made.runs), split.all_images()
    return solve_weights(members, images, split.labels, sigma=SIGMA, method=method, samples=12)


@pytest.mark.parametrize("method", METHODS)
def test_weigh_solves_on_the_held_out_split_alone(method: str, made: Made) -> None:
    wanted, loaded = solved(made, method), load_members(made.runs)
    got = weigh(loaded, held_out_alone(), method=method, samples=12, quiet=True)
    assert (got.weights, got.loss) == (wanted.weights, wanted.loss)
    assert loaded.weights.tolist() == list(wanted.weights)


@pytest.mark.parametrize(("method", "noted"), [("convex", True), ("uniform", False)])
def test_members_of_unequal_noise_are_noted(
    made: Made, tmp_path: Path, method: str, noted: bool
) -> None:
    noisier = f"train --dataset digits --arch digits-mlp --sigma {SIGMA} --noise-factor 4"
    succeed(f"{noisier} --epochs 1 --quiet --out {tmp_path / 'noisier'}")
    line = made.fill("weigh {runs} --samples 2 --quiet --out {out}", tmp_path)
    ran = run_line(f"{line} {tmp_path / 'noisier'} --method {method}")
    assert ran.code == 0
    assert ("with more noise than others got 0" in ran.stderr) == noted


def test_the_command_solves_on_it_too(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = made.fill("weigh {runs} --method convex --samples 12 --quiet --out {out}", tmp_path)
    monkeypatch.setattr("sween.cli.options.load_dataset", lambda *_, **__: held_out_alone())
    succeed(line)
    assert read_config(tmp_path / "out")["weights"] == list(solved(made, "convex").weights)
