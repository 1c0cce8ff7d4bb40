"""`sween predict`: labels and radii of image files."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from sween.data import load_dataset
from sween.smoothing import SmoothedClassifier
from tests.cli.command import assert_refused, run_line, succeed
from tests.cli.conftest import Made
from tests.cli.digits import write_digit


@pytest.mark.filterwarnings("ignore:n = 12 at alpha")
def test_predict(made: Made, tmp_path: Path) -> None:
    images = [tmp_path / "one.png", tmp_path / "two.bmp"]
    labels = [write_digit(images[0], 1), write_digit(images[1], 2)]
    line = f"predict {made.ensemble} {images[0]} {images[1]}"
    code, stdout, stderr = run_line(line)
    assert (code, stderr) == (0, "")
    assert stdout == f"{images[0]}\t{labels[0]}\n{images[1]}\t{labels[1]}\n"
    assert succeed(f"{line} --exit exact") == stdout
    # Few votes must nearly all agree, which they do not on a digit this hard: no guess.
    write_digit(images[0], 3)
    assert succeed(f"predict {made.ensemble} {images[0]} --n 12") == f"{images[0]}\tabstain\n"


def test_one_bad_image_is_named_before_any_is_classified(made: Made, tmp_path: Path) -> None:
    write_digit(tmp_path / "good.png")
    Image.new("RGB", (8, 8)).save(tmp_path / "bad.png")
    line = f"predict {made.ensemble} {tmp_path}/good.png {tmp_path}/bad.png"
    assert_refused(line, "bad.png", "grayscale", "--convert", watched=(tmp_path,))


def test_predict_with_a_radius(made: Made, tmp_path: Path) -> None:
    label = write_digit(tmp_path / "digit.png", 1)
    for options in ("", "--bound two-class", "--exit paper"):
        line = f"predict {made.ensemble} {tmp_path}/digit.png --certify --n 200 {options}"
        path, answer, radius = succeed(line).rstrip("\n").split("\t")
        assert (path, answer) == (f"{tmp_path}/digit.png", str(label))
        assert float(radius.removeprefix("radius ")) > 0


def test_predict_answers_for_soft_votes_too(tmp_path: Path) -> None:
    label = write_digit(tmp_path / "digit.png", 1)
    line = f"predict digits-sween3-gaussian-sigma0.50 {tmp_path}/digit.png --certify --n 2000"
    hard, soft = (succeed(f"{line} --votes {votes}") for votes in ("hard", "soft"))
    assert hard.split("\t")[1] == soft.split("\t")[1] == str(label)
    assert hard != soft


def test_predict_answers_for_the_classifier_that_exact_noise_certifies(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Digits have 16 levels, whatever file they come in; without exact noise a file has 255."""
    seen: list[tuple[str, torch.Tensor]] = []
    answer = SmoothedClassifier.predict

    def watched(self: SmoothedClassifier, images: torch.Tensor, **options: Any) -> Any:
        seen.append((self.engine.noise.name, images))
        return answer(self, images, **options)

    monkeypatch.setattr(SmoothedClassifier, "predict", watched)
    label = write_digit(tmp_path / "digit.png", 1)
    line = f"predict {made.ensemble} {tmp_path}/digit.png --noise exact"
    assert succeed(line) == f"{tmp_path}/digit.png\t{label}\n"
    ((name, images),) = seen
    assert name == "exact(levels=16)"
    assert torch.equal(images, (images * 16).round() / 16)
    assert torch.equal(images[0], load_dataset("digits").test.images([1])[0])
    Image.fromarray(np.full((8, 8), 100, np.uint8)).save(tmp_path / "grey.png")
    run_line(f"predict {made.ensemble} {tmp_path}/digit.png {tmp_path}/grey.png")
    plain = torch.from_numpy(np.array(Image.open(tmp_path / "digit.png"))) / 255
    assert torch.equal(seen[-1][1][0, 0], plain)  # one scale, whatever the pixels are
    code, _, stderr = run_line(f"predict {made.ensemble} {tmp_path}/grey.png --noise exact")
    assert code == 2
    assert "17 grey levels" in stderr
    assert "a pixel of value 100" in stderr
    assert len(stderr.splitlines()) == 1


