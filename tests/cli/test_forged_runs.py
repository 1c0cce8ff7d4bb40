"""Runs that contradict themselves are found by verify, and refused by whoever else reads them."""

import gzip
import lzma
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sween.errors import CheckpointError
from sween.records import to_line
from sween.run_folder import read_config, to_toml
from sween.runs import verify_folder
from sween.runs.subject import subject_problems
from tests.cli.command import assert_refused, succeed
from tests.cli.conftest import IMAGES, Made
from tests.cli.forging import Forgery, Row, all_votes_for, moved, rederived
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
    assert said in forgery.refused()


@pytest.mark.parametrize("reader", READERS)
def test_rows_do_not_belong_to_an_edited_config(
    reader: str, made: Made, forgery: Forgery, tmp_path: Path
) -> None:
    """Not even if the command fits it."""
    one_more_image(forgery)
    line = READERS[reader].replace(f"0:{IMAGES}", "0:7")
    line = line.format(ensemble=made.ensemble, folder=forgery.folder, tmp=tmp_path)
    assert_refused(line, "line 1 (index 0)", "a run of another config", watched=(tmp_path,))


def half_a_line(forgery: Forgery) -> None:
    lines = forgery.path.read_bytes().splitlines(keepends=True)
    forgery.path.write_bytes(b"".join([*lines[:3], lines[3][:100] + b"\n", *lines[4:]]))


def pack(forgery: Forgery) -> None:
    packed = forgery.path.with_suffix(".jsonl.gz")
    packed.write_bytes(gzip.compress(forgery.path.read_bytes()))
    forgery.path.unlink()


def pack_smaller(forgery: Forgery) -> None:
    packed = forgery.path.with_suffix(".jsonl.xz")
    packed.write_bytes(lzma.compress(forgery.path.read_bytes()))
    forgery.path.unlink()


@pytest.mark.parametrize(
    ("alter", "parts"),
    [
        (half_a_line, ("line 4", "delete that line")),
        (pack, ("jsonl.gz", "gunzip")),
        (pack_smaller, ("jsonl.xz", "unxz")),
    ],
)
def test_a_damaged_or_packed_run_is_not_resumed(
    alter: Callable[[Forgery], None], parts: tuple[str, ...], made: Made, forgery: Forgery
) -> None:
    alter(forgery)
    line = CERTIFY.format(ensemble=made.ensemble, folder=forgery.folder)
    assert_refused(line, *parts, watched=(forgery.folder,))


def test_an_honest_stopped_run_is_reported_and_resumed(
    made: Made, forgery: Forgery, tmp_path: Path
) -> None:
    stopped(forgery)
    said = succeed(f"report {forgery.folder} --out {tmp_path}/report")
    assert f"Incomplete: {IMAGES - 1} of the {IMAGES}" in said
    succeed(CERTIFY.format(ensemble=made.ensemble, folder=forgery.folder))
    assert rows_of(forgery.folder) == rows_of(made.certificates)


def test_counts_of_fewer_classes_than_the_data_set_has(forgery: Forgery) -> None:
    def fewer_classes(row: Row) -> Row:
        """Two classes: the most frequent and the rest."""
        selection, estimation = row["selection_counts"], row["estimation_counts"]
        one = max(range(10), key=lambda k: selection[k])
        changes = {
            "candidate": 0,
            "label": 0,
            "selection_counts": [selection[one], row["n0"] - selection[one]],
            "estimation_counts": [estimation[one], row["n"] - estimation[one]],
        }
        return rederived(row | changes)

    forgery.change(fewer_classes)
    assert "counts are of 2 classes" in forgery.refused()


