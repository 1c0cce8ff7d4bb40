"""`sween reproduce`: every table end to end on a stand-in, resumed after any kill."""

import csv
import inspect
import io
import itertools
import json
import re
import shlex
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from sween.data import load_dataset, parse_indices
from sween.ensemble import solve_weights
from sween.records import read_rows
from sween.reproduce import (
    Rates,
    Workspace,
    carry_out,
    list_plans,
    make_tables,
    read_plan,
    steps_of,
)
from sween.reproduce.published import published_rows
from sween.reproduce.rates import SGD_EPOCHS, Work, measured_rates, training_work
from sween.reproduce.steps import RecordStep
from sween.run_folder import read_config
from sween.runs import CertificationRun
from sween.runs.training import RECORDED_KEYS
from sween.training import TrainConfig
from tests.cli.command import assert_refused, listing, run_line, succeed
from tests.cli.photos import write_photos
from tests.reproduce.conftest import RECIPE
from tests.reproduce.resuming import contents, kill_when

pytestmark = pytest.mark.filterwarnings("ignore::sween.errors.SmallSampleWarning")


def _line(plans: Path, target: str = "standard", *, out: str = "out", options: str = "") -> str:
    plan = plans / f"{target}.toml"
    return f"reproduce {plan} --out {plans / out} --quiet --device cpu {options}"


def _verified(out: Path) -> None:
    """Every folder of rows passes `sween verify`."""
    for rows in out.glob("*/**/*s.jsonl"):
        if rows.name != "metrics.jsonl":
            succeed(f"verify {shlex.quote(str(rows.parent))}")


def _ours(out: Path, name: str) -> dict[tuple[str, ...], dict[str, str]]:
    """The rows of a table that are ours, by noise level, model and exit, after a look at its page.

    The page shows the values of the CSV file, and no other rows.
    """
    rows = _csv(out, name)
    page = (out / f"tables/{name}-fast.md").read_text().splitlines()
    lines = [line for line in page if line.startswith("| ")][2:]
    for row, line in zip(rows, lines, strict=True):
        shown = [cell.replace("\\", "") for cell in line.strip("| ").split(" | ")]
        assert shown[1:3] == [row["model"], row["source"]]
        for cell, value in zip(shown, row.values(), strict=True):
            number = re.match(r"[-+]?[0-9][0-9,]*(\.[0-9]*)?", cell)
            if number and value:
                unit = 10.0 ** (1 - len(number[1] or "."))  # of the last digit: radii are floored
                shown_number = float(number[0].replace(",", ""))
                assert shown_number == pytest.approx(float(value), abs=unit)
    return {
        (f"{float(row['sigma']):.2f}", row["model"], row.get("exit", "")): row
        for row in rows
        if row["source"] == "sween"
    }


def _csv(out: Path, name: str) -> list[dict[str, str]]:
    """The rows of a table as its CSV file has them."""
    return list(csv.DictReader(io.StringIO((out / f"tables/{name}-fast.csv").read_text())))


def _votes(out: Path, plan: str, sigma: str) -> dict[str, list[dict[str, Any]]]:
    """The rows of a certification by voter."""
    found = dict[str, list[dict[str, Any]]]()
    for row in read_rows(out / f"certificates/{plan}-fast-sigma{sigma}/certificates.jsonl"):
        found.setdefault(row["model"], []).append(row)
    return found


def _shares(rows: list[dict[str, Any]], radii: Sequence[float]) -> list[float]:
    return [
        sum(row["prediction"] == row["label"] and row["radius"] >= radius for row in rows)
        / len(rows)
        for radius in radii
    ]


def _acr(rows: list[dict[str, Any]]) -> float:
    radii = [float(row["radius"]) for row in rows if row["prediction"] == row["label"]]
    return sum(radii) / len(rows)


