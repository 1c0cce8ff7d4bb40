"""Pictures: nothing lost, white where white is, and small."""

import base64
import dataclasses
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from sween.data import load_dataset
from sween.errors import BadInput
from sween.report.page import write_page
from sween.report.page.pictures import LONGEST_SIDE, to_data_url

from .samples import CLASSES, measured, noise_images, page_run, random_rows, read_page


def decode(text: str) -> Any:
    kind, data = text.removeprefix("data:image/").split(";base64,")
    picture = Image.open(io.BytesIO(base64.b64decode(data, validate=True)))
    assert picture.format == kind.upper()
    return np.asarray(picture)


def test_colour_images_come_back_exactly() -> None:
    image = noise_images([0])[0]
    assert np.array_equal(decode(to_data_url(image)), image.permute(1, 2, 0).numpy())


def test_digits_span_black_to_white() -> None:
    images = load_dataset("digits").test.pixels.load_all()[:20]
    for image in images:
        shown = decode(to_data_url(image, white=16))
        assert shown.shape == (8, 8)
        assert np.array_equal(shown, np.rint(image[0].double().numpy() * 255 / 16))
    assert images.max() == 16
    assert decode(to_data_url(torch.full((1, 8, 8), 16, dtype=torch.uint8), white=16)).min() == 255


def test_large_images_are_reduced_and_the_page_says_so(tmp_path: Path) -> None:
    shown = decode(to_data_url(noise_images([0], (3, 128, 96))[0]))
    assert shown.shape == (LONGEST_SIDE, LONGEST_SIDE * 96 // 128, 3)
    run = measured(random_rows(3))
    write_page(tmp_path / "page.html", [page_run(run, images=noise_images([0], (3, 128, 96)))])
    gallery = read_page(tmp_path / "page.html")[1]["runs"][0]["gallery"]
    assert gallery["reduced"] is True


def test_missing_images_are_named_gaps(tmp_path: Path) -> None:
    run = measured(random_rows(3))
    for images, gaps in ((None, [0, 1, 2]), (noise_images([0, 2]), [1])):
        write_page(tmp_path / "page.html", [page_run(run, images=images)])
        numbers = read_page(tmp_path / "page.html")[1]["runs"][0]["gallery"]["picture"]
        assert [position for position, number in enumerate(numbers) if number is None] == gaps


def test_runs_on_the_same_images_share_them(tmp_path: Path) -> None:
    many = noise_images(range(6))
    images, other = ({index: many[index + first] for index in range(3)} for first in (0, 3))
    runs = [dataclasses.replace(measured(random_rows(3)), name=name) for name in "abc"]
    shown = (images, images, {**other, 1: images[1]})
    pages = [page_run(run, images=own) for run, own in zip(runs, shown, strict=True)]
    write_page(tmp_path / "page.html", pages)
    content = read_page(tmp_path / "page.html")[1]
    numbers = [one["gallery"]["picture"] for one in content["runs"]]
    assert numbers == [[0, 1, 2], [0, 1, 2], [3, 1, 4]]
    for own, page in zip(numbers, pages, strict=True):
        assert page.images is not None
        assert [content["pictures"][number] for number in own] == [
            to_data_url(page.images[index]) for index in range(3)
        ]


def test_a_thousand_images_of_six_models_stay_under_ten_megabytes(tmp_path: Path) -> None:
    models = [f"resnet{depth}" for depth in range(6)]
    run = measured(random_rows(1000, models=models), ensemble=models[-1])
    write_page(tmp_path / "page.html", [page_run(run, images=noise_images(run.indices))])
    assert (tmp_path / "page.html").stat().st_size < 6e6


def test_a_thousand_photos_stay_under_ten_megabytes(tmp_path: Path) -> None:
    """Of noise, which no picture format makes small."""
    run = measured(random_rows(1000, models=["net"]), ensemble=None)
    images = noise_images(run.indices, (3, 96, 96))
    write_page(tmp_path / "page.html", [page_run(run, images=images)])
    assert (tmp_path / "page.html").stat().st_size < 10e6


@pytest.mark.parametrize(
    ("image", "white"),
    [
        (torch.zeros(3, 8, 8), 255),
        (torch.zeros(2, 8, 8, dtype=torch.uint8), 255),
        (torch.zeros(8, 8, dtype=torch.uint8), 255),
        (torch.zeros(3, 0, 8, dtype=torch.uint8), 255),
        (torch.full((1, 8, 8), 17, dtype=torch.uint8), 16),
    ],
)
def test_other_tensors_are_refused(image: torch.Tensor, white: int) -> None:
    with pytest.raises(BadInput, match="image 0 of run-a"):
        page_run(measured(random_rows(1)), images={0: image}, white=white)


def test_too_few_class_names_are_refused() -> None:
    with pytest.raises(BadInput, match="a name for each of 5 classes, got 4"):
        page_run(measured(random_rows(1)), class_names=CLASSES[:4])
