"""Compiled code is kept on disk, and the compiler's output goes to a log file."""

import logging
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from sween.engine import compile_cache
from sween.engine.compile_cache import FOLDER_VARIABLE, compiled_folder, compiling
from sween.errors import PreparationWarning
from sween.paths import CACHE_VARIABLE
from tests.cli.command import run_line

CPU = torch.device("cpu")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    return compiled_folder(CPU)


def test_nothing_that_a_compiler_says_reaches_the_terminal(
    folder: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="sween")
    with compiling("compiling a network", CPU):
        sys.stdout.write("AUTOTUNE convolution\n")
        sys.stderr.write("triton_convolution 0.1 ms\n")
        os.write(2, b"ptxas warning\n")
        subprocess.run([sys.executable, "-c", "print('child')"], check=True)
    sys.stderr.write("afterwards\n")
    assert capfd.readouterr() == ("", "afterwards\n")
    log = folder / "compile.log"
    said = log.read_text()
    for line in ("compiling a network", "AUTOTUNE", "triton_", "ptxas", "child"):
        assert line in said
    (message,) = caplog.messages
    assert str(log) in message


def test_output_comes_back_after_an_error(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError), compiling("a network", CPU):
        raise RuntimeError("no compiler here")
    os.write(2, b"afterwards\n")
    assert capfd.readouterr().err == "afterwards\n"
    assert folder.is_dir()


def test_where_torch_keeps_its_results(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with compiling("a network", CPU):
        assert os.environ[FOLDER_VARIABLE] == str(folder)
    assert FOLDER_VARIABLE not in os.environ
    monkeypatch.setenv(FOLDER_VARIABLE, compile_cache.TORCHS_OWN + "me")  # as torch itself does
    with compiling("a network", CPU):
        assert os.environ[FOLDER_VARIABLE] == str(folder)
    monkeypatch.setenv(FOLDER_VARIABLE, "/somewhere/else")
    with compiling("a network", CPU):
        assert os.environ[FOLDER_VARIABLE] == "/somewhere/else"
    assert os.environ[FOLDER_VARIABLE] == "/somewhere/else"


def test_the_folder_is_that_of_the_version_and_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H200 / 7")
    one = compiled_folder(torch.device("cuda"))
    assert one.name == f"torch-{torch.__version__}-NVIDIA-H200-7"
    assert one != compiled_folder(CPU)


def test_without_a_cache_folder_it_compiles_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "file"))
    done = False
    with (
        pytest.warns(PreparationWarning, match="not cached: .*SWEEN_CACHE"),
        compiling("a network", CPU),
    ):
        done = True
    assert done


def test_a_long_log_starts_anew(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_cache, "MAX_LOG_BYTES", 100)
    for _ in range(20):
        with compiling("a network", CPU):
            pass
    assert 0 < (folder / "compile.log").stat().st_size < 200


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("quiet", [False, True])
def test_the_command_line_says_what_it_prepares(
    quiet: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", lambda module, **_: module)
    line = f"certify digits-sween3-gaussian-sigma0.50 --indices 0 --n 100 --out {tmp_path / 'out'}"
    outcome = run_line(f"{line} --compile" + (" --quiet" if quiet else ""))
    assert outcome.code == 0, outcome.stderr
    said = "preparing SWEEN-3, network 3 of 3 (8x8 px) on cpu"
    assert (said in outcome.stderr) is not quiet
    assert outcome.stderr.count("compile.log") == (0 if quiet else 1), "named once"


@pytest.mark.slow
def test_the_next_process_finds_what_was_compiled(tmp_path: Path) -> None:
    script = """
        import torch, sween
        from torch._dynamo.utils import counters
        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
        smoothed = sween.SmoothedClassifier(model, sigma=0.5, num_classes=10, compile="max")
        smoothed.engine.prepare(torch.rand(1, 8, 8))
        assert smoothed.engine.precision == "float32+compiled"
        print(counters["inductor"]["fxgraph_cache_miss"])
    """
    environment = {**os.environ, CACHE_VARIABLE: str(tmp_path), "TMPDIR": str(tmp_path)}
    environment.pop(FOLDER_VARIABLE, None)
    misses = [
        int(
            subprocess.run(
                [sys.executable, "-c", textwrap.dedent(script)],
                env=environment,
                check=True,
                capture_output=True,
                text=True,
            ).stdout
        )
        for _ in range(2)
    ]
    assert misses[0] > 0
    assert misses[1] == 0