def _check_certified(out: Path, name: str) -> None:
    """The table of certified accuracy, from nothing but the rows."""
    radii = [step / 4 for step in range(9)]
    table, plan = _ours(out, name), read_plan(out.parent / f"{name}.toml")
    for sigma in {key[0] for key in table}:
        votes = _votes(out, name, sigma)
        expected = {voter: ([*_shares(rows, radii)], _acr(rows)) for voter, rows in votes.items()}
        for ensemble in plan.ensembles:
            members, size = [expected[own] for own in ensemble.members], len(ensemble.members)
            columns = [[own[0][place] for own in members] for place in range(9)]
            averages = [own[1] for own in members]
            expected[f"AVG-{size}"] = [sum(own) / size for own in columns], sum(averages) / size
            expected[f"UE-{size}"] = [max(own) for own in columns], max(averages)
            steps = sorted(
                {0.0, *(row["radius"] for own in ensemble.members for row in votes[own])}
            )
            area = sum(
                (after - before) * max(_shares(votes[own], [after])[0] for own in ensemble.members)
                for before, after in itertools.pairwise(steps)
            )
            lead = float(table[sigma, ensemble.name, ""]["lead"])
            assert lead == pytest.approx(_acr(votes[ensemble.name]) - area)
            other = float(table[sigma, f"{ensemble.name}-uniform", ""]["lead"])
            uniform = _acr(votes[f"{ensemble.name}-uniform"])
            assert other == pytest.approx(uniform - _acr(votes[ensemble.name]))
        exits = {f"{plan.whole.name}+{kind}" for kind in ("exact", "paper")}  # in another table
        assert {key[1] for key in table if key[0] == sigma} == {*expected} - exits
        for voter in {*expected} - exits:
            row = table[sigma, voter, ""]
            shares = [float(row[f"accuracy_{radius:.2f}"]) / 100 for radius in radii]
            assert shares == pytest.approx(expected[voter][0])
            assert float(row["acr"]) == pytest.approx(expected[voter][1])


def test_the_paper_s_table_with_ours_next_to_it(finished: tuple[Path, str]) -> None:
    plans, printed = finished
    table = (plans / "out/tables/standard-fast.md").read_text()
    assert table in printed
    for sigma in ("0.50", "0.25"):
        assert (plans / f"out/tables/standard-fast-sigma{sigma}.png").is_file()
        assert f"| {sigma} | SWEEN-6 | paper | " in table
    _check_certified(plans / "out", "standard")
    _verified(plans / "out")
    again = listing(plans / "out")
    assert "nothing was left to do" in succeed(_line(plans))
    changed = {path for path, entry in listing(plans / "out").items() if again.get(path) != entry}
    assert {path.parent.name for path in changed if path.is_file()} <= {"tables"}


def test_exits_come_from_the_same_certificates(done: Path) -> None:
    out = done / "out"
    before = contents(out / "certificates")
    printed = succeed(_line(done, "adaptive"))
    assert "nothing was left to do" in printed
    assert "349,805" in printed  # the paper's
    assert contents(out / "certificates") == before
    table = _ours(out, "adaptive")
    for sigma in ("0.50", "0.25"):
        votes = _votes(out, "standard", sigma)
        for voter in ("SWEEN-3", "SWEEN-3+exact", "SWEEN-3+paper"):
            row = table[sigma, "SWEEN-3", votes[voter][0]["exit"]]
            assert float(row["acr"]) == pytest.approx(_acr(votes[voter]))
            lost = _acr(votes["SWEEN-3"]) - _acr(votes[voter])
            assert float(row["lost"] or 0) == pytest.approx(lost)
            evaluations = sum(own["member_evaluations"] for own in votes[voter]) / 12
            assert float(row["evaluations"]) == pytest.approx(evaluations)
    assert len(table) == 6


def test_attacks_use_the_networks_of_their_base(done: Path) -> None:
    printed = succeed(_line(done, "attacks"))
    out = done / "out"
    page = (out / "tables/attacks-fast.md").read_text()
    assert page in printed
    assert "| 0.50 | SWEEN-3 | paper | empirical | 75.0 | 67.0 | 58.9 |" in page
    table = {
        (row["model"], row["kind"]): row for row in _csv(out, "attacks") if row["source"] == "sween"
    }
    models = ("SWEEN-2", "digits-conv")
    assert {*table} == {
        *((model, kind) for model in models for kind in ("certified", "empirical")),
        ("SWEEN-2 over digits-conv", "lead"),
    }
    certified, robust = _votes(out, "standard", "0.50"), dict[tuple[str, float], list[bool]]()
    for model in models:
        folder = out / f"attacks/standard-fast-sigma0.50/{model}"
        assert read_config(folder)["certificates"], "none to compare with"
        rows = read_rows(folder / "attacks.jsonl")
        assert len(rows) == 8
        for eps in (0.0, 0.25, 0.5):
            own = [row for row in rows if row["eps"] == (eps or 0.25)]
            robust[model, eps] = [
                row["clean_prediction"] == row["label"]
                and (not eps or row["prediction"] in (row["label"], -1))
                for row in own
            ]
            share = float(table[model, "empirical"][f"at_{eps:g}"])
            assert share == pytest.approx(100 * sum(robust[model, eps]) / 4)
            (floor,) = _shares([row for row in certified[model] if row["index"] < 4], [eps])
            assert float(table[model, "certified"][f"at_{eps:g}"]) == pytest.approx(100 * floor)
    for eps in (0.0, 0.25, 0.5):
        lead = sum(robust["SWEEN-2", eps]) - sum(robust["digits-conv", eps])
        shown = table["SWEEN-2 over digits-conv", "lead"][f"at_{eps:g}"]
        assert float(shown) == pytest.approx(100 * lead / 4)
    _verified(out)
    assert "nothing was left to do" in succeed(_line(done, "attacks"))


