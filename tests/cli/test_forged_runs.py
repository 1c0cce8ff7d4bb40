"""Runs that contradict themselves are found by verify, and refused by whoever else reads them."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sween.records import to_line
from sween.run_folder import read_config, to_toml
from tests.cli.command import assert_check_failed, assert_refused, run_line, succeed
from tests.cli.conftest import IMAGES, Made
from tests.cli.forging import Forgery, Row, all_votes_for, rederived
from tests.cli.rows import rows_of

CERTIFY = f"certify {{ensemble}} --indices 0:{IMAGES} --n 200 --members --quiet --out {{folder}}"
ATTACK = (
    "attack {ensemble} --eps 0.25 --attack pgd --samples 4 --steps 2 --n 200 --indices 0:2 "
    "--certificates {folder} --quiet --out {tmp}/attacked"
)
READERS = {
    "resume": CERTIFY,
    "report": "report {folder} --out {tmp}/report",
    "attack": ATTACK,
}
LAST = 3 * IMAGES - 1
"""The place of the last row, which is the ensemble's."""


@pytest.fixture
def forgery(made: Made, tmp_path: Path) -> Forgery:
    return Forgery(Path(shutil.copytree(made.certificates, tmp_path / "run")))


def stopped(forgery: Forgery) -> None:
    """As if it had been killed before its last image: then there is something to resume."""
    forgery.path.write_bytes(b"".join(forgery.path.read_bytes().splitlines(True)[: LAST - 2]))


def other_radius(row: Row) -> Row:
    return {"radius": row["radius"] + 0.5, "radius_cohen": row["radius_cohen"] + 0.5}


def broken_checksum(forgery: Forgery) -> None:
    """The time of a row, which nothing but the checksum guards."""
    lines = forgery.path.read_bytes().splitlines(keepends=True)
    row = forgery.rows()[0]
    lines[0] = to_line(row | {"seconds": row["seconds"] + 1})
    forgery.path.write_bytes(b"".join(lines))


def of_another_run(forgery: Forgery) -> None:
    forgery.write(forgery.rows(), tag="0" * 16)


def one_more_image(forgery: Forgery) -> None:
    """Rows as they are, beside a config that was edited."""
    config = read_config(forgery.folder)
    config |= {"indices": "0:7", "images": 7}
    (forgery.folder / "config.toml").write_text(to_toml(config))


def against_its_members(forgery: Forgery) -> None:
    """Every vote of both members is for one class, every vote of the ensemble for another."""
    forgery.change(lambda row: all_votes_for(3, row), 0, 1)
    forgery.change(lambda row: all_votes_for(4, row), 2)


