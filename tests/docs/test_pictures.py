"""The scripts of the docs' pictures still draw them, from results/ and the formulas in the code."""

import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
SCRIPTS = sorted(path.stem for path in PICTURES.glob("*.py") if path.with_suffix(".png").exists())


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SCRIPTS if name != "page"])
def test_a_script_draws_both_versions_of_its_picture(name: str, tmp_path: Path) -> None:
    code = f"import pathlib, {name}; {name}.main(pathlib.Path({str(tmp_path)!r}))"
    subprocess.run([sys.executable, "-c", code], cwd=PICTURES, check=True)
    drawn = sorted(path.name for path in tmp_path.iterdir())
    assert drawn == [f"{name}-dark.png", f"{name}.png"]
    for picture in drawn:
        with Image.open(tmp_path / picture) as new, Image.open(PICTURES / picture) as kept:
            assert new.size == kept.size


def test_every_picture_has_a_script_and_a_dark_version() -> None:
    pictures = {path.stem for path in PICTURES.glob("*.png")}
    assert pictures == {*SCRIPTS, *(f"{name}-dark" for name in SCRIPTS)}