def test_an_attack_that_has_not_finished_is_not_in_the_table(done: Path) -> None:
    """Its accuracy would be that of other images."""
    succeed(_line(done, "attacks"))
    space = Workspace(read_plan(done / "attacks.toml"), recipe="fast", out=done / "out")
    file = space.attacked("SWEEN-2", 0.5) / "attacks.jsonl"
    for kept in (2, 0):
        file.write_text("".join(file.read_text().splitlines(keepends=True)[:kept]))
        (table,) = make_tables(space)
        ours = [row for row in table.rows if table.value(row, "source") == "sween"]
        assert {table.value(row, "model") for row in ours} == {"digits-conv"}
    shutil.rmtree(space.attacked("digits-conv", 0.5))
    assert make_tables(space) == []


@pytest.mark.slow
def test_the_record_next_to_published_figures(plans: Path) -> None:
    """The ensemble alone on more images, its envelope over noise levels, and a public log."""
    data, out = plans / "data", plans / "out"
    options = f"--data-root {data}"
    logs = data / "logs" / "catrs"
    logs.mkdir(parents=True)
    header = "idx\tlabel\tpredict\tradius\tcorrect"
    labels = load_dataset("digits").test.labels.tolist()
    lines = [f"{i}\t{labels[i]}\t{labels[i]}\t{0.01 * i:.3}\t1" for i in range(20)]
    (logs / "digits_resnet110_sigma_0.5.tsv").write_text("\n".join([header, *lines]) + "\n")
    printed = succeed(_line(plans, "record", options=options))
    for name in ("record", "record-envelope", "record-probabilities", "record-logs"):
        assert (out / f"tables/{name}-fast.md").read_text() in printed
    rows = {
        sigma: read_rows(out / f"record/record-fast-sigma{sigma}/certificates.jsonl")
        for sigma in ("0.50", "0.25")
    }
    assert {row["exit"] for row in rows["0.50"]} == {"exact"}
    table = [row for row in _csv(out, "record") if row["source"] == "sween"]
    for sigma, own in rows.items():
        assert [row["index"] for row in own] == list(range(30))
        assert f"| {sigma} | CAT-RS, ResNet-110 | " in printed
        held_out = read_rows(out / f"held-out/record-fast-sigma{sigma}/certificates.jsonl")
        assert len(held_out) == len(load_dataset("digits").weights)
        whole, *fixed = [row for row in table if f"{float(row['sigma']):.2f}" == sigma]
        assert (whole["model"], whole["images"], whole["n"]) == ("SWEEN-2", "0:30", "2000")
        assert float(whole["acr"]) == pytest.approx(_acr(own))
        assert {(row["model"], row["images"]) for row in fixed} == {
            (name, "0:12") for name in ("SWEEN-2", "SWEEN-2-sgd", "digits-mlp", "digits-conv")
        }
    envelope = _csv(out, "record-envelope")
    assert [float(row["radius"]) for row in envelope] == [step / 4 for step in range(9)]
    for row in envelope:
        own, radius = rows[f"{float(row['sigma']):.2f}"], float(row["radius"])
        (share,) = _shares(own, [radius])
        assert float(row["accuracy"]) == pytest.approx(100 * share)
        low, high = map(float, row["interval"].split(" to "))
        assert low <= 100 * share + 0.01
        assert high >= 100 * share - 0.01
        assert (row["by"] == "smoothing-ensembles, 500 images") == (0.25 <= radius <= 1)
    first, *others = _csv(out, "record-probabilities")
    sure = sum(row["estimation_counts"][row["label"]] >= 0.999 * row["n"] for row in rows["0.50"])
    assert float(first["from_0.999"]) == pytest.approx(100 * sure / 30)
    for row in (first, *others):
        assert sum(float(own) for key, own in row.items() if "from_" in key) == pytest.approx(100)
    (paired,) = _csv(out, "record-logs")
    assert paired["images"] == "20"
    assert float(paired["acr"]) == pytest.approx(_acr(rows["0.50"][:20]))
    assert "nothing was left to do" in succeed(_line(plans, "record", options=options))
    _verified(out)


