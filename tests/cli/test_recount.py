"""`sween verify --recount`: what a folder alone cannot show, by counting again."""

from collections.abc import Callable
from pathlib import Path

import pytest

import sween
from sween.run_folder import read_config
from sween.smoothing import recount_folder
from tests.cli.command import assert_check_failed, assert_refused, run_line, succeed
from tests.cli.conftest import Made
from tests.cli.forging import Forgery, Row, all_votes_for, rederived
from tests.smoothing import small

MODES = {
    "members": "--n 200 --members --exit exact --exit paper",
    "two-class": "--n 200 --bound two-class --exit paper --exit-threshold 0.9",
    "soft": "--n 300 --votes soft",
    "exact noise": "--n 200 --noise exact --seed 5",
    "fewer rows": "--n 200 --forward-rows 100 --precision bfloat16",
    "decide": "--n 1000 --sampling decide --radius 0.1 --radius 0.3",
    "tolerance": "--n 3000 --sampling tolerance --tolerance 0.2",
    "budget": "--n 2000 --sampling budget --budget 8000",
}


@pytest.mark.parametrize("mode", MODES)
def test_an_honest_run_comes_out_again(mode: str, made: Made, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    succeed(f"certify {made.ensemble} --indices 1:9:2 {MODES[mode]} --quiet --out {folder}")
    line = f"verify {folder} --model {made.ensemble} --quiet --recount"
    models = 4 if mode == "members" else 1
    first, second = succeed(f"{line} all").splitlines()
    assert first.startswith(f"{4 * models} rows re-derived: 4 images")
    wanted = f"{4 * models} rows of 4 images (all: 1:8:2) recounted: all votes are identical"
    assert second == wanted
    again = succeed(f"{line} 2 --seed 3").splitlines()[1]
    assert again.startswith(f"{2 * models} rows of 2 images (chosen by --seed 3: ")


def test_the_choice_is_fresh_and_is_told(made: Made) -> None:
    line = f"verify {made.certificates} --model {made.ensemble} --quiet --recount 3"
    told = [succeed(line).splitlines()[1] for _ in range(4)]
    assert len(set(told)) > 1, "one of 20 choices, four times the same"
    seed = told[0].partition("--seed ")[2].partition(":")[0]
    assert succeed(f"{line} --seed {seed}").splitlines()[1] == told[0]


def test_an_ensemble_of_the_zoo_is_found_by_its_fingerprint(tmp_path: Path) -> None:
    name = "digits-sween3-gaussian-sigma0.50"
    succeed(f"certify {name} --indices 0:2 --n 200 --quiet --out {tmp_path}/run")
    assert "2 rows of 2 images (all: 0,1)" in succeed(
        f"verify {tmp_path}/run --recount all --quiet"
    )


def test_a_module_of_ones_own_is_recounted_in_python(tmp_path: Path) -> None:
    smoothed = small.smoothed()
    data = small.images(2), [0, 1]
    sween.certify_dataset(smoothed, data, out=tmp_path / "run", n=200, quiet=True)
    line = f"verify {tmp_path / 'run'} --recount all"
    assert_refused(line, "--model", "recount_folder in Python", watched=(tmp_path,))


def swapped(forgery: Forgery) -> None:
    """The certificates of two images, each said to be the other's."""
    forgery.change(lambda row: {"index": {0: 1, 1: 0}.get(row["index"], row["index"])})


def reseeded(forgery: Forgery) -> None:
    forgery.change(lambda row: {"seed": 1})
    forgery.configure(seed=1)


def another_sigma(forgery: Forgery) -> None:
    forgery.change(lambda row: rederived(row | {"sigma": 1.0}))
    forgery.configure(sigma=1.0)


FORGERIES: dict[str, tuple[Callable[[Forgery], None], str]] = {
    "labels": (
        lambda forgery: forgery.change(lambda row: {"label": (row["label"] + 1) % 10}),
        "label ",
    ),
    "invented votes": (
        lambda forgery: forgery.change(lambda row: all_votes_for(row["label"], row)),
        "estimation_counts [",
    ),
    "swapped images": (swapped, "selection_counts ["),
    "another seed": (reseeded, "selection_counts ["),
    "another sigma": (another_sigma, "_counts ["),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_what_a_folder_cannot_show_is_found(name: str, made: Made, forgery: Forgery) -> None:
    alter, said = FORGERIES[name]
    alter(forgery)
    succeed(f"verify {forgery.folder}")
    line = f"verify {forgery.folder} --model {made.ensemble} --recount all --quiet"
    assert_check_failed(run_line(line), "line ", "(index ", said, ", recounted ")


def test_rows_of_one_member_under_the_name_of_another_are_found(made: Made, tmp_path: Path) -> None:
    """Consistently, so that nothing in the folder contradicts itself."""
    folder = tmp_path / "run"
    succeed(f"certify {made.ensemble} --indices 0:3 --n 200 --members --quiet --out {folder}")
    forgery, (first, second, *_) = Forgery(folder), read_config(folder)["candidates"]
    exchanged = {first: second, second: first}
    names = [exchanged.get(name, name) for name in read_config(folder)["candidates"]]
    forgery.change(lambda row: {"model": exchanged.get(row["model"], row["model"])})
    forgery.configure(candidates=names, members=names)
    succeed(f"verify {folder}")
    line = f"verify {folder} --model {made.ensemble} --recount 1 --quiet"
    assert_check_failed(run_line(line), "candidates", "of the model")
    loaded, digits = sween.load(made.ensemble), sween.load_dataset("digits")
    recount_folder(folder, loaded, digits, images=1, member_names=names, quiet=True)


def test_pilots_of_images_that_were_not_chosen_are_counted_too(made: Made, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    options = "--n 2000 --sampling budget --budget 6000"
    succeed(f"certify {made.ensemble} --indices 0:3 {options} --quiet --out {folder}")
    forgery = Forgery(folder)

    def exchanged(row: Row) -> Row:
        """Two votes for the last classes change places: no size or radius hangs on them."""
        counts = row["selection_counts"]
        low = sorted(range(10), key=lambda k: counts[k])
        other = next(k for k in low if counts[k] != counts[low[0]])
        changed = list(counts)
        changed[low[0]], changed[other] = counts[other], counts[low[0]]
        return {"selection_counts": changed}

    for place in range(3):
        forgery.change(exchanged, place)
    succeed(f"verify {folder}")
    line = f"verify {folder} --model {made.ensemble} --recount 1 --quiet"
    assert_check_failed(run_line(line), "line 1 (index 0)", "selection_counts [")


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ("--model {run} --recount 2", ("that were certified", "fingerprint")),
        ("--recount 2", ("--model", "no zoo model has that fingerprint")),
        ("--recount some", ("a number of images, or all", "got some")),
        ("--recount 0", ("a number of images, or all", "got 0")),
        ("--model {ensemble}", ("add --recount",)),
        ("--device cpu", ("add --recount",)),
        ("--model {ensemble} --recount 2 --device tpu", ("--device", "try auto")),
    ],
)
def test_what_cannot_be_recounted_is_one_line(
    options: str, parts: tuple[str, ...], made: Made, tmp_path: Path
) -> None:
    line = made.fill(f"verify {{certificates}} {options}", tmp_path)
    assert_refused(line, *parts, watched=(tmp_path,))


CONFIGS: dict[str, tuple[dict[str, object], tuple[str, ...]]] = {
    "other data": ({"data": "0" * 64}, ("data 00000000...", "--data-root")),
    "another device": ({"device": "cuda"}, ("expected cuda", "got cpu")),
    "no device": ({"device": None}, ("the kind of device", "no device")),
    "another arithmetic": ({"precision": "tf32"}, ("expected tf32", "got float32")),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_another_machine_or_other_data(
    name: str, made: Made, forgery: Forgery, tmp_path: Path
) -> None:
    changes, parts = CONFIGS[name]
    forgery.change(lambda row: {key: value for key, value in changes.items() if key in row})
    forgery.configure(**changes)
    line = f"verify {forgery.folder} --model {made.ensemble} --recount 1 --device cpu --quiet"
    assert_refused(line, *parts, watched=(tmp_path,))


def test_rows_after_running_out_of_memory_are_counted_in_their_own_shape(
    made: Made, tmp_path: Path
) -> None:
    """The run went on with half the rows from its third image on."""
    whole, half = tmp_path / "run", tmp_path / "half"
    line = f"certify {made.ensemble} --indices 0:4 --n 200 --quiet"
    succeed(f"{line} --out {whole}")
    succeed(f"{line} --forward-rows 250 --out {half}")
    forgery = Forgery(whole)
    forgery.write([*forgery.rows()[:2], *Forgery(half).rows()[2:]])
    assert {row["forward_rows"] for row in forgery.rows()} == {500, 250}
    succeed(f"verify {whole} --model {made.ensemble} --recount all --quiet")


def test_attacks_are_not_recounted(made: Made, tmp_path: Path) -> None:
    options = "--eps 0.25 --attack pgd --samples 4 --steps 2 --n 200 --indices 0:1 --quiet"
    succeed(f"attack {made.ensemble} {options} --out {tmp_path}/out")
    line = f"verify {tmp_path}/out --recount 1"
    assert_refused(line, "written by sween attack", "leave --recount out", watched=(tmp_path,))
