"""The tutorial as a new reader follows it: commands and snippets, in order, in an empty folder."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"
BLOCK = re.compile(r"^```(shell|python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ANSWER = re.compile(r"^mine\.png\t0\tradius ([0-9.]+)$", re.MULTILINE)


def blocks() -> list[tuple[str, str]]:
    """Kind and content of what the page shows, from the first command on."""
    _, _, after_install = PAGE.read_text(encoding="utf-8").partition("## Look into the zoo")
    return [(match[1], match[2]) for match in BLOCK.finditer(after_install)]


def reader_environment(folder: Path) -> dict[str, str]:
    """The environment after `pip install`: `sween` is a command."""
    folder.mkdir()
    command = folder / "sween"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m sween "$@"\n', encoding="utf-8")
    command.chmod(0o755)
    return {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


@pytest.mark.slow
def test_the_tutorial_reaches_a_certificate_for_an_image_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    environment = reader_environment(tmp_path / "bin")
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.chdir(empty)
    namespace: dict[str, object] = {"__name__": "__main__"}
    shown, printed = "", ""
    started = time.perf_counter()
    for kind, content in blocks():
        if kind == "python":
            exec(compile(content, str(PAGE), "exec"), namespace)
        elif kind == "shell":
            ran = subprocess.run(
                ["bash", "-ec", content], env=environment, capture_output=True, text=True
            )
            assert ran.returncode == 0, f"{content}{ran.stderr}"
            printed += ran.stdout
        else:
            shown += content
    seconds = time.perf_counter() - started
    found, claimed = ANSWER.search(printed), ANSWER.search(shown)
    assert found
    assert claimed
    assert float(found[1]) == pytest.approx(float(claimed[1]), abs=0.05)
    assert (empty / "report" / "report.html").is_file()
    assert seconds < 600, "ten minutes, with the installation"
    command = re.findall(r"^sween predict .*$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)[0]
    Image.open("mine.png").convert("RGB").save("mine.png")
    ran = subprocess.run(
        ["bash", "-ec", f"{command} --convert"], env=environment, capture_output=True, text=True
    )
    assert ANSWER.search(ran.stdout), ran.stderr
    with capsys.disabled():
        sys.stdout.write(f"\nthe tutorial took {seconds:.0f} s\n")
