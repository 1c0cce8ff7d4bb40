"""The folders in results/ verify, and the README agrees with them."""

import importlib
import re
import shutil
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from sween.attack import verify_attacks
from sween.records import format_radius, read_certificates
from sween.runs import CertificationRun, verify_folder

ROOT = Path(__file__).parents[1]
FOLDERS = sorted(path.parent for path in (ROOT / "results").glob("**/certificates.jsonl*"))
UNFINISHED = [folder for folder in FOLDERS if "pending" in folder.parts]
RUNS = [folder for folder in FOLDERS if folder not in UNFINISHED]


@pytest.mark.parametrize("folder", RUNS, ids=lambda folder: folder.name)
def test_every_shipped_certificate_is_re_derived(folder: Path) -> None:
    assert verify_folder(folder).rows > 0


def test_unfinished_certificates_are_re_derived_too() -> None:
    for folder in UNFINISHED:
        assert CertificationRun.read(folder).rows


@pytest.mark.parametrize(
    "folder", sorted((ROOT / "results" / "attacks").iterdir()), ids=lambda folder: folder.name
)
def test_every_shipped_attack_is_re_derived_and_broke_no_certificate(folder: Path) -> None:
    verified = verify_attacks(folder)
    assert verified.rows > 0
    assert verified.alarms == 0


@pytest.mark.usefixtures("measured")
def test_a_claim_that_the_rows_do_not_bear_out_is_not_written() -> None:
    claims = importlib.import_module("measured_claims")
    with pytest.raises(ValueError, match="do not show that: more is better"):
        claims.claims_table([claims.Claim("more is better", "-0.100", holds=False)], "ours")


@pytest.mark.first
@pytest.mark.usefixtures("measured")
def test_the_readme_shows_the_measured_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["update_readme.py", "--check"])
    assert importlib.import_module("update_readme").main() == 0, "run docs/update_readme.py"


@pytest.mark.parametrize(
    "name",
    [
        *("README.md", "CONTRIBUTING.md", "docs/architecture.md", "docs/results.md"),
        *("docs/findings.md", "docs/planning.md", "docs/speed.md"),
    ],
)
def test_links_are_not_broken(name: str) -> None:
    page = ROOT / name
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    return importlib.import_module("measured")


def test_the_comparison_with_the_papers_rows(tmp_path: Path, measured: ModuleType) -> None:
    """With the digits run in place of a CIFAR-10 run with sigma 0.50."""
    shutil.copytree(ROOT / "results" / "published", tmp_path / "published")
    shutil.copytree(
        ROOT / "results" / "digits-demo", tmp_path / "cifar10-sween3-gaussian-sigma0.50"
    )
    digits = ROOT / "results" / "digits-demo"
    lines = measured.beside_paper(tmp_path, "cifar10").splitlines()
    models = [line.split("|")[2].strip() for line in lines[2:]]
    assert models == [
        "paper: ResNet-110",
        "paper: UE-3",
        "paper: SWEEN-3",
        "ours: UE-3",
        "**ours: SWEEN-3**",
    ]
    paper = "| 70.9 | 61.4 | 50.8 | 38.3 | 27.7 | 20.1 | 12.8 | 6.7 | 0.0 | 0.630 |"
    assert paper in lines[4]
    rows = [row for row in read_certificates(digits) if row.model == "SWEEN-3"]
    right = [row.radius for row in rows if row.prediction == row.label]
    assert f"**{100 * sum(r >= 0.5 for r in right) / len(rows):.1f}**" in lines[6]
    assert f"**{format_radius(sum(right) / len(rows))}**" in lines[6]


def test_published_rows_are_complete() -> None:
    rows = tomllib.loads((ROOT / "results/published/cifar10.toml").read_text())["row"]
    assert len(rows) == 30
    for row in rows:
        accuracies = row["accuracies"]
        assert len(accuracies) == 9
        assert accuracies == sorted(accuracies, reverse=True)
        # The average radius is the area under the curve: between its lower and upper sums, which
        # also know that no radius exceeds 3.9 sigma.
        lower = 0.25 * sum(accuracies[1:]) / 100
        upper = 0.25 * sum(accuracies[:-1]) / 100 + accuracies[-1] / 100 * max(
            0.25, 3.9 * row["sigma"] - 2
        )
        assert lower <= row["acr"] + 0.0005
        assert row["acr"] <= upper + 0.0005


def test_files_named_in_the_docs_are_there() -> None:
    known = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("src/sween/**/*.py")}
    for pattern in ("*.py", "tests/**/*.py", "docs/*.py"):
        known |= {path.relative_to(ROOT).as_posix() for path in ROOT.glob(pattern)}
    for page in (ROOT / "docs/architecture.md", ROOT / "CONTRIBUTING.md"):
        for name in re.findall(r"`([\w/]+\.py)`", page.read_text(encoding="utf-8")):
            assert any(path.endswith(f"/{name}") or path == name for path in known), (page, name)
