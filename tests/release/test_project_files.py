"""Files around the package: versions agree, and machines can read what they are to read."""

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import sween

ROOT = Path(__file__).resolve().parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
KINDS = ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")
"""Of changes, by Keep a Changelog."""


def read_yaml(path: Path) -> dict[Any, Any]:
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(content, dict)
    return content


def test_the_version_has_one_place() -> None:
    assert "version" in PROJECT["project"]["dynamic"]
    assert PROJECT["tool"]["hatch"]["version"]["path"] == "src/sween/version.py"
    assert re.fullmatch(r"\d+\.\d+\.\d+", sween.__version__)


def test_the_changelog_is_in_form_and_has_this_version_first() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    titles = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert titles[0] == "[Unreleased]"
    assert re.fullmatch(rf"\[{re.escape(sween.__version__)}\] - \d{{4}}-\d\d-\d\d", titles[1])
    for release in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        kinds = re.findall(r"^### (.+)$", release, re.MULTILINE)
        assert kinds == [kind for kind in KINDS if kind in kinds], "unknown, repeated or unordered"


def test_the_citation_names_this_version_and_the_paper() -> None:
    citation = read_yaml(ROOT / "CITATION.cff")
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert citation["version"] == sween.__version__
    assert str(citation["date-released"]) in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert citation["license"] == PROJECT["project"]["license"]
    (paper,) = citation["references"]
    assert paper["title"] == "Enhancing Certified Robustness via Smoothed Weighted Ensembling"
    assert [author["family-names"] for author in paper["authors"]] == [
        *("Liu", "Feng", "Wang", "Dong"),
    ]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_are_readable_and_ask_for_little(path: Path) -> None:
    workflow = read_yaml(path)
    assert True in workflow, "`on`, which YAML takes for a truth value"
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"] <= 60
        for step in job["steps"]:
            assert {"uses", "run"} & step.keys()
            assert "${{" not in step.get("run", ""), "an expression inside a script is an injection"


def test_the_matrix_has_the_declared_versions_of_python() -> None:
    workflow = read_yaml(ROOT / ".github" / "workflows" / "test.yml")
    tested = workflow["jobs"]["test"]["strategy"]["matrix"]["python"]
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["project"]["classifiers"]))
    assert tested == named


def test_only_a_tag_is_published_and_by_a_job_without_code() -> None:
    workflow = read_yaml(ROOT / ".github" / "workflows" / "publish.yml")
    assert workflow[True] == {"push": {"tags": ["v*"]}}
    publish = workflow["jobs"]["publish"]
    assert publish["needs"] == "build"
    assert publish["permissions"] == {"id-token": "write"}, "trusted publishing, no password"
    assert all("run" not in step for step in publish["steps"])


def test_a_release_has_its_part_of_the_changelog_and_comes_last(tmp_path: Path) -> None:
    """The script of its last step, with a `gh` that keeps the notes."""
    release = read_yaml(ROOT / ".github" / "workflows" / "publish.yml")["jobs"]["release"]
    assert release["needs"] == "publish"
    assert release["steps"][0]["uses"].startswith("actions/checkout")
    gh = tmp_path / "gh"
    gh.write_text('#!/bin/sh\nwhile [ "$1" != --notes-file ]; do shift; done\nmv "$2" kept.md\n')
    gh.chmod(0o755)
    shutil.copy(ROOT / "CHANGELOG.md", tmp_path)
    subprocess.run(
        ["bash", "-e", "-c", release["steps"][-1]["run"]],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "TAG": f"v{sween.__version__}"},
        cwd=tmp_path,
        check=True,
    )
    notes = (tmp_path / "kept.md").read_text(encoding="utf-8")
    assert notes.startswith(f"## [{sween.__version__}]")
    assert notes.count("\n## ") == 0
    assert "### Added" in notes


def test_the_tracked_tree_is_small() -> None:
    command = ["git", "-C", str(ROOT), "ls-files", "-z"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git repository")
    files = [ROOT / name for name in listed.split("\0") if name]
    assert sum(file.stat().st_size for file in files if file.is_file()) < 40e6


@pytest.mark.parametrize(
    "page", ["README.md", "docs/index.md", "docs/tutorial.md", "examples/README.md"]
)
def test_the_line_to_install_is_the_same_everywhere(page: str) -> None:
    line = f"pip install 'sween-{sween.__version__}-py3-none-any.whl[report]'"
    assert line in (ROOT / page).read_text(encoding="utf-8")


def test_every_page_names_the_wheel_of_this_version() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    found = {
        version
        for page in pages
        if "_build" not in page.parts
        for version in re.findall(r"sween-(\d[\d.]*\d)", page.read_text(encoding="utf-8"))
    }
    assert found == {sween.__version__}
