"""The scripts of the docs' pictures still draw them, from results/ and the formulas in the code."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
SCRIPTS = sorted(path.stem for path in PICTURES.glob("*.py") if path.with_suffix(".png").exists())

COLUMNS = 40
"""Pictures are compared as so many columns of grey squares, which average over single letters."""

GREY_LEVELS = 8
"""The most, of 255, that a square may differ: other versions of FreeType draw letters a little
differently, while the curves of another ensemble in sigma.png change squares by 30."""


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SCRIPTS if name != "page"])
def test_a_script_draws_both_versions_of_its_picture(name: str, tmp_path: Path) -> None:
    code = f"import pathlib, {name}; {name}.main(pathlib.Path({str(tmp_path)!r}))"
    subprocess.run([sys.executable, "-c", code], cwd=PICTURES, check=True)
    drawn = sorted(path.name for path in tmp_path.iterdir())
    assert drawn == [f"{name}-dark.png", f"{name}.png"]
    for picture in drawn:
        new, kept = squares(tmp_path / picture), squares(PICTURES / picture)
        assert np.abs(new - kept).max() <= GREY_LEVELS, f"{picture} is not what its script draws"


def squares(path: Path) -> npt.NDArray[np.float64]:
    """A picture in grey and very coarse."""
    with Image.open(path) as picture:
        rows = round(COLUMNS * picture.height / picture.width)
        small = picture.convert("L").resize((COLUMNS, rows), Image.Resampling.BOX)
    return np.asarray(small, np.float64)


def test_every_picture_has_a_script_and_a_dark_version() -> None:
    pictures = {path.stem for path in PICTURES.glob("*.png")}
    assert pictures == {*SCRIPTS, *(f"{name}-dark" for name in SCRIPTS)}
