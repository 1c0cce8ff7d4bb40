"""`sween quantize`: ranges in copies of the checkpoints, for --precision int8."""

from pathlib import Path

import pytest

from sween.ensemble import load_ensemble
from sween.models import Manifest, create_model, save_checkpoint
from sween.records import read_certificates
from tests.cli.command import assert_refused, succeed
from tests.cli.photos import CLASSES, write_photos
from tests.engine.kernels.networks import with_statistics

ZOO = "digits-sween3-gaussian-sigma0.50"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_photos(tmp_path / "root")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    shape = (3, 32, 32)
    manifest = Manifest(
        arch="resnet20",
        num_classes=len(CLASSES),
        image_shape=shape,
        dataset="image_folder",
        class_names=CLASSES,
        sigma=0.25,
        training={"seed": 0},
    )
    path = tmp_path / "resnet20.safetensors"
    model = create_model("resnet20", num_classes=len(CLASSES), image_shape=shape)
    save_checkpoint(with_statistics(model), path, manifest)
    return path


@pytest.mark.slow
def test_a_quantized_network_certifies_and_recounts(
    checkpoint: Path, root: Path, tmp_path: Path
) -> None:
    quantized, rows = tmp_path / "quantized", tmp_path / "rows"
    data = f"--data-root {root} --quiet"
    assert "int8" in succeed(f"quantize {checkpoint} --images 8 --out {quantized} {data}")
    succeed(
        f"certify {quantized} --precision int8 --every 6 --n 100 --n0 10 --forward-rows 50 "
        f"--out {rows} {data}"
    )
    assert {row.precision for row in read_certificates(rows)} == {"int8"}
    assert "identical" in succeed(f"verify {rows} --recount all --model {quantized} {data}")


def test_rounded_weights_are_stored_in_bytes(checkpoint: Path, root: Path, tmp_path: Path) -> None:
    sizes = []
    for name, options in (("plain", ""), ("small", "--weights")):
        out = tmp_path / name
        line = f"quantize {checkpoint} --images 8 --out {out} --data-root {root} --quiet"
        succeed(f"{line} {options}")
        sizes.append((out / "members" / "resnet20.safetensors").stat().st_size)
        assert load_ensemble(out).member_names == ("resnet20",)
    assert sizes[1] < 0.3 * sizes[0]


def test_the_same_images_and_seed_give_the_same_checkpoint(
    checkpoint: Path, root: Path, tmp_path: Path
) -> None:
    found = []
    for name, options in (("a", ""), ("b", ""), ("c", "--seed 1")):
        out = tmp_path / name
        succeed(
            f"quantize {checkpoint} --images 8 {options} --out {out} --data-root {root} --quiet"
        )
        found.append(load_ensemble(out).fingerprint)
    assert found[0] == found[1] != found[2]


def test_refusals_leave_nothing(checkpoint: Path, root: Path, tmp_path: Path) -> None:
    out, watched = tmp_path / "out", (tmp_path,)
    data = f"--data-root {root} --out {out} --quiet"
    assert_refused(f"quantize {checkpoint} --images 13 {data}", "images", "1 to 9", watched=watched)
    assert_refused(f"quantize {ZOO} --out {out}", "digits-mlp", "CIFAR ResNet", watched=watched)
    assert_refused(
        f"certify {checkpoint} --precision int8 --every 6 --n 100 {data}",
        *("sween quantize", "no ranges"),
        watched=watched,
    )
