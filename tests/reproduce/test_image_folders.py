"""The plans for ImageNet and Imagenette, end to end on a few small photos."""

import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sween.data.splits import held_out_count
from sween.errors import SmallSampleWarning
from sween.reproduce import Workspace, list_plans, read_plan
from sween.runs import CertificationRun
from tests.cli.command import assert_refused, succeed
from tests.reproduce.resuming import contents, kill_when

pytestmark = pytest.mark.filterwarnings("ignore::sween.errors.SmallSampleWarning")

TARGETS = ("imagenette", "imagenette-identical", "imagenet", "imagenet-identical")

PLAN = """
base = "{target}"             # its networks, ensembles and exits
image_size = 16
classes = 3
sigmas = [0.5]

[recipes]
fast = "{folder}/recipe.toml"

[weigh]
samples = 2

[certify]
every = 12
n = 1000
exits = {exits}
"""
RECIPE = """
dataset = "image_folder"
epochs = 2
batch_size = 8
learning_rate = 0.01
store = "float16"
"""


SMALL = """
[[candidate]]
arch = "imagenet-resnet18"

[[candidate]]
arch = "imagenet-resnet18"
seed = 1

[[ensemble]]
name = "SWEEN-2"
members = ["imagenet-resnet18-seed0", "imagenet-resnet18-seed1"]
"""


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes of JPEG photos of various sizes, in the layout of ImageNet."""
    root, random = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for part, count in (("train", 8), ("val", 4)):
        for channel, name in enumerate(("n01440764", "n02102040", "n02979186")):
            (root / part / name).mkdir(parents=True)
            for number in range(count):
                pixels = random.integers(0, 100, (20 + number, 24, 3), dtype=np.uint8)
                pixels[:, :, channel] += 150
                Image.fromarray(pixels).save(root / part / name / f"{number}.JPEG")
    return root


def _write(target: str, folder: Path, networks: str = "") -> Path:
    """A plan of the target's name that makes it small; its base is the one that ships."""
    (folder / "recipe.toml").write_text(RECIPE)
    certify = read_plan(target).certify
    assert certify is not None
    exits = str(list(certify.exits)).replace("'", '"')
    plan = folder / f"{target}.toml"
    plan.write_text(PLAN.format(target=target, folder=folder, exits=exits) + networks)
    return plan


def _line(plan: Path, photos: Path, *, options: str = "", out: str = "out") -> str:
    return (
        f"reproduce {plan} --data-root {photos} --out {plan.parent / out} --quiet --device cpu "
        f"{options}"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "networks"),
    [
        ("imagenette", SMALL),
        *(pytest.param(own, "", marks=pytest.mark.slow) for own in TARGETS),
    ],
)
def test_a_plan_of_photos_from_start_to_end(
    target: str, networks: str, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without torchvision and timm: the ResNets are sween's own."""
    for package in ("torchvision", "timm"):
        monkeypatch.setitem(sys.modules, package, None)
    file = _write(target, tmp_path, networks)
    assert "certify" in succeed(_line(file, photos, options="--dry-run"))
    assert not (tmp_path / "out").exists()
    printed = succeed(_line(file, photos))
    (folder,) = (tmp_path / "out/certificates").iterdir()
    run = CertificationRun.read(folder)
    run.check_complete()
    assert folder.name == f"{target}-fast-sigma0.50"
    assert list(run.config.indices) == [0]
    plan = read_plan(file)
    for name in (*plan.member_names, plan.whole.name):
        assert f"| 0.50 | {name} | sween |" in printed
    assert ("| paper |" in printed) == (read_plan(target).published is not None)
    assert "nothing was left to do" in succeed(_line(file, photos))


@pytest.mark.slow
@pytest.mark.parametrize("step", ["train", "certify"])
def test_a_kill_loses_nothing(step: str, photos: Path, tmp_path: Path) -> None:
    plan = _write("imagenette", tmp_path)
    rows = {"train": "training/*/*/metrics.jsonl", "certify": "certificates/*/certificates.jsonl"}
    kill_when(
        _line(plan, photos),
        lambda: any(path.stat().st_size for path in (tmp_path / "out").glob(rows[step])),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SmallSampleWarning)
        succeed(_line(plan, photos))
        succeed(_line(plan, photos, out="whole"))
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_a_network_of_timm_where_timm_is_not_installed(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    networks = '[[candidate]]\narch = "timm:resnet18"\n\n[[ensemble]]\nname = "SWEEN"\n'
    plan = _write("imagenette", tmp_path, f'{networks}members = ["resnet18"]\n')
    for options in ("", "--dry-run"):
        line = _line(plan, photos, options=options)
        assert_refused(line, "timm:resnet18", "sween[timm]", watched=(tmp_path,))


def test_photos_that_are_not_there(tmp_path: Path) -> None:
    plan = _write("imagenette", tmp_path)
    assert_refused(_line(plan, tmp_path / "none"), str(tmp_path / "none"), watched=(tmp_path,))
    assert_refused(
        f"reproduce imagenette --out {tmp_path / 'out'}", "--data-root", watched=(tmp_path,)
    )


def test_the_plans_for_imagenet_are_the_paper_s() -> None:
    """90 epochs, 500 validation images; for the weights two images of each class, the paper one."""
    assert set(TARGETS) == {name for name in list_plans() if name.startswith("imagenet")}
    for target in ("imagenet", "imagenet-identical"):
        plan = read_plan(target)
        space = Workspace(plan, recipe="paper", out="unused")
        assert {
            space.config(one, sigma).epochs for one in plan.candidates for sigma in plan.sigmas
        } == {90}
        assert plan.certify is not None
        assert 50_000 // (plan.certify.every or 1) == 500
        assert (plan.certify.n, plan.image_size) == (100_000, 224)
    assert held_out_count(1300, 1000) == 2