def test_predict_takes_folders_and_writes_json(made: Made, tmp_path: Path) -> None:
    folder = tmp_path / "digits"
    (folder / "more").mkdir(parents=True)
    labels = {
        str(path): str(write_digit(path, position))
        for position, path in enumerate(
            (folder / "a.png", folder / "b.BMP", folder / "more" / "c.png"), start=1
        )
    }
    (folder / "notes.txt").write_text("not an image")
    zoo = "digits-sween3-gaussian-sigma0.50"
    records = json.loads(succeed(f"predict {zoo} {folder} --json --quiet"))
    assert [record["file"] for record in records] == sorted(labels)
    for record in records:
        assert record["answer"] in (None, labels[record["file"]])
        assert sum(record["counts"]) == record["n"] == 100
        assert (record["answer"] is None) == (record["prediction"] == -1)
    line = f"predict {zoo} {folder}/a.png --certify --n 200 --json"
    (certified,) = json.loads(succeed(line))
    assert sum(certified["estimation_counts"]) == 200
    assert certified["radius"] > 0
    assert (certified["exit"], certified["member_evaluations"]) == ("none", 3 * 300)
    # The exit that is asked for is the one that answers: it evaluates fewer members.
    (early,) = json.loads(succeed(f"{line} --exit exact"))
    assert early["exit"] == "exact"
    assert 300 <= early["member_evaluations"] < 3 * 300
    code, _, stderr = run_line(f"predict {made.ensemble} {made.base}/ensemble")
    assert code == 2
    assert "a folder with images" in stderr


def test_a_prediction_takes_a_fresh_seed_unless_one_is_given(made: Made, tmp_path: Path) -> None:
    write_digit(tmp_path / "digit.png", 3)
    line = f"predict {made.ensemble} {tmp_path}/digit.png --json"
    first, second = (json.loads(succeed(line))[0] for _ in range(2))
    assert first["seed"] != second["seed"]
    assert json.loads(succeed(f"{line} --seed 7"))[0]["seed"] == 7


@pytest.mark.parametrize("options", ["", "--certify --n 200"])
def test_with_a_seed_neither_name_nor_place_changes_an_answer(
    made: Made, tmp_path: Path, options: str
) -> None:
    files = [tmp_path / name for name in ("a.png", "b.png", "c.png")]
    for position, path in enumerate(files[:2]):
        write_digit(path, position + 3)
    shutil.copy(files[0], files[2])
    line = f"predict {made.ensemble} {{}} --seed 1 --json --quiet {options}"
    counts = dict[str, list[int]]()
    for order in (files, files[::-1], files[1:2]):
        for record in json.loads(succeed(line.format(" ".join(map(str, order))))):
            votes = record.get("estimation_counts", record.get("counts"))
            assert counts.setdefault(record["file"], votes) == votes
            assert 0 <= record["index"] < 2**53  # as JSON's readers give it back
    assert counts[str(files[0])] == counts[str(files[2])]
    assert counts[str(files[0])] != counts[str(files[1])]


def test_a_folder_s_links_are_followed_and_its_hidden_files_are_not_images(
    made: Made, tmp_path: Path
) -> None:
    folder, elsewhere = tmp_path / "images", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    write_digit(folder / "a.png", 1)
    write_digit(elsewhere / "b.png", 2)
    (folder / "linked").symlink_to(elsewhere)
    (folder / "._a.png").write_bytes(b"x")
    lines = succeed(f"predict {made.ensemble} {folder}").splitlines()
    assert [line.partition("\t")[0] for line in lines] == [
        f"{folder}/a.png",
        f"{folder}/linked/b.png",
    ]
