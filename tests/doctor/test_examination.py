"""The description of an installation, a broken one too."""

import importlib.metadata
import json
import platform
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import sween
from sween.doctor import Examination, as_text, examination, examine, failed_checks
from sween.doctor.installation import EXTRAS, REQUIRED
from sween.doctor.self_test import CHECKS
from tests.cli.command import run_cli

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TOOLS = ("dev", "docs")


@pytest.fixture(scope="module")
def healthy() -> Examination:
    return examine()


def test_of_a_healthy_installation(healthy: Examination) -> None:
    assert failed_checks(healthy) == []
    assert list(healthy["self-test"]) == list(CHECKS)
    assert healthy["versions"]["sween"].startswith(f"{sween.__version__} in ")
    assert healthy["torch"]["torch"].startswith(healthy["packages"]["torch"].partition("+")[0])
    assert "error" not in {name for facts in healthy.values() for name in facts}
    assert healthy["data"] == {"digits": "found, in scikit-learn"}
    assert healthy["zoo"]["models"].startswith("6 with sween, ")


def test_names_the_packages_that_are_declared(healthy: Examination) -> None:
    """In pyproject.toml; an extra has one package."""
    declared = {text.split(">")[0] for text in PROJECT["dependencies"]}
    assert set(REQUIRED) == declared
    extras = PROJECT["optional-dependencies"].items()
    assert {
        extra: text.split(">")[0] for extra, (text, *_) in extras if extra not in TOOLS
    } == EXTRAS
    assert healthy["packages"]["numpy"] == importlib.metadata.version("numpy")


def test_the_text_has_every_fact_and_no_name_of_the_machine(healthy: Examination) -> None:
    text = as_text(healthy)
    for facts in healthy.values():
        for name, value in facts.items():
            assert any(
                line.split() == [*name.split(), *value.split()] for line in text.splitlines()
            )
    if len(platform.node()) > 3:
        assert platform.node() not in text


def test_the_home_folder_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, healthy: Examination
) -> None:
    home = tmp_path / "someone"
    (home / "cache").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("SWEEN_CACHE", str(home / "cache"))
    monkeypatch.setenv("PYTHONPATH", f"{home}/src:{home}")
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{home}s")  # another folder
    monkeypatch.setattr(examination, "run_probes", lambda names: {name: {} for name in names})
    found = examine()
    assert found["folders"]["cache"].startswith("~/cache: 0.0 MB in 0 files, writable, ")
    assert found["variables"]["PYTHONPATH"] == "~/src:~"
    assert found["variables"]["LD_LIBRARY_PATH"] == f"{home}s"


def test_data_sets_in_a_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(examination, "run_probes", lambda names: {name: {} for name in names})
    (tmp_path / "cifar-10-python.tar.gz").touch()
    found = examine(tmp_path)["data"]
    assert found["cifar10"] == f"found cifar-10-python.tar.gz in {tmp_path}"
    assert found["image_folder"] == f"not in {tmp_path}"


@pytest.mark.parametrize("place", ["a-file", "a-file/deep", "/proc/nowhere"])
def test_a_cache_that_cannot_be_used(
    place: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "a-file").touch()
    monkeypatch.setenv("SWEEN_CACHE", str(tmp_path / place))
    monkeypatch.setattr(examination, "run_probes", lambda names: {name: {} for name in names})
    cache = examine()["folders"]["cache"]
    assert "NOT writable" in cache or "Not a directory" in cache
    assert not (tmp_path / "a-file").stat().st_size


BROKEN = {
    "missing": ("raise ModuleNotFoundError(\"No module named 'torch'\")", "No module named"),
    "library": ("raise OSError('libcudart.so.12: cannot open')", "OSError: libcudart.so.12"),
    "crash": ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", "killed by SIGSEGV"),
    "exit": ("import sys\nsys.exit(3)", "exit code 3"),
}
"""What torch does when it is imported, and what is said about it."""


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_torch_is_named(how: str, tmp_path: Path) -> None:
    code, said = BROKEN[how]
    (tmp_path / "torch.py").write_text(code)
    command = (
        f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT / 'src')!r}]\n"
        "from sween.cli import main; sys.exit(main(['doctor', '--json']))"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", command],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("sween: check failed: self-test: random words, votes")
    assert done.stderr.count("\n") == 1
    found = json.loads(done.stdout)
    assert said in found["torch"]["error"]
    assert said in found["self-test"]["votes"]
    assert found["self-test"]["bounds and radii"] == "ok", "they need no torch"
    assert found["packages"]["torch"] == importlib.metadata.version("torch")


def test_an_extra_that_cannot_be_imported_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Such as a torchvision that was built for another torch."""
    code, said = BROKEN["library"]
    (tmp_path / "torchvision.py").write_text(code)
    (tmp_path / "torchvision-0.1.dist-info").mkdir()
    (tmp_path / "torchvision-0.1.dist-info" / "METADATA").write_text("Version: 0.1\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    run = examination.run_probes
    broken = "torchvision", "pyautoattack"
    monkeypatch.setattr(
        examination,
        "run_probes",
        lambda names: {name: {} for name in names} | run([n for n in names if n in broken]),
    )
    found = examine()["extras"]
    assert found["torchvision"].startswith("torchvision 0.1, which CANNOT be imported: ")
    assert said in found["torchvision"]
    assert found["attack"] == f"pyautoattack {importlib.metadata.version('pyautoattack')}"


@pytest.mark.slow
def test_a_probe_that_never_answers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("import time\ntime.sleep(60)")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(examination, "SECONDS", 4.0)
    found = examination.run_probes(["bounds and radii", "torch", "gpus"])
    assert found["bounds and radii"] == {"outcome": "ok"}
    assert found["torch"] == found["gpus"] == {"error": "no answer within 4 seconds"}


def test_the_command_prints_both_forms(
    monkeypatch: pytest.MonkeyPatch, healthy: Examination
) -> None:
    monkeypatch.setattr("sween.cli.doctor.examine", lambda root: healthy)
    assert run_cli("doctor") == (0, as_text(healthy), "")
    code, stdout, stderr = run_cli("doctor", "--json")
    assert (code, json.loads(stdout), stderr) == (0, healthy, "")