def test_noise_levels_are_chosen_on_noise_that_no_test_image_sees(plans: Path) -> None:
    """Image 7 of the weight-solving split would otherwise get the noise of test image 7."""
    space = Workspace(read_plan(str(plans / "record.toml")), recipe="fast", out=plans / "out")
    steps = [step for step in steps_of(space) if isinstance(step, RecordStep)]
    seeds = {
        held_out: {step.settings.seed for step in steps if step.held_out == held_out}
        for held_out in (True, False)
    }
    assert len(seeds[True]) == len(seeds[False]) == 1
    assert seeds[True] != seeds[False]


@pytest.mark.slow
@pytest.mark.parametrize("target", ["macer", "macer-sween3", "identical"])
def test_the_other_targets_from_start_to_end(plans: Path, target: str) -> None:
    printed = succeed(_line(plans, target, options="--sigma 0.5"))
    assert (plans / f"out/tables/{target}-fast.md").read_text() in printed
    _check_certified(plans / "out", target)
    _verified(plans / "out")
    assert "| paper |" in printed
    assert list((plans / "out/tables").glob(f"{target}-fast*.png"))
    assert "nothing was left to do" in succeed(_line(plans, target, options="--sigma 0.5"))


def test_costs_are_measured_and_multiplied_out(
    plans: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sween.reproduce.costs.BENCH_SECONDS", 0.02)
    printed = succeed(_line(plans, "costs"))
    row = json.loads((plans / "out/costs/costs-fast-sigma0.50/digits-conv.json").read_text())
    assert row["epochs"] == 6
    assert len(row["measured"]) == 4
    assert row["parameters"] == 19258
    assert row["seconds_per_certificate"] > 0
    hours = 6 * row["seconds_per_epoch"] / 3600
    cells = f"{row['seconds_per_epoch']:.2f} | {hours:.3f} | {2 * hours:.3f}"
    assert f"| 0.50 | digits-conv | sween | 6 | {cells} |" in printed
    (ensemble,) = (
        own
        for path in (plans / "out/costs/costs-fast-sigma0.50").glob("*.json")
        if "weights_seconds" in (own := json.loads(path.read_text()))
    )
    alone = f"{ensemble['weights_seconds'] / 3600:.3f}"
    assert f"| 0.50 | weights of {ensemble['model']} | sween | - | - | {alone} |" in printed
    assert "nothing was left to do" in succeed(_line(plans, "costs"))


def test_a_dry_run_lists_the_steps_and_makes_nothing(plans: Path) -> None:
    before = listing(plans)
    printed = succeed(_line(plans, options="--dry-run"))
    assert printed.count("certify SWEEN-3") == 2
    assert "in all" in printed
    assert listing(plans) == before


def test_a_dry_run_knows_what_is_done(done: Path) -> None:
    shutil.rmtree(done / "out/certificates/standard-fast-sigma0.25")
    printed = succeed(_line(done, options="--dry-run"))
    assert "done  certify SWEEN-3 at sigma 0.50" in printed
    assert "done  certify SWEEN-3 at sigma 0.25" not in printed
    assert "measured here" in printed


@pytest.mark.slow
def test_a_time_limit_stops_in_time_and_the_next_call_goes_on(
    plans: Path, finished: tuple[Path, str]
) -> None:
    began = time.monotonic()
    first = run_line(_line(plans, options="--time-limit 6s"))
    assert first.code == 0, first.stderr
    assert time.monotonic() - began < 12
    assert "are left" in first.stdout
    succeed(_line(plans))
    assert contents(plans / "out") == contents(finished[0] / "out")


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("reproduce standart --out {out}", ("standart", "did you mean standard")),
        ("reproduce {plan} --out {out} --sigma 0.3", ("--sigma", "0.5, 0.25", "got 0.3")),
        ("reproduce {plan} --out {out} --recipe slow", ("slow", "fast")),
        ("reproduce {plan} --out {out} --time-limit soon", ("soon", "25m")),
        ("reproduce {plan} --out {out} --time-limit 1s", ("--time-limit", "at least 3s", "1s")),
        ("reproduce standard --out {out} --data-root {out}", ("cifar-10-python.tar.gz",)),
    ],
)
def test_bad_input_is_one_line(plans: Path, line: str, parts: tuple[str, ...]) -> None:
    out = plans / "none"
    assert_refused(line.format(out=out, plan=plans / "standard.toml"), *parts, watched=(plans,))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('arch = "digits-conv"', 'arch = "digits-conv"\nepochs = 3', "epochs"),
        ("n = 1000", 'n = "many"', "a whole number"),
        ('indices = "0:12"', "", "either indices or every"),
        ('members = ["digits-mlp-seed0", "digits-conv"]', 'members = ["resnet20"]', "resnet20"),
        ("sigmas = [0.5, 0.25]", "sigmas = []", "at least one"),
        ("seed = 1", "seed = 0", "seed0"),
        ('methods = ["sgd", "uniform"]', 'methods = ["guess"]', "guess"),
        ("title", "titel", "titel"),
        ("seed = 1", 'seed = 1\nrecipes = { slow = "fast/gaussian" }', "slow"),
        ("seed = 1", 'seed = 1\nrecipes_by_sigma = { "0.5" = { fast = "a.toml" } }', "0.50"),
    ],
)
def test_a_bad_plan_is_one_line(plans: Path, old: str, new: str, said: str) -> None:
    plan = plans / "standard.toml"
    assert old in plan.read_text()
    plan.write_text(plan.read_text().replace(old, new, 1))
    assert_refused(_line(plans), said, str(plan), watched=(plans,))


