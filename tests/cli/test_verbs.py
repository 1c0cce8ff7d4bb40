"""Every verb on its happy path: results on standard output, progress on standard error."""

import json
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
import typer

import sween
from sween.cli.app import app
from sween.errors import SmallSampleWarning
from sween.models import load_checkpoint, read_manifest
from sween.run_folder import read_config
from tests.cli.command import assert_refused, run_cli, run_line, succeed
from tests.cli.conftest import IMAGES, Made
from tests.cli.rows import rows_of

VERBS = (
    *("demo", "train", "weigh", "quantize", "certify", "predict", "attack"),
    *("report", "verify", "plan", "zoo", "bench", "reproduce", "doctor"),
)
THEOREM = "--eta 0.05 --lipschitz 1 --classes 10 --phi-norm 2 --beta 2.51"


def test_version() -> None:
    assert run_cli("--version") == (0, f"sween {sween.__version__}\n", "")


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_help_names_every_verb(arguments: list[str]) -> None:
    code, stdout, stderr = run_cli(*arguments)
    assert (code, stderr) == (0, "")
    for verb in VERBS:
        assert f"  {verb} " in stdout
    assert "..." not in stdout.partition("Commands")[2], "a summary is cut"


@pytest.mark.parametrize("columns", ["80", "120"])
@pytest.mark.parametrize("verb", VERBS)
def test_help_of_a_verb_is_whole(verb: str, columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No bracket is taken for markup, and no word is cut."""
    monkeypatch.setenv("COLUMNS", columns)
    code, stdout, stderr = run_cli(verb, "--help")
    assert (code, stderr) == (0, "")
    shown = "".join(stdout.split())
    command = typer.main.get_command(app).commands[verb]  # type: ignore[attr-defined]
    for text in (f"sween {verb}", *(option.help for option in command.params)):
        assert "".join(text.split()) in shown, text


def test_as_a_module() -> None:
    command = [sys.executable, "-m", "sween", "certfy"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("sween: error: No such command 'certfy'")
    assert done.stderr.count("\n") == 1


def test_train(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "run"
    line = f"train --dataset digits --arch digits-conv --sigma 0.25 --epochs 2 --seed 3 --out {out}"
    code, stdout, stderr = run_line(line)
    assert (code, stdout) == (0, f"trained digits-conv on digits at sigma 0.25 into {out}\n")
    assert "train digits-conv seed 3 18/18" in stderr
    metrics = [json.loads(row) for row in (out / "metrics.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in metrics] == [1, 2]
    manifest = read_manifest(out)
    assert (manifest.arch, manifest.sigma, manifest.training["seed"]) == ("digits-conv", 0.25, 3)
    code, stdout, stderr = run_line(f"{line} --quiet")
    assert (code, stderr, stdout.startswith("already trained")) == (0, "", True)
    assert read_manifest(out).fingerprint == manifest.fingerprint


def test_train_into_half_the_bytes(tmp_path: Path) -> None:
    """What --store float16 saves is rounded, loads as float32 and is what gets weighed."""
    line = "train --dataset digits --arch digits-mlp --sigma 0.5 --epochs 2 --quiet --out"
    whole, half = (tmp_path / store for store in ("float32", "float16"))
    for folder in (whole, half):
        succeed(f"{line} {folder} --store {folder.name}")
    stored = load_checkpoint(half)[0].state_dict()
    for name, one in load_checkpoint(whole)[0].state_dict().items():
        rounded = one.half().to(one.dtype) if one.is_floating_point() else one
        assert stored[name].dtype == one.dtype, name
        assert torch.equal(stored[name], rounded), name
    sizes = [(folder / "model.safetensors").stat().st_size for folder in (whole, half)]
    assert sizes[1] < 0.55 * sizes[0]


@pytest.mark.parametrize("method", ["convex", "sgd", "uniform"])
def test_weigh(method: str, made: Made, tmp_path: Path) -> None:
    line = made.fill(f"weigh {{runs}} --method {method} --samples 3 --out {{out}}", tmp_path)
    code, stdout, stderr = run_line(line)
    assert code == 0
    assert stderr, "progress"
    *members, last = (row.split() for row in stdout.splitlines())
    assert [name for name, _ in members] == ["digits-mlp-seed1", "digits-mlp-seed2"]
    assert last[0] == "loss"
    shown = [float(weight) for _, weight in members]
    assert sum(shown) == pytest.approx(1, abs=1e-5)
    config = read_config(tmp_path / "out")
    assert config["weights"] == pytest.approx(shown, abs=1e-6)
    assert config["method"] == method
    # The same command replaces an older ensemble, and leaves nothing else.
    names = {path.relative_to(tmp_path) for path in tmp_path.rglob("*")}
    assert succeed(f"{line} --quiet").splitlines()[0] == stdout.splitlines()[0]
    assert {path.relative_to(tmp_path) for path in tmp_path.rglob("*")} == names


def test_certify_by_indices(made: Made, tmp_path: Path) -> None:
    line = made.fill(
        f"certify {{ensemble}} --indices 0:{IMAGES} --n 200 --members --out {{out}}", tmp_path
    )
    code, stdout, stderr = run_line(line)
    assert code == 0
    title, heading, *models, last = stdout.splitlines()
    assert title == f"certified accuracy in % at l2 radius, over {IMAGES} images:"
    assert heading.split()[:2] == ["model", "0.00"]
    assert heading.split()[-2:] == ["ACR", "abstain"]
    names = ["digits-mlp-seed1", "digits-mlp-seed2", "SWEEN-2"]
    assert [line.split()[0] for line in models] == names
    assert last == f"18 certificates written, {IMAGES} images in {tmp_path}/out"
    assert "certify SWEEN-2 1800/1800" in stderr
    assert rows_of(tmp_path / "out") == rows_of(made.certificates)
    # The table is of all rows, also of those that an earlier call wrote.
    code, again, stderr = run_line(line)
    assert (code, stderr) == (0, "")
    assert again == stdout.replace("18 certificates", "0 certificates")


def test_certify_with_another_weighting(made: Made, tmp_path: Path) -> None:
    """The same members with other weights, in the same pass, in their own order."""
    runs = " ".join(str(run) for run in reversed(made.runs))
    succeed(f"weigh {runs} --method convex --samples 3 --quiet --out {tmp_path}/convex")
    line = f"certify {made.ensemble} --indices 0:{IMAGES} --n 200 --members --quiet"
    succeed(f"{line} --weighting {tmp_path}/convex --out {tmp_path}/out")
    rows = rows_of(tmp_path / "out")
    names = ["digits-mlp-seed1", "digits-mlp-seed2", "convex", "SWEEN-2"]
    assert [row["model"] for row in rows[:4]] == names
    assert [row["estimation_counts"] for row in rows if row["model"] != "convex"] == [
        row["estimation_counts"] for row in rows_of(made.certificates)
    ]
    weights = read_config(tmp_path / "convex")["weights"]
    assert read_config(tmp_path / "out")["weightings"] == {"convex": weights[::-1]}
    assert succeed(f"verify {tmp_path}/out").startswith("24 rows re-derived: 6 images, 4 models")
    assert "convex" in succeed(f"report {tmp_path}/out --out {tmp_path}/report")


def test_certify_with_several_exits(made: Made, tmp_path: Path) -> None:
    """One pass counts the full ensemble and its exits; the table says what they save."""
    line = f"certify {made.ensemble} --indices 0:{IMAGES} --n 200 --members --quiet"
    exits = "--exit none --exit exact --exit paper --exit-threshold 0.3"
    succeed(f"{line} {exits} --out {tmp_path}/out")
    rows = rows_of(tmp_path / "out")
    names = ["SWEEN-2+exact", "SWEEN-2+paper", "SWEEN-2"]
    assert [row["model"] for row in rows[2:5]] == names
    exact, paper, full = ([row for row in rows if row["model"] == name] for name in names)
    counts = [[row["estimation_counts"] for row in own] for own in (exact, full)]
    assert counts[0] == counts[1]
    assert all(row["member_evaluations"] == 600 for row in full)
    assert sum(row["member_evaluations"] for row in paper) < 600 * IMAGES
    assert succeed(f"verify {tmp_path}/out").startswith("30 rows re-derived: 6 images, 5 models")
    report = succeed(f"report {tmp_path}/out --out {tmp_path}/report")
    plain = report.replace("**", "")
    assert re.search(r"\| SWEEN-2 \| none \| [0-9.]+ \| 600 \| 2\.00 \|", plain)
    assert re.search(r"\| SWEEN-2\+paper \| paper\(.*\) \| [0-9.]+ \| \d+ \| 1\.\d\d \|", plain)
    mixed = "--exit 'mixed(threshold=0.9,share=0.7)' --exit 'mixed(threshold=0.5,share=0.7)'"
    succeed(f"{line} {mixed} --exit 'mixed(threshold=0.6,share=1.0)' --out {tmp_path}/mixed")
    assert "5 models" in succeed(f"verify {tmp_path}/mixed")
    ignored = f"{line} --exit-threshold 0.5 --out {tmp_path}/ignored"
    assert_refused(ignored, "--exit-threshold", "--exit none", watched=(tmp_path,))
    line = f"{line} --exit none --exit none --out {tmp_path}/twice"
    assert_refused(line, "a different exit each", "none 2 times", watched=(tmp_path,))


def test_a_weighting_of_other_members_or_of_a_name_that_is_taken(
    made: Made, tmp_path: Path
) -> None:
    succeed(f"weigh {made.runs[0]} --method uniform --samples 2 --quiet --out {tmp_path}/other")
    shutil.copytree(made.ensemble, tmp_path / "SWEEN-2")
    line = f"certify {made.ensemble} --all --out {tmp_path}/out --weighting {tmp_path}"
    assert_refused(f"{line}/other", "the same members: digits-mlp-seed1", watched=(tmp_path,))
    assert_refused(f"{line}/SWEEN-2", "rename the folder", watched=(tmp_path,))


def test_certify_every_so_many(made: Made, tmp_path: Path) -> None:
    succeed(made.fill("certify {run} --every 60 --n 100 --quiet --out {out}", tmp_path))
    assert [row["index"] for row in rows_of(tmp_path / "out")] == list(range(0, 360, 60))
    assert {row["model"] for row in rows_of(tmp_path / "out")} == {"digits-mlp"}
    assert read_config(tmp_path / "out")["indices"] == "0:301:60"


def test_certify_all(made: Made, tmp_path: Path) -> None:
    checkpoint = made.runs[0] / "model.safetensors"
    said = succeed(f"certify {checkpoint} --all --n0 10 --n 100 --quiet --out {tmp_path}/out")
    assert "\n360 certificates written, 360 images" in said
    assert succeed(f"verify {tmp_path}/out").startswith(
        "360 rows re-derived: 360 images, 1 model ("
    )


def test_a_small_n_is_warned_about_in_one_line(made: Made, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always", SmallSampleWarning)
        line = made.fill("certify {run} --indices 1 --n 20 --quiet --out {out}", tmp_path)
        code, stdout, stderr = run_line(line)
    assert code == 0
    assert "\n1 certificates written" in stdout
    assert stderr.startswith("sween: warning: n = 20 at alpha = 0.001 certifies only images")
    assert stderr.count("\n") == 1


def test_report(made: Made, tmp_path: Path) -> None:
    line = made.fill("report {certificates} --radius 0.1 --radius 0 --out {out}", tmp_path)
    code, stdout, stderr = run_line(line)
    assert (code, stderr) == (0, "")
    text, _, page = stdout.rstrip("\n").rpartition("\n")
    assert text.rstrip("\n") == (tmp_path / "out/report.md").read_text().rstrip("\n")
    assert page == f"The page is {tmp_path}/out/report.html"
    assert "SWEEN-2" in stdout


def test_plan_in_its_three_modes() -> None:
    required = succeed(f"plan --epsilon 0.1 {THEOREM}")
    achieved = succeed(f"plan --members 100 --images 1000 --samples 100 {THEOREM}")
    expected = succeed("plan --p 0.9 --n 1000")
    both = succeed("plan --p 0.9 --n 1000 --runner-up 0.05 --sigma 0.25 --alpha 0.01")
    answers = [required, achieved, expected, both]
    assert len(set(answers)) == 4
    assert all(len(answer) > 100 for answer in answers)


def test_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sween.demo.CANDIDATES", (("digits-mlp", 2, 0.1), ("digits-conv", 2, 0.1)))
    code, stdout, stderr = run_line(f"demo --n 100 --seed 5 --out {tmp_path}/demo")
    assert code == 0
    assert stdout.startswith("# Certified robustness")
    assert f"sween verify {tmp_path}/demo/certificates" in stdout
    tasks = [line.split()[0] for line in stderr.splitlines()]  # more lines on a slow machine
    assert list(dict.fromkeys(tasks)) == ["train", "descend", "certify"]
    assert succeed(f"verify {tmp_path}/demo/certificates").startswith("1080 rows re-derived")
    assert (tmp_path / "demo/report/report.md").is_file()
    page = tmp_path / "demo/report/report.html"
    assert page.is_file()
    assert str(page) in stdout
