"""What `sween reproduce` refuses before any work is done, and what it does not take as done."""

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest

from sween.bounds.radius import radius_cohen
from sween.errors import BadInput, CheckpointError
from sween.records import Certificate
from sween.reproduce import Rates, Work, Workspace, carry_out, make_figures, make_tables, read_plan
from sween.reproduce.costs import mean_epoch, short
from sween.reproduce.record import expected_accuracy
from sween.reproduce.run import steps_of
from sween.reproduce.steps import Step
from sween.runs import CertificationRun
from sween.training import TrainConfig
from tests.cli.command import assert_refused, listing, run_line, succeed

pytestmark = pytest.mark.filterwarnings("ignore::sween.errors.SmallSampleWarning")


def _line(plans: Path, target: str = "standard", options: str = "") -> str:
    return (
        f"reproduce {plans / f'{target}.toml'} --out {plans / 'out'} --quiet --device cpu {options}"
    )


def _changed(plans: Path, target: str, old: str, new: str) -> None:
    plan = plans / f"{target}.toml"
    assert old in plan.read_text()
    plan.write_text(plan.read_text().replace(old, new, 1))


def _space(plans: Path, target: str = "standard") -> Workspace:
    plan = read_plan(plans / f"{target}.toml")
    return Workspace(plan, recipe="fast", out=plans / "out", quiet=True)


def _steps(space: Workspace, kind: str) -> list[Step]:
    return [step for step in steps_of(space) if type(step).__name__ == kind]


def test_ensembles_of_another_recipe_are_refused_before_training(done: Path) -> None:
    """They have the same folders; new ones would replace them, and fit no certificate."""
    (done / "shorter.toml").write_text('dataset = "digits"\nepochs = 2\nbatch_size = 64\n')
    _changed(done, "standard", "/recipe.toml", "/shorter.toml")
    before = listing(done / "out")
    parts = ("SWEEN-2-sgd", "digits-mlp-seed0 that was trained otherwise (epochs 6 -> 2)", "`out`")
    assert_refused(_line(done), *parts[:2], "--out", watched=(done,))
    assert listing(done / "out") == before


def test_other_settings_of_weights_and_certificates_are_refused_before_training(
    done: Path,
) -> None:
    for old, new, said in (
        ("samples = 5", "samples = 6", "weights that were solved otherwise (samples 5)"),
        ("n = 1000", "n = 1100", "other settings (n 1000 -> 1100)"),
        ('indices = "0:12"', 'indices = "0:13"', "other settings (indices)"),
    ):
        _changed(done, "standard", old, new)
        shutil.rmtree(done / "out/training/recipe-sigma0.25", ignore_errors=True)
        assert_refused(_line(done), said, watched=(done,))
        _changed(done, "standard", new, old)


def test_another_precision_is_not_done(done: Path) -> None:
    _changed(done, "standard", "n = 1000", 'n = 1000\nprecision = "float32"')
    assert all(step.is_done() for step in _steps(_space(done), "CertifyStep"))
    _changed(done, "standard", '"float32"', '"bfloat16"')
    assert not any(step.is_done() for step in _steps(_space(done), "CertifyStep"))
    assert_refused(_line(done), "precision 'float32' -> 'bfloat16'", watched=(done,))


def test_weights_of_networks_that_were_trained_again_are_not_replaced(done: Path) -> None:
    """By the same recipe: only the weights tell."""
    space = _space(done)
    for sigma in space.plan.sigmas:
        folders = space.runs(space.plan.whole, sigma)
        one, other = (folder / "model.safetensors" for folder in (folders[0], folders[2]))
        shutil.copy(other, one)
    step = _steps(space, "WeighStep")[0]
    step.check()
    assert not step.is_done()
    with pytest.raises(CheckpointError, match=r"one of other networks.*delete the ensembles"):
        step.run()


def test_ensembles_of_other_members_are_refused_before_training(done: Path) -> None:
    _changed(done, "standard", '["digits-mlp-seed0", "digits-conv"]', '["digits-conv"]')
    assert_refused(_line(done), "SWEEN-2-sgd", "one of 2 networks, not 1", watched=(done,))