def test_an_exit_that_does_not_exist_is_refused_before_training(plans: Path) -> None:
    for name, old in (("standard", '"exact"'), ("record", 'exit = "exact"')):
        plan = plans / f"{name}.toml"
        plan.write_text(plan.read_text().replace(old, old.replace("exact", "exactt"), 1))
        assert_refused(_line(plans, name), "exit", "'exact'", str(plan), watched=(plans,))


def test_a_folder_of_another_recipe_is_refused(done: Path) -> None:
    plans = done
    (plans / "recipe.toml").write_text('dataset = "digits"\nepochs = 7\nbatch_size = 64\n')
    outcome = run_line(_line(plans, options="--sigma 0.5"))
    assert outcome.code == 2
    assert "epochs" in outcome.stderr
    assert outcome.stderr.count("\n") == 1


def test_networks_trained_with_other_options_are_not_taken_as_done(done: Path) -> None:
    """As many epochs, so that counting them would not tell."""
    recipe = done / "recipe.toml"
    recipe.write_text(recipe.read_text() + "learning_rate = 0.05\n")
    assert "done  train" not in succeed(_line(done, options="--dry-run"))
    outcome = run_line(_line(done, options="--sigma 0.5"))
    assert outcome.code == 2
    assert "learning_rate" in outcome.stderr


def test_certificates_of_other_weights_are_not_taken_as_done(done: Path) -> None:
    plan = done / "standard.toml"
    plan.write_text(plan.read_text().replace('"sgd", "uniform"', '"uniform", "sgd"'))
    printed = succeed(_line(done, options="--dry-run --sigma 0.5"))
    assert "done  solve uniform weights of SWEEN-3" in printed
    assert "done  certify" not in printed
    outcome = run_line(_line(done, options="--sigma 0.5"))
    assert outcome.code == 2  # its folder has rows of the weights before
    assert "holds a run with another config" in outcome.stderr


def test_a_run_killed_before_its_checkpoint_is_not_done(done: Path) -> None:
    for checkpoint in (done / "out/training").glob("*/digits-conv-seed0/model.safetensors"):
        checkpoint.unlink()
    assert "done  train" not in succeed(_line(done, options="--dry-run"))