REFUSED: dict[str, tuple[Callable[[Forgery], None], str]] = {
    "radius": (lambda forgery: forgery.change(other_radius, 1), "line 2 (index 0): radius is"),
    "checksum": (broken_checksum, "checksum does not match"),
    "another run": (of_another_run, "line 1 (index 0): it belongs to a run of another config"),
    "seed": (lambda forgery: forgery.change(lambda row: {"seed": 7}, 4), "seed is 7"),
    "exit": (lambda forgery: forgery.change(lambda row: {"exit": "exact"}, 2), "exit is 'exact'"),
    "noise": (
        lambda forgery: forgery.change(lambda row: {"noise": "exact(levels=16)"}, 2),
        "noise is 'exact(levels=16)', not 'float32'",
    ),
    "a contradiction": (against_its_members, "line 3 (index 0): selection_counts have 0 votes"),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", REFUSED)
def test_every_reader_of_a_run_checks_its_rows(
    name: str, reader: str, made: Made, forgery: Forgery, tmp_path: Path
) -> None:
    alter, said = REFUSED[name]
    stopped(forgery)
    alter(forgery)
    line = READERS[reader].format(ensemble=made.ensemble, folder=forgery.folder, tmp=tmp_path)
    assert_refused(line, "certificates.jsonl", said, "restore", watched=(tmp_path,))
    assert_check_failed(run_line(f"verify {forgery.folder}"), "certificates.jsonl", said)


@pytest.mark.parametrize("reader", ["report", "attack"])
def test_an_edited_config_does_not_make_a_run_complete(
    reader: str, made: Made, forgery: Forgery, tmp_path: Path
) -> None:
    one_more_image(forgery)
    line = READERS[reader].format(ensemble=made.ensemble, folder=forgery.folder, tmp=tmp_path)
    assert_refused(line, "a run of another config", "restore", watched=(tmp_path,))


def test_a_run_does_not_go_on_from_an_edited_config(
    made: Made, forgery: Forgery, tmp_path: Path
) -> None:
    """The command fits the config, but the rows were certified under another one."""
    one_more_image(forgery)
    line = CERTIFY.replace(f"0:{IMAGES}", "0:7").format(
        ensemble=made.ensemble, folder=forgery.folder
    )
    assert_refused(line, "line 1 (index 0)", "a run of another config", watched=(tmp_path,))


def test_an_honest_stopped_run_is_reported_and_resumed(
    made: Made, forgery: Forgery, tmp_path: Path
) -> None:
    stopped(forgery)
    said = succeed(f"report {forgery.folder} --out {tmp_path}/report")
    assert f"Incomplete: {IMAGES - 1} of the {IMAGES}" in said
    succeed(CERTIFY.format(ensemble=made.ensemble, folder=forgery.folder))
    assert rows_of(forgery.folder) == rows_of(made.certificates)


def fewer_classes(row: Row) -> Row:
    """Two classes: those with the most votes."""
    selection, estimation = row["selection_counts"], row["estimation_counts"]
    one = max(range(10), key=lambda k: selection[k])
    kept = {"candidate": 0, "label": 0}
    return rederived(
        row
        | kept
        | {
            "selection_counts": [selection[one], row["n0"] - selection[one]],
            "estimation_counts": [estimation[one], row["n"] - estimation[one]],
        }
    )


ROWS: dict[str, tuple[Callable[[Row], Row], str]] = {
    "two classes of ten": (fewer_classes, "counts are of 2 classes, digits has 10"),
    "label beyond the classes": (lambda row: {"label": 99}, "label is 99, not one of 10"),
    "negative label": (lambda row: {"label": -1}, "label is -1, not one of 10"),
    "no label": (lambda row: {"label": None}, "label is missing"),
    "time that runs backwards": (lambda row: {"seconds": -1.0}, "seconds is -1.0, below 0"),
    "negative evaluations": (
        lambda row: {"member_evaluations": -row["member_evaluations"]},
        "member_evaluations -",
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_rows_that_no_run_has(name: str, forgery: Forgery) -> None:
    change, said = ROWS[name]
    forgery.change(change)
    assert_check_failed(run_line(f"verify {forgery.folder}"), "line 1 (index 0)", said)


CONFIGS: dict[str, tuple[dict[str, object], str]] = {
    "labels taken away": ({"labels": "none"}, "but digits has labels"),
    "fewer images than indices": ({"images": 5}, "images is 5, but indices name 6"),
    "indices beyond the data set": ({"indices": "355:361"}, "a split of 360 images"),
    "a quintillion indices": (
        {"indices": "0:999999999999999999"},
        "at most 360 test images, got 999,999,999,999,999,999",
    ),
    "a quintillion of unknown data": (
        {"indices": "0:999999999999999999", "dataset": "image_folder"},
        "at most 10,000,000 test images",
    ),
    "indices in another spelling": ({"indices": "0:3,3:6"}, "which sween writes as '0:6'"),
    "an index twice": ({"indices": "0:6,5"}, "5 twice"),
    "skipped and certified": ({"skipped": "5:8"}, "image 5 is among both"),
    "skipped files of embedded data": ({"skipped": "50"}, "digits has no image files"),
    "skipped beyond the data set": ({"skipped": "900"}, "a split of 360 images"),
    "weights that do not sum to 1": ({"weights": [0.5, 0.6]}, "sum 1.1"),
    "a negative weight": ({"weights": [1.5, -0.5]}, "non-negative numbers"),
    "more weights than members": ({"weights": [0.5, 0.25, 0.25]}, "2 numbers, one per member"),
    "weights that are text": ({"weights": ["a", "b"]}, "not a list of numbers"),
    "a weighting off the simplex": ({"weightings": {"w": [2.0, 3.0]}}, "w: weights: expected non"),
    "members that are not the candidates": (
        {"members": ["digits-mlp-seed1"]},
        "members is ['digits-mlp-seed1'], not",
    ),
    "another device": ({"device": "tpu"}, "device is 'tpu', none of cpu, cuda"),
    "an unknown arithmetic": ({"precision": "float8"}, "'float8' is none that sween"),
    "no rows in a forward pass": ({"forward_rows": 0}, "forward_rows is 0"),
    "another grid": ({"noise": "exact(levels=255)"}, "digits has 16 levels"),
    "the training images": ({"split": "train"}, "split is 'train'"),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_configs_that_no_run_has(name: str, forgery: Forgery) -> None:
    """With tags and checksums made to fit."""
    changes, said = CONFIGS[name]
    forgery.configure(**changes)
    assert_check_failed(run_line(f"verify {forgery.folder}"), "config.toml", said)


@pytest.mark.parametrize("value", ["nan", "1979-05-27"])
def test_a_config_that_cannot_be_named(value: str, forgery: Forgery) -> None:
    path = forgery.folder / "config.toml"
    path.write_text(f"odd = {value}\n{path.read_text()}")
    code, _, stderr = run_line(f"verify {forgery.folder}")
    assert (code, stderr.count("\n")) == (2, 1)


def test_an_ensemble_cannot_outvote_members_that_agree(forgery: Forgery) -> None:
    against_its_members(forgery)
    said = "0 votes for class 3, but all members agree on it in at least 100 of 100"
    assert_check_failed(run_line(f"verify {forgery.folder}"), "line 3 (index 0)", said)


@pytest.fixture
def weighed(made: Made, tmp_path: Path) -> Forgery:
    """The ensemble with all its weight on the first member, and that member."""
    text = (made.ensemble / "config.toml").read_text()
    one = Path(shutil.copytree(made.ensemble, tmp_path / "one"))
    (one / "config.toml").write_text(text.replace("weights = [0.5, 0.5]", "weights = [1.0, 0.0]"))
    again = Path(shutil.copytree(made.ensemble, tmp_path / "again"))
    line = f"certify {made.ensemble} --indices 0:2 --n 200 --members --quiet --out {tmp_path}/run"
    succeed(f"{line} --weighting {one} --weighting {again}")
    forgery = Forgery(tmp_path / "run")
    assert read_config(forgery.folder)["weightings"]["one"] == [1.0, 0.0]
    succeed(f"verify {forgery.folder}")
    return forgery


@pytest.mark.parametrize(
    ("model", "twin"),
    [("one", "digits-mlp-seed1"), ("again", "SWEEN-2")],
    ids=["member", "weights"],
)
def test_the_same_classifier_has_the_same_votes(model: str, twin: str, weighed: Forgery) -> None:
    place = next(i for i, row in enumerate(weighed.rows()) if row["model"] == model)

    def moved(row: Row) -> Row:
        counts = list(row["selection_counts"])
        ranked = sorted(range(10), key=lambda k: -counts[k])
        counts[ranked[0]] -= 1
        counts[ranked[1]] += 1
        return rederived(row | {"selection_counts": counts})

    weighed.change(moved, place)
    said = "which is the same classifier"
    assert_check_failed(
        run_line(f"verify {weighed.folder}"), "selection_counts are not those", said
    )


def test_an_exact_exit_needs_members_of_half_the_weight(made: Made, tmp_path: Path) -> None:
    line = f"certify {made.ensemble} --indices 0:2 --n 200 --exit exact --quiet"
    succeed(f"{line} --out {tmp_path}/run")
    forgery = Forgery(tmp_path / "run")
    forgery.configure(weights=[0.4, 0.6])
    succeed(f"verify {forgery.folder}")
    forgery.change(lambda row: {"member_evaluations": row["samples"] - 1}, 1)
    assert_check_failed(run_line(f"verify {forgery.folder}"), "is not between 300 and 600")


def test_scores_fit_the_votes_of_the_same_draws(made: Made, tmp_path: Path) -> None:
    line = f"certify {made.ensemble} --indices 0:1 --n 500 --votes soft --quiet"
    succeed(f"{line} --out {tmp_path}/run")
    forgery = Forgery(tmp_path / "run")
    row = forgery.rows()[0]
    votes = row["estimation_counts"][row["candidate"]]
    assert 0 < votes < 500
    for changes, said in (
        ({"estimation_scores": [1022, 500]}, "estimation_scores have 500 above 1/2, but"),
        ({"selection_scores": [1022, 100]}, "selection_scores have 100 above 1/2, but"),
        ({"estimation_scores": [90, 500]}, "estimation_scores have only 0 of 1/10 or more"),
        (
            {"estimation_scores": [200, 499, 100, 1]},
            "estimation_scores are not a histogram as sween writes it",
        ),
        (
            {"estimation_scores": [100, 0, 200, 500]},
            "estimation_scores are not a histogram as sween writes it",
        ),
    ):
        forgery.write([rederived(row | changes)])
        assert_check_failed(run_line(f"verify {forgery.folder}"), "line 1 (index 0)", said)
