"""What is shipped in results/ verifies, and the README says what it says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from sween.smoothing import verify_folder

ROOT = Path(__file__).parents[1]
RUNS = sorted(path.parent for path in (ROOT / "results").glob("*/certificates.jsonl*"))


@pytest.mark.parametrize("folder", RUNS, ids=lambda folder: folder.name)
def test_every_shipped_certificate_is_re_derived(folder: Path) -> None:
    assert verify_folder(folder).rows > 0


def test_the_readme_shows_the_measured_tables() -> None:
    command = [sys.executable, str(ROOT / "docs" / "update_readme.py"), "--check"]
    assert subprocess.run(command, check=False).returncode == 0, "run docs/update_readme.py"


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "docs/architecture.md"])
def test_links_lead_somewhere(name: str) -> None:
    page = ROOT / name
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target