def test_every_plan_that_ships_names_recipes_that_train_its_candidates() -> None:
    assert {"standard", "identical", "macer", "adaptive", "costs", "attacks", "imagenet"} <= set(
        list_plans()
    )
    for target in list_plans():
        plan = read_plan(target)
        for recipe in plan.recipes:
            space = Workspace(plan, recipe=recipe, out="unused")
            for sigma in plan.sigmas:
                for candidate in plan.candidates:
                    config = space.config(candidate, sigma)
                    assert (config.arch, config.sigma) == (candidate.arch, sigma)


ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("target", "folder"),
    sorted(
        (target, config.parent)
        for target, pattern in (
            ("standard", "cifar10-sween?-gaussian-*/training/*"),
            ("identical-noise", "cifar10-identical-gaussian-*/training/*"),
            ("identical", "cifar10-identical-seeds-gaussian-*/training/*"),
            ("macer-sween3", "cifar10-sween3-macer-*/training/*"),
            ("imagenette", "imagenette-sween3-gaussian-*/training/*"),
            ("imagenette-identical", "imagenette-identical-gaussian-*/training/*"),
        )
        for config in (ROOT / "results").glob(f"{pattern}/config.toml")
    ),
    ids=lambda value: value if isinstance(value, str) else "/".join(value.parts[-3:]),
)
def test_a_plan_says_how_the_networks_of_results_were_trained(target: str, folder: Path) -> None:
    content = read_config(folder)
    trained = TrainConfig.from_dict(
        {key: own for key, own in content.items() if key not in RECORDED_KEYS}
    )
    plan = read_plan(target)
    (candidate,) = (one for one in plan.candidates if one.folder == folder.name)
    space = Workspace(plan, recipe="fast", out="unused")
    assert space.config(candidate, trained.sigma) == trained