CONFIGS: dict[str, tuple[dict[str, object], str]] = {
    "labels taken away": ({"labels": "none"}, "labels is 'none'"),
    "fewer images than indices": ({"images": 5}, "images is 5"),
    "indices beyond the data set": ({"indices": "355:361"}, "a split of 360 images"),
    "a quintillion indices": ({"indices": "0:999999999999999999"}, "at most 360 test images"),
    "a quintillion of unknown data": (
        {"indices": "0:999999999999999999", "dataset": "image_folder"},
        "at most 10,000,000 test images",
    ),
    "indices in another spelling": ({"indices": "0:3,3:6"}, "which sween writes as '0:6'"),
    "an index twice": ({"indices": "0:6,5"}, "5 twice"),
    "skipped and certified": ({"skipped": "5:8"}, "image 5 is among both"),
    "skipped files of embedded data": ({"skipped": "50"}, "skipped is '50'"),
    "skipped beyond the data set": ({"skipped": "900"}, "a split of 360 images"),
    "skipped as a number": ({"skipped": 5}, "skipped is 5"),
    "weights that do not sum to 1": ({"weights": [0.5, 0.6]}, "sum 1.1"),
    "a negative weight": ({"weights": [1.5, -0.5]}, "-0.5"),
    "more weights than members": ({"weights": [0.5, 0.25, 0.25]}, "2 numbers"),
    "weights that are text": ({"weights": ["a", "b"]}, "weights are ['a', 'b']"),
    "a weighting off the simplex": ({"weightings": {"w": [2.0, 3.0]}}, "w: weights"),
    "a candidate twice": ({"candidates": ["a", "a"]}, "candidates are ['a', 'a']"),
    "members that are not the candidates": ({"members": ["digits-mlp-seed1"]}, "members is"),
    "another device": ({"device": "tpu"}, "device is 'tpu'"),
    "an unknown arithmetic": ({"precision": "float8"}, "'float8'"),
    "an unknown way to prepare": ({"precision": "float16+magic"}, "'float16+magic'"),
    "no way to prepare": ({"precision": "float16+"}, "'float16+'"),
    "an arithmetic too many": ({"precision": "float32, tf32, tf32"}, "precision is of 3"),
    "no rows in a forward pass": ({"forward_rows": 0}, "forward_rows is 0"),
    "another grid": ({"noise": "exact(levels=255)"}, "noise is 'exact(levels=255)'"),
    "the training images": ({"split": "train"}, "split is 'train'"),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_configs_that_no_run_has(name: str, forgery: Forgery) -> None:
    """With tags and checksums made to fit."""
    changes, said = CONFIGS[name]
    forgery.configure(**changes)
    found = forgery.refused()
    assert "config.toml: " in found
    assert said in found


@pytest.mark.parametrize("name", ["float32", "tf32", "float16", "bfloat16", "int8"])
@pytest.mark.parametrize("way", ["", "+fused", "+compiled", "+cudnn+compiled", "+cudnn"])
def test_every_arithmetic_of_a_gpu_is_known(name: str, way: str, made: Made) -> None:
    config = read_config(made.certificates)
    for precision in (f"{name}{way}", f"float32, {name}{way}"):
        assert not subject_problems({**config, "precision": precision})


@pytest.mark.parametrize("value", ["nan", "1979-05-27"])
def test_a_config_that_cannot_be_named(value: str, forgery: Forgery) -> None:
    path = forgery.folder / "config.toml"
    path.write_text(f"odd = {value}\n{path.read_text()}")
    with pytest.raises(CheckpointError, match=r"config\.toml"):
        verify_folder(forgery.folder)


SETTINGS = ("model", "indices", "exit", "n0", "n", "alpha", "sigma", "bound", "seed")
BAD_SETTINGS = {**dict.fromkeys(SETTINGS), "sampling": 1, "members": 3}


@pytest.mark.parametrize("name", BAD_SETTINGS)
def test_a_config_without_a_setting_verifies_nothing(name: str, forgery: Forgery) -> None:
    forgery.configure(**{name: BAD_SETTINGS[name]})
    with pytest.raises(CheckpointError, match=rf"config\.toml: .*\b{name}\b.*restore"):
        verify_folder(forgery.folder)


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

    counts = weighed.rows()[place]["selection_counts"]
    ranked = sorted(range(10), key=lambda k: -counts[k])
    other = {"selection_counts": moved(counts, ranked[0], ranked[1])}
    weighed.change(lambda row: rederived(row | other), place)
    assert f"selection_counts are not those of {twin}" in weighed.refused()


def test_an_exact_exit_needs_members_of_half_the_weight(made: Made, tmp_path: Path) -> None:
    line = f"certify {made.ensemble} --indices 0:2 --n 200 --exit exact --quiet"
    succeed(f"{line} --out {tmp_path}/run")
    forgery = Forgery(tmp_path / "run")
    forgery.configure(weights=[0.4, 0.6])
    succeed(f"verify {forgery.folder}")
    forgery.change(lambda row: {"member_evaluations": row["samples"] - 1}, 1)
    assert "is not between 300 and 600" in forgery.refused()


def test_scores_fit_the_votes_of_the_same_draws(made: Made, tmp_path: Path) -> None:
    line = f"certify {made.ensemble} --indices 0:1 --n 500 --votes soft --quiet"
    succeed(f"{line} --out {tmp_path}/run")
    forgery = Forgery(tmp_path / "run")
    row = forgery.rows()[0]
    votes = row["estimation_counts"][row["candidate"]]
    assert 0 < votes < 500
    for changes, said in (
        ({"estimation_scores": [1022, 500]}, "estimation_scores have 500 above 1/2"),
        ({"selection_scores": [1022, 100]}, "selection_scores have 100 above 1/2"),
        ({"estimation_scores": [90, 500]}, "estimation_scores have only 0 of 1/10 or more"),
        ({"estimation_scores": [200, 499, 100, 1]}, "estimation_scores are not a histogram"),
        ({"estimation_scores": [100, 0, 200, 500]}, "estimation_scores are not a histogram"),
    ):
        forgery.write([rederived(row | changes)])
        assert said in forgery.refused()
