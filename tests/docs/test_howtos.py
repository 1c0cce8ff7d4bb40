"""The how-to guides as a reader follows them: their commands, page after page, in one folder."""

import csv
import re
import subprocess
from pathlib import Path

import pytest
import torch
from PIL import Image

import sween
from sween.records import read_certificates

from .pages import ROOT
from .test_tutorial import reader_environment

BLOCK = re.compile(r"^```(shell|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
READERS = (("train", "audit", "attack", "report"), ("own-network",), ("own-data",))
"""What each reads, one page after another."""

PAGES = tuple(page for pages in READERS for page in pages)
SKIPPED = {
    "DATA": "hours without a GPU, on data that is not ours to ship",
    "FOLDER": "needs photos, and timm",
    "sween zoo add": "would install into the reader's home; tests/zoo has it",
}
"""What is in the lines that are not run, and why."""

PLACEHOLDERS = {"--model ENSEMBLE --data-root DIR": "--model ensemble"}
"""What a reader replaces, and by what for the digits, which come with scikit-learn."""

DATA = """
import torch
from sween.data import as_dataset

def make():
    train = (torch.rand(40, 1, 8, 8), torch.arange(40) % 2)
    test = (torch.rand(10, 1, 8, 8), torch.arange(10) % 2)
    return as_dataset(train, test, name="my_data:make", class_names=["even", "odd"])
"""


def prepare(page: str, folder: Path) -> None:
    """What the text of a page takes for granted."""
    if page == "train":
        image = sween.load_dataset("digits").test.images([0])[0, 0]
        Image.fromarray((255 * image).to(torch.uint8).numpy()).save(folder / "image.png")
    if page == "report":
        with (folder / "their_log.tsv").open("w", encoding="utf-8", newline="") as stream:
            log = csv.writer(stream, delimiter="\t")
            log.writerow(["idx", "label", "predict", "radius", "correct", "time"])
            for row in read_certificates(folder / "certificates"):
                if row.model == "SWEEN-2":
                    right = int(row.prediction == row.label)
                    cells = [row.index, row.label, row.prediction, f"{row.radius:.3}", right]
                    log.writerow([*cells, "0:00:01"])
    if page in ("own-network", "own-data"):
        (python,) = (code for _, code in blocks("own-network") if "def small(" in code)
        (folder / "my_nets.py").write_text(python, encoding="utf-8")
        module: dict[str, object] = {}
        exec(compile(python, page, "exec"), module)
        small = module["small"]
        assert callable(small)
        torch.save(small(num_classes=10, channels=1).state_dict(), folder / "weights.pth")
    if page == "own-data":
        (folder / "my_data.py").write_text(DATA, encoding="utf-8")


def blocks(page: str) -> list[tuple[str, str]]:
    """Kind and content of what a page shows."""
    text = (ROOT / "docs" / "howto" / f"{page}.md").read_text(encoding="utf-8")
    return [(match[1], match[2]) for match in BLOCK.finditer(text)]


def commands(page: str) -> list[str]:
    """The lines of a page that are run."""
    found = []
    for kind, code in blocks(page):
        for line in code.replace("\\\n", " ").splitlines():
            if kind == "shell" and not any(words in line for words in SKIPPED):
                for own, other in PLACEHOLDERS.items():
                    line = line.replace(own, other)
                found.append(line)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("pages", READERS, ids="-".join)
def test_commands_work_one_after_another(tmp_path: Path, pages: tuple[str, ...]) -> None:
    environment = reader_environment(tmp_path / "bin")
    folder = tmp_path / "empty"
    folder.mkdir()
    for page in pages:
        prepare(page, folder)
        for line in commands(page):
            ran = subprocess.run(
                ["bash", "-ec", line], cwd=folder, env=environment, capture_output=True, text=True
            )
            assert ran.returncode == 0, f"{page}: {line}\n{ran.stderr}"
    assert (folder / "certificates" / "certificates.jsonl").is_file()


@pytest.mark.parametrize("words", SKIPPED)
def test_what_is_not_run_is_there(words: str) -> None:
    assert any(words in code for page in PAGES for kind, code in blocks(page) if kind == "shell")


def test_no_guide_with_commands_is_left_out() -> None:
    pages = [path.stem for path in (ROOT / "docs" / "howto").glob("*.md")]
    found = {page for page in pages if any(kind == "shell" for kind, _ in blocks(page))}
    assert found == set(PAGES)
