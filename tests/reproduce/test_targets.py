"""Targets of several plans, data that is not the plan's, and time limits."""

import dataclasses
import json
import re
import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import sween.cli.reproduce  # noqa: F401  its help lists the plans that ship, not the stand-ins
from sween.data.dataset import StoredPixels
from sween.errors import BadInput
from sween.reproduce import (
    Step,
    Work,
    Workspace,
    carry_out,
    list_targets,
    open_target,
    read_plan,
    seconds_left,
    steps_of,
    steps_of_all,
)
from sween.reproduce.rates import KINDS, START_UP, Rates
from sween.reproduce.steps import AttackStep, WeighStep
from sween.runs.attack import AttackRun
from tests.cli.command import assert_refused, run_line, succeed
from tests.cli.photos import write_photos

pytestmark = pytest.mark.filterwarnings("ignore::sween.errors.SmallSampleWarning")

PHOTOS = """
title = "Photos"
dataset = "image_folder"
folder = "small-photos"
classes = 3
image_size = 8
sigmas = [0.5]
recipes = { fast = "fast/gaussian" }
candidate = [{ arch = "digits-mlp" }]
ensemble = [{ name = "SWEEN-1", members = ["digits-mlp"] }]
certify = { indices = "0:2" }
"""


@pytest.fixture
def shipped(plans: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The stand-ins in the place of the plans that ship."""
    (plans / "reproduce").mkdir()
    for plan in plans.glob("*.toml"):
        if "recipe" not in plan.name:
            shutil.copy(plan, plans / "reproduce")
    monkeypatch.setattr("sween.reproduce.plan.configs_folder", lambda: plans)
    return plans


def _certified(printed: str) -> list[str]:
    found = (line.partition("certify ")[2] for line in printed.splitlines())
    return [name for name in found if name]


def test_all_has_the_paper_s_tables_in_order_of_value() -> None:
    everything = list_targets()["all"]
    assert everything[:6] == ("standard", "adaptive", "identical", "macer", "costs", "attacks")
    assert "record" not in everything
    for name in ("imagenet", "imagenette"):
        assert list_targets()[name] == (name, f"{name}-identical")
        assert {name, f"{name}-identical"} <= {*everything}


def test_a_step_that_plans_share_is_listed_once(shipped: Path) -> None:
    line = f"reproduce all --out {shipped / 'out'} --device cpu --dry-run --sigma 0.5 --sigma 0.5"
    printed = succeed(line)
    assert _certified(printed) == [
        *("SWEEN-3 at sigma 0.50", "SWEEN at sigma 0.50"),  # standard, identical
        "SWEEN-3 at sigma 0.50",  # macer
    ]
    assert printed.count("attack SWEEN-2") == 1
    spaces = open_target("all", recipe="fast", out=shipped / "out", sigmas=[0.5]).spaces
    steps = steps_of_all(spaces)
    assert len({(type(step), step.makes) for step in steps}) == len(steps)
    assert len(steps) < sum(len(steps_of(space)) for space in spaces)


def test_the_figures_are_those_of_two_plans(shipped: Path) -> None:
    printed = succeed(f"reproduce figures --out {shipped / 'out'} --sigma 0.5 --dry-run")
    assert _certified(printed) == ["SWEEN-3 at sigma 0.50", "SWEEN at sigma 0.50"]


@pytest.mark.slow
def test_the_figures_from_start_to_end(shipped: Path) -> None:
    line = f"reproduce figures --out {shipped / 'out'} --sigma 0.5 --quiet --device cpu"
    succeed(line)
    tables = {path.name for path in (shipped / "out/tables").iterdir()}
    assert {"standard-fast-sigma0.50.png", "identical-fast.png"} <= tables
    assert "nothing was left to do" in succeed(line)


@pytest.mark.slow
def test_all_targets_share_what_they_have_in_common(
    shipped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sween.reproduce.costs.BENCH_SECONDS", 0.02)
    line = f"reproduce all --out {shipped / 'out'} --quiet --device cpu --sigma 0.5"
    printed = succeed(line)
    assert len(re.findall("^train .* by .*/recipe.toml at", printed, re.MULTILINE)) == 2
    made = {path.name for path in (shipped / "out/tables").iterdir()}
    names = ("standard", "adaptive", "identical", "macer", "costs", "attacks")
    assert {f"{name}-fast.md" for name in names} <= made
    assert "nothing was left to do" in succeed(line)


def test_plans_without_data_recipe_or_noise_level_are_left_out_by_name(shipped: Path) -> None:
    (shipped / "reproduce/imagenette.toml").write_text(PHOTOS)
    line = f"reproduce all --out {shipped / 'out'} --device cpu --dry-run"
    printed = succeed(f"{line} --data-root {shipped / 'data'}")
    (left_out,) = (own for own in printed.splitlines() if own.startswith("left out"))
    assert left_out.startswith(f"left out: imagenette: {shipped / 'data'}: expected")
    printed = succeed(f"{line} --sigma 0.25")
    assert "left out: costs: --sigma: expected one of 0.5" in printed
    assert "at sigma 0.50" not in printed
    by_paper = succeed(f"{line} --recipe paper")
    assert "left out: standard: unknown recipe of standard 'paper'" in by_paper
    assert "attack SWEEN-2" not in by_paper
    assert "measure the cost of SWEEN-2" in by_paper
    assert_refused(f"{line} --recipe slow", "slow", watched=(shipped,))


def test_several_data_sets_below_one_root(shipped: Path) -> None:
    write_photos(shipped / "data/small-photos")
    (shipped / "reproduce/imagenette.toml").write_text(PHOTOS)
    line = f"reproduce imagenette --out {shipped / 'out'} --device cpu --dry-run"
    whole = succeed(f"{line} --data-root {shipped / 'data'}")
    assert "certify SWEEN-1" in whole
    assert whole == succeed(f"{line} --data-root {shipped / 'data/small-photos'}")


def test_other_photos_are_not_taken_for_those_of_the_plan(tmp_path: Path) -> None:
    """A table of ImageNet must not have the numbers of ten of its classes."""
    write_photos(tmp_path / "data")
    for target in ("imagenet-identical", "imagenette-identical"):
        line = f"reproduce {target} --out {tmp_path / 'out'} --data-root {tmp_path / 'data'}"
        classes = read_plan(target).classes
        assert_refused(line, f"{classes} classes of the plan {target}", watched=(tmp_path,))


def test_steps_done_on_other_data_do_not_count(done: Path) -> None:
    space = Workspace(read_plan(done / "standard.toml"), recipe="fast", out=done / "out")
    assert all(step.is_done() for step in steps_of(space))
    digits = space.dataset
    for split in ("train", "test"):
        own = getattr(digits, split)
        pixels = own.pixels.load_all().clone()
        pixels[0, 0, 0, 0] += 1
        changed = dataclasses.replace(own, pixels=StoredPixels(pixels))
        other = Workspace(space.plan, recipe="fast", out=space.out)
        other.dataset = dataclasses.replace(digits, **{split: changed})
        kinds = {type(step).__name__ for step in steps_of(other) if not step.is_done()}
        assert kinds == {"Train" if split == "train" else "CertifyStep"}


def test_costs_of_other_settings_do_not_count(plans: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sween.reproduce.costs.BENCH_SECONDS", 0.02)
    line = f"reproduce {plans / 'costs.toml'} --out {plans / 'out'} --quiet --device cpu"
    succeed(line)
    file = plans / "out/costs/costs-fast-sigma0.50/digits-mlp.json"
    row = json.loads(file.read_text())
    assert row["of"]["training"]["batch_size"] == 64
    recipe, plan = plans / "recipe.toml", plans / "costs.toml"
    for path, old, new in (
        (recipe, "batch_size = 64", "batch_size = 32"),
        (plan, "samples = 5", "samples = 6"),
    ):
        text = path.read_text()
        path.write_text(text.replace(old, new))
        assert "nothing was left" not in succeed(f"{line} --dry-run")
        assert re.search("^ +[1-9]", succeed(f"{line} --dry-run"), re.MULTILINE)
        path.write_text(text)
    recipe.write_text(recipe.read_text().replace("batch_size = 64", "batch_size = 32"))
    outcome = run_line(line)
    assert outcome.code == 2
    assert "batch_size" in outcome.stderr


def test_an_attack_with_an_alarm_is_never_done(done: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second call would otherwise print its table as if nothing had happened."""
    succeed(f"reproduce {done / 'attacks.toml'} --out {done / 'out'} --quiet --device cpu")
    space = Workspace(read_plan(done / "attacks.toml"), recipe="fast", out=done / "out")
    steps = [step for step in steps_of(space) if isinstance(step, AttackStep)]
    assert all(step.is_done() for step in steps)
    read = AttackRun.read

    def alarmed(folder: Path) -> SimpleNamespace:
        run = read(folder)
        rows = [dataclasses.replace(row, alarm=True) for row in run.rows]
        return SimpleNamespace(config=run.config, rows=rows)

    monkeypatch.setattr("sween.reproduce.steps.AttackRun.read", alarmed)
    assert not any(step.is_done() for step in steps)


class _Slow(Step):
    """A step of which nothing is finished in time, or a part of it."""

    name = "train a network"

    def __init__(self, unit: float, finishes: float = 0.0) -> None:
        self.unit, self.finishes, self.done = unit, finishes, 0.0

    @property
    def makes(self) -> tuple[Path, ...]:
        return (Path("out"),)

    def work(self) -> Work:
        return Work("train", 1e15, self.done, unit=self.unit)

    def is_done(self) -> bool:
        return False

    def check(self) -> None:
        pass

    def run(self) -> None:
        self.done += self.finishes
        time.sleep(30)


def test_a_limit_in_which_nothing_can_be_finished_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same command would otherwise stop at the same place again and again."""
    monkeypatch.setitem(START_UP, "cpu", dict.fromkeys(KINDS, 0.1))
    with pytest.raises(BadInput, match=r"expected at least .*, to train a network, got 1s; allow"):
        carry_out([_Slow(unit=1e14)], device="cpu", time_limit=1)
    with pytest.raises(BadInput, match="to get further with: train a network, got 1s; allow"):
        carry_out([_Slow(unit=1.0)], device="cpu", time_limit=1)
    further = _Slow(unit=1.0, finishes=1.0)
    assert carry_out([further], device="cpu", time_limit=1).left == [further]


def test_a_step_that_cannot_be_resumed_needs_all_its_time(done: Path) -> None:
    space = Workspace(read_plan(done / "standard.toml"), recipe="fast", out=done / "new")
    rates = Rates("cpu")
    for step in steps_of(space):
        work = step.work()
        least, whole = rates.least_seconds(work), seconds_left(step, rates)
        assert (work.unit == 0) == isinstance(step, WeighStep)
        assert least <= whole