def test_images_that_do_not_fit_in_memory_are_compared_by_the_trainer(
    done: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run of theirs resumes, though the images are not read again to compare them."""
    space = _space(done)
    monkeypatch.setattr(space, "training_images", lambda config: {})
    for step in _steps(space, "Train"):
        step.check()
        assert step.is_done()


def test_tables_leave_out_what_is_not_done(done: Path) -> None:
    """After a time limit, certificates may be there that are of other networks."""
    space = _space(done)
    assert len(make_tables(space)[0].rows) > 0
    space.unfinished.add(space.certificates(0.5))
    (table,) = make_tables(space)
    assert {table.value(row, "sigma") for row in table.rows if row} == {0.25}
    assert list(make_figures(space)) == ["standard-fast-sigma0.25"]
    space.unfinished.add(space.certificates(0.25))
    assert make_tables(space) == []


def test_a_time_limit_shows_no_table_of_other_networks(done: Path) -> None:
    """The networks are being trained again: the certificates at hand are not theirs."""
    space = _space(done)
    for sigma in space.plan.sigmas:
        for step in (space.ensemble(*own, sigma) for own in space.plan.solutions):
            shutil.rmtree(step)
        for folder in space.runs(space.plan.whole, sigma):
            shutil.rmtree(folder)
    shutil.rmtree(done / "out/tables")
    outcome = run_line(_line(done, options="--time-limit 4s"))
    if "are left" in outcome.stdout:
        assert not list((done / "out/tables").glob("*.md"))
    else:  # a fast machine made the same networks again
        assert outcome.code == 0


@pytest.mark.parametrize(
    ("target", "old", "new", "said"),
    [
        ("standard", "n = 1000", "n = -1", "at least 1 vote"),
        ("standard", "n = 1000", "n = 1000\nalpha = 2", "alpha"),
        ("standard", "samples = 5", "samples = 0", "weigh.samples: expected at least 1"),
        ("standard", '"sgd", "uniform"', "", "weigh.methods: expected at least one"),
        ("standard", '["none", "exact", "paper"]', "[]", "certify.exits: expected at least one"),
        ("standard", '"paper"]', '"paper(2"]', "certify.exits"),
        ("standard", "sigmas = [0.5, 0.25]", "sigmas = [-0.5]", "above 0"),
        ("standard", "sigmas = [0.5, 0.25]", "sigmas = [0.5, 0.501]", "two decimals"),
        ("record", "samples = 20", "samples = 5", "weigh.samples: expected at least 10"),
        ("record", "tolerance = 0.05", "", "record: tolerance: expected a value"),
        ("record", '"tolerance"', '"tolerence"', "record.sampling"),
        ("record", '"tolerance"', '"budget"', "record.sampling"),
        ("record", "held_out_n = 500", "held_out_n = 0", "record.held_out_n"),
        ("record", 'exit = "exact"', 'exit = "paper(2"', "record.exit"),
        ("attacks", 'attack = "pgd"', 'attack = "foo"', "attack: "),
        ("attacks", "eps = [0.25, 0.5]", "eps = []", "attack: eps"),
        ("attacks", "eps = [0.25, 0.5]", "eps = [0.5]\nsigmas = [0.7]", "attack.sigmas"),
    ],
)
def test_a_plan_that_would_fail_later_is_one_line(
    plans: Path, target: str, old: str, new: str, said: str
) -> None:
    _changed(plans, target, old, new)
    assert_refused(_line(plans, target), said, str(plans / f"{target}.toml"), watched=(plans,))


def test_positions_that_are_not_there_are_refused_before_training(plans: Path) -> None:
    for text in ("0:99999", "foo"):
        _changed(plans, "standard", 'indices = "0:12"', f'indices = "{text}"')
        assert_refused(_line(plans), "indices", watched=(plans,))
        _changed(plans, "standard", f'indices = "{text}"', 'indices = "0:12"')


OWN = """
title = "A network of one's own"
dataset = "digits"
sigmas = [0.5]
recipes = {{fast = "{folder}/own.toml"}}
candidate = [{{arch = "tests.models.factories:with_classes"}}, {{arch = "digits-mlp"}}]
ensemble = [{{name = "SWEEN-2", members = ["with_classes", "digits-mlp"]}}]
weigh = {{samples = 5}}
certify = {{indices = "0:4", n = 500}}
"""


def test_networks_of_ones_own_from_start_to_end(tmp_path: Path) -> None:
    """Whoever names one in a plan lets it be imported, in every step."""
    (tmp_path / "own.toml").write_text('dataset = "digits"\nepochs = 1\n')
    (tmp_path / "mine.toml").write_text(OWN.format(folder=tmp_path))
    assert "SWEEN-2" in succeed(_line(tmp_path, "mine"))
    assert "nothing was left to do" in succeed(_line(tmp_path, "mine"))
    run = CertificationRun.read(tmp_path / "out/certificates/mine-fast-sigma0.50")
    assert len(run.rows) == run.config.rows


def test_a_recipe_of_different_candidates_is_one_line(plans: Path) -> None:
    (plans / "recipe.toml").write_text(
        'dataset = "digits"\n[[candidate]]\nseed = 0\nepochs = 1\n[[candidate]]\nepochs = 2\n'
    )
    assert_refused(_line(plans), "recipe of digits-mlp-seed0", "2 different ones", watched=(plans,))
    (plans / "recipe.toml").write_text(
        'dataset = "digits"\nepochs = 1\n[[candidate]]\nseed = 0\n[[candidate]]\nseed = 1\n'
    )
    space = _space(plans)
    assert space.config(space.plan.candidates[1], 0.5).seed == 0


def test_costs_of_a_recipe_whose_attack_begins_late() -> None:
    config = TrainConfig(
        dataset="cifar10",
        arch="resnet20",
        sigma=0.5,
        method="acr",
        epochs=20,
        copies=1,
        attack_from=15,
        attack_steps=3,
        reweigh_from=15,
        radius_gain=None,
    )
    few = short(config)
    assert (few.epochs, few.attack_from, few.reweigh_from, few.drop_below) == (4, 0, 0, 0)
    assert few.passes_at(1) == config.passes_at(19) == 3
    assert mean_epoch(config, 30.0) == pytest.approx((15 * 10 + 5 * 30) / 20)
    gained = dataclasses.replace(
        config, method="consistency", copies=2, attack_from=None, attack_steps=None,
        reweigh_from=None, radius_gain=0.97, radius_gain_from=12,
    )  # fmt: skip
    assert short(gained).radius_gain_from == 0
    assert mean_epoch(gained, 30.0) == 30.0


def _row(correct: int, n: int) -> Certificate:
    """With that many of n votes for the true class."""
    results = Path(__file__).parents[2] / "results"
    run = CertificationRun.read(results / "cifar10-sween3-gaussian-sigma0.50")
    row = next(own for own in run.rows if own.label is not None)
    assert row.label is not None
    counts = [0] * 10
    counts[row.label], counts[row.label - 1] = correct, n - correct
    return dataclasses.replace(row, estimation_counts=tuple(counts), n=n)


def test_the_noise_level_of_a_radius_is_chosen_as_if_there_were_all_votes() -> None:
    """10,000 votes reach 1.6 at sigma 0.5, and 100,000 votes 1.9."""
    rows = [_row(10_000, 10_000), _row(9_990, 10_000), _row(4_000, 10_000)]
    found = expected_accuracy(rows, sigma=0.5, n=100_000)
    radii = radius_cohen(np.array([100_000, 99_900, 40_000]), 100_000, alpha=0.001, sigma=0.5)
    wanted = [float(np.mean((radii > 0) & (radii >= step / 4))) for step in range(len(found))]
    assert found == wanted
    assert found[7] == pytest.approx(1 / 3)  # at 1.75
    alone = radius_cohen(10_000, 10_000, alpha=0.001, sigma=0.5)
    assert alone < 1.75


def test_rates_are_those_of_what_was_evaluated() -> None:
    """Exits and `tolerance` do a step's work with fewer evaluations."""
    rates = Rates("cpu")
    rates.learn(Work("certify", total=4e12, done=2e12, seconds=10.0, evaluated=5e11))
    left = rates.seconds_left(Work("certify", total=1e12))
    assert left == pytest.approx(3.0 + 1e12 / 5e10)


def test_nothing_is_done_where_a_step_is_refused(done: Path) -> None:
    space = _space(done)
    last = steps_of(space)[-1]

    class Refusing(type(last)):  # type: ignore[misc]
        def check(self) -> None:
            raise BadInput("no")

    shutil.rmtree(space.certificates(0.5))
    steps: list[Step] = [*steps_of(space)[:-1], Refusing(space, 0.25)]
    with pytest.raises(BadInput, match="no"):
        carry_out(steps, device="cpu")
    assert not space.certificates(0.5).exists()