@pytest.mark.parametrize(
    ("target", "folder"),
    sorted(
        (target, rows.parent)
        for target, pattern in (
            ("standard", "cifar10-sween6-gaussian-*"),
            ("identical-noise", "cifar10-identical-gaussian-*"),
            ("identical", "cifar10-identical-seeds-gaussian-*"),
            ("macer-sween3", "cifar10-sween3-macer-*"),
            ("imagenette", "imagenette-sween3-gaussian-*"),
            ("imagenette-identical", "imagenette-identical-gaussian-*"),
        )
        for rows in (ROOT / "results").glob(f"{pattern}/certificates.jsonl*")
    ),
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_a_plan_says_how_the_ensembles_of_results_were_certified(target: str, folder: Path) -> None:
    config, plan = CertificationRun.read(folder).config, read_plan(target)
    assert plan.certify is not None
    threshold = plan.certify.threshold(config.content["sigma"])
    exits = {
        f"{config.model}+{kind}": {"paper": f"paper(threshold={threshold:g},alpha=0.05)"}.get(
            kind, kind
        )
        for kind in plan.certify.exits
        if kind != "none"
    }
    assert {name: own for name, own in config.exits.items() if own != "none"} == exits
    assert tuple(config.members) == plan.whole.members
    settings = (plan.certify.n0, plan.certify.n, plan.certify.alpha)
    assert (config.settings.n0, config.settings.n, config.settings.alpha) == settings
    size = 3_925 if config.content["dataset"] == "image_folder" else 10_000
    positions = parse_indices(
        indices=plan.certify.indices, every=plan.certify.every, everything=False, size=size
    )
    assert list(config.indices) == positions


def test_a_dry_run_says_which_recipe_trains_which_network(plans: Path) -> None:
    plan, other = plans / "standard.toml", plans / "other.toml"
    other.write_text(RECIPE.replace("epochs = 6", "epochs = 5"))
    own = f'recipes_by_sigma = {{ "0.25" = {{ fast = "{other}" }} }}'
    plan.write_text(plan.read_text().replace("seed = 1\n", f"seed = 1\n{own}\n"))
    printed = succeed(_line(plans, options="--dry-run"))
    recipe = plans / "recipe.toml"
    names = "digits-mlp-seed0, digits-conv"
    assert f"train {names}, digits-mlp-seed1 by {recipe} at sigma 0.50" in printed
    assert f"train {names} by {recipe} and digits-mlp-seed1 by {other} at sigma 0.25" in printed


def test_recipes_of_a_plan_replace_those_of_its_base_s_candidates() -> None:
    plan = read_plan("macer")
    for recipe in ("fast", "paper"):
        space = Workspace(plan, recipe=recipe, out="unused")
        methods = {space.config(one, 0.5).method for one in plan.candidates}
        assert methods == {"macer"}


def test_the_paper_s_numbers_are_those_of_the_readme() -> None:
    """Two copies of the same tables, made apart."""
    results = ROOT / "results" / "published" / "cifar10.toml"
    for row in tomllib.loads(results.read_text())["row"]:
        table = "standard" if row["training"] == "gaussian" else row["training"]
        (own,) = (
            other for other in published_rows(table, row["sigma"]) if other["model"] == row["model"]
        )
        assert (own["accuracies"], own["acr"]) == (row["accuracies"], row["acr"])


def test_rates_of_finished_work_replace_those_measured_elsewhere() -> None:
    rates = Rates("cpu")
    assert "here" not in rates.describe()
    before = rates.seconds_left(Work("certify", 1e12))
    rates.learn(Work("certify", 1e12, done=5e11, seconds=500.0))
    assert rates.seconds_left(Work("certify", 1e12)) != before
    assert rates.seconds_left(Work("certify", 1e12, done=5e11)) == pytest.approx(503.0)
    assert rates.seconds_left(Work("certify", 1e12, done=1e12)) == 0.0
    assert "certify here, attack and train and weigh on " in rates.describe()
    assert rates.describe(["certify"]) == "here"


@pytest.mark.slow
def test_a_step_of_the_same_run_gives_the_rate_for_the_next(plans: Path) -> None:
    """Not only one of an earlier call; each kind of step but attacks, of which there is none."""
    space = Workspace(read_plan(plans / "standard.toml"), recipe="fast", out=plans / "out")
    space.quiet = True
    steps, said = steps_of(space), list[str]()
    with pytest.MonkeyPatch.context() as patch:
        slow = {kind: dict(own) for kind, own in measured_rates()["cpu"].items()}
        for rate in slow.values():
            rate["multiply_adds_per_second"] = 1.0
        patch.setattr("sween.reproduce.rates.measured_rates", lambda: {"cpu": slow})
        carry_out(steps, device="cpu", say=said.append)
    first, second = said[: len(said) // 2], said[len(said) // 2 :]
    assert all(re.search(r"about \d+h", line) for line in first[:2]), first
    assert all(re.search(r"about \d+s$", line) for line in second), second


def test_a_first_epoch_that_compiles_does_not_count(done: Path) -> None:
    space = Workspace(read_plan(done / "standard.toml"), recipe="fast", out=done / "out")
    train = steps_of(space)[0]
    before = train.work()
    for file in (done / "out/training").glob("*-sigma0.50/*/metrics.jsonl"):
        rows = read_rows(file)
        rows[0]["seconds"] += 1000
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert train.work() == before


def test_the_work_of_sgd_counts_its_epochs() -> None:
    assert inspect.signature(solve_weights).parameters["epochs"].default == SGD_EPOCHS


@pytest.mark.slow
def test_shipped_rates_are_those_of_results() -> None:
    command = [sys.executable, str(ROOT / "docs" / "update_rates.py"), "--check"]
    assert subprocess.run(command, check=False).returncode == 0, "run docs/update_rates.py"


def test_by_the_shipped_rates_results_take_about_as_long_as_they_took() -> None:
    """SWEEN-3 at sigma 1.00, whose kernels were compiled before: 276 s of epochs, 300 s in all."""
    sizes = [41_214_592, 55_485_056, 69_755_520]  # as in the paper's table of costs
    work = sum(training_work(size, images=48_000, copies=1, epochs=200) for size in sizes)
    assert Rates("cuda").seconds_left(Work("train", work)) == pytest.approx(300, rel=0.35)


def _training(out: Path) -> bool:
    return any(len(read_rows(path)) > 1 for path in out.glob("training/*/*/metrics.jsonl"))


def _weighing(out: Path) -> bool:
    return any(out.glob("ensembles/*/*/.sween-*"))


def _certifying(out: Path) -> bool:
    return any(path.stat().st_size for path in out.glob("certificates/*/certificates.jsonl"))


def _recording(out: Path) -> bool:
    return any(path.stat().st_size for path in out.glob("record/*/certificates.jsonl"))


def _choosing_the_noise_level(out: Path) -> bool:
    return any(path.stat().st_size for path in out.glob("held-out/*/certificates.jsonl"))


def _measuring(out: Path) -> bool:
    return any(len(read_rows(path)) > 1 for path in out.glob("costs/*/*/metrics.jsonl"))


def _measuring_the_ensemble(out: Path) -> bool:
    return len([*out.glob("costs/*/digits-*.json")]) == 2


def _attacking(out: Path) -> bool:
    return any(path.stat().st_size for path in out.glob("attacks/*/*/attacks.jsonl"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "reached"),
    [
        ("standard", _training),
        ("standard", _weighing),
        ("standard", _certifying),
        ("attacks", _attacking),
        ("macer", _training),
        ("identical", _weighing),
        ("identical", _certifying),
        ("costs", _measuring),
        ("costs", _measuring_the_ensemble),
        ("record", _training),
        ("record", _choosing_the_noise_level),
        ("record", _recording),
    ],
)
def test_a_kill_in_any_step_loses_nothing(
    plans: Path,
    finished: tuple[Path, str],
    target: str,
    reached: Callable[[Path], bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SIGKILL once the step is under way, then the same command: as if never interrupted."""
    monkeypatch.setattr("sween.reproduce.costs.BENCH_SECONDS", 0.02)
    options = "" if target == "standard" else "--sigma 0.5"
    kill_when(_line(plans, target, options=options), lambda: reached(plans / "out"))
    succeed(_line(plans, target, options=options))
    whole = finished[0] / "out"
    if target != "standard":
        whole = plans / "whole"
        succeed(_line(plans, target, out="whole", options=options))
    made, wanted = contents(plans / "out"), contents(whole)
    if target == "costs":  # a table of times, which differ
        made, wanted = (
            {name: own for name, own in found.items() if not name.startswith("tables")}
            for found in (made, wanted)
        )
    assert made == wanted


def _rounded(tmp_path: Path, out: str) -> str:
    """A plan that rounds its networks, and the command that carries it out."""
    data = tmp_path / "data"
    if not data.exists():
        write_photos(data)
    (tmp_path / "recipe.toml").write_text('dataset = "image_folder"\nepochs = 1\nbatch_size = 8\n')
    (tmp_path / "rounded.toml").write_text(
        f"""
title = "In integers"
dataset = "image_folder"
image_size = 32
sigmas = [0.25]
recipes = {{ fast = "{tmp_path}/recipe.toml" }}
candidate = [{{ arch = "resnet20" }}, {{ arch = "resnet20", seed = 1 }}]
ensemble = [{{ name = "SWEEN-2", members = ["resnet20-seed0", "resnet20-seed1"] }}]
weigh = {{ samples = 2, methods = ["uniform", "convex"] }}
certify = {{ indices = "0:2", n = 100, precision = "int8" }}
"""
    )
    place = f"--data-root {data} --out {tmp_path / out}"
    return f"reproduce {tmp_path}/rounded.toml {place} --quiet --device cpu"


@pytest.mark.slow
def test_a_kill_while_networks_are_rounded_loses_nothing(tmp_path: Path) -> None:
    made = tmp_path / "out"
    line = _rounded(tmp_path, "out")
    kill_when(line, lambda: any(made.glob("ensembles/*/*-int8/.sween-*")))
    succeed(line)
    succeed(_rounded(tmp_path, "whole"))
    assert contents(made) == contents(tmp_path / "whole")


@pytest.mark.slow
def test_networks_are_rounded_before_they_are_certified_in_integers(tmp_path: Path) -> None:
    line, out = _rounded(tmp_path, "out"), tmp_path / "out"
    printed = succeed(line)
    assert "round SWEEN-2 to 8 bits" in printed
    (file,) = out.glob("certificates/*/certificates.jsonl")
    rows = read_rows(file)
    assert {row["precision"] for row in rows} == {"int8"}
    assert {row["model"] for row in rows} == {
        *("SWEEN-2", "SWEEN-2-convex", "resnet20-seed0", "resnet20-seed1")
    }
    sizes = [
        next(out.glob(f"ensembles/*/SWEEN-2-uniform{kind}/members/*0.safetensors")).stat().st_size
        for kind in ("", "-int8")
    ]
    assert sizes[1] < 0.3 * sizes[0]
    assert "nothing was left to do" in succeed(line)
    _verified(out)
