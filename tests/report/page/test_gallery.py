"""Pictures of the gallery: nothing lost, white where white is, and small."""

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from sween.data import load_dataset
from sween.report.page.gallery import LONGEST_SIDE, to_data_url

from .samples import measured, random_rows, toys, write_page


def decode(text: str) -> Any:
    kind, data = text.removeprefix("data:image/").split(";base64,")
    picture = Image.open(io.BytesIO(base64.b64decode(data, validate=True)))
    assert picture.format == kind.upper()
    return np.asarray(picture)


def test_colour_images_come_back_exactly() -> None:
    image = toys(1, (3, 32, 32)).test.pixels.load([0])[0]
    assert np.array_equal(decode(to_data_url(image)), image.permute(1, 2, 0).numpy())


def test_digits_span_black_to_white() -> None:
    images = load_dataset("digits").test.pixels.load_all()[:20]
    for image in images:
        shown = decode(to_data_url(image, white=16))
        assert np.array_equal(shown, np.rint(image[0].double().numpy() * 255 / 16))
    assert decode(to_data_url(torch.full((1, 8, 8), 16, dtype=torch.uint8), white=16)).min() == 255


def test_large_images_are_downscaled_and_the_page_says_so(tmp_path: Path) -> None:
    run, photos = measured(random_rows(3)), toys(3, (3, 128, 96))
    shown = decode(to_data_url(photos.test.pixels.load([0])[0]))
    assert shown.shape == (LONGEST_SIDE, LONGEST_SIDE * 96 // 128, 3)
    content = write_page(tmp_path / "page.html", run, datasets={run.name: photos})
    assert content["runs"][0]["gallery"]["reduced"] is True


def test_runs_share_images_and_those_without_have_placeholders(tmp_path: Path) -> None:
    runs = [measured(random_rows(3), name=name) for name in "abcd"]
    images, others = toys(3), toys(4)  # of one seed: the first three are the same
    datasets = {"a": images, "b": others, "c": toys(3, (1, 8, 8))}
    content = write_page(tmp_path / "page.html", *runs, datasets=datasets)
    numbers = [one["gallery"]["picture"] for one in content["runs"]]
    assert numbers == [[0, 1, 2], [0, 1, 2], [3, 4, 5], [None] * 3]
    urls = [to_data_url(image) for image in images.test.pixels.load_all()]
    assert content["pictures"][:3] == urls
    assert content["runs"][3]["classes"] == [f"class {number}" for number in range(5)]


@pytest.mark.parametrize(("models", "shape"), [([*"abcdef"], (3, 32, 32)), (["net"], (3, 96, 96))])
def test_a_thousand_images_stay_under_ten_megabytes(
    tmp_path: Path, models: list[str], shape: tuple[int, int, int]
) -> None:
    """Of noise, which no picture format makes small."""
    run = measured(random_rows(1000, models=models), ensemble=None)
    write_page(tmp_path / "page.html", run, datasets={run.name: toys(1000, shape)})
    assert (tmp_path / "page.html").stat().st_size < 10e6
