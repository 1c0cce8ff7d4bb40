"""Ensembles and runs that were damaged or do not belong together.

Damaged checkpoints are tested in tests/models, damaged rows in tests/test_records_files.py.
"""

import dataclasses
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from sween.ensemble import load_ensemble, load_members
from sween.errors import CheckpointError, SweenError
from sween.models import read_manifest, save_checkpoint
from tests.cli.command import assert_refused, succeed
from tests.cli.conftest import Made, write_member

CERTIFY = "certify {source} --indices 0:2 --n 200 --out {out}"


MISFITS: dict[str, dict[str, Any]] = {
    "sigma": {"sigma": 0.25},
    "dataset": {"dataset": "image_folder"},
    "num_classes": {"num_classes": 9, "class_names": tuple("012345678")},
    "class_names": {"class_names": tuple("1234567890")},
    "image_shape": {"image_shape": (3, 8, 8)},
}


@pytest.mark.parametrize("field", MISFITS)
def test_members_that_do_not_belong_together(field: str, made: Made, tmp_path: Path) -> None:
    other = write_member(tmp_path / "other", **MISFITS[field])
    with pytest.raises(CheckpointError, match=f"{other}: {field}"):
        load_members([made.runs[0], other])


@pytest.mark.parametrize("line", ["weigh {source} --out {out}", CERTIFY])
def test_members_of_other_classes_than_the_data(line: str, tmp_path: Path) -> None:
    run = write_member(tmp_path / "run", class_names=tuple("1234567890"))
    line = line.format(source=run, out=tmp_path / "out")
    assert_refused(line, "classes", "'9', '0'", watched=(tmp_path,))


def replaced(old: str, new: str) -> Callable[[Path], None]:
    def change(ensemble: Path) -> None:
        text = (ensemble / "config.toml").read_text()
        assert old in text
        (ensemble / "config.toml").write_text(text.replace(old, new))

    return change


def remove_member(ensemble: Path) -> None:
    (ensemble / "members/digits-mlp-seed2.safetensors").unlink()


BAD_ENSEMBLES: dict[str, tuple[Callable[[Path], None], str]] = {
    "off the simplex": (replaced("[0.5, 0.5]", "[0.5, 0.6]"), "sum 1.1"),
    "weights as text": (replaced("[0.5, 0.5]", '["a", "b"]'), "config.toml"),
    "weights as one": (replaced("[0.5, 0.5]", "1.0"), "config.toml"),
    "no weights": (replaced("weights =", "w ="), "no 'weights'"),
    "no fingerprints": (replaced("fingerprints = [", "fingerprints = []\nf = ["), "0 finger"),
    "no TOML": (replaced("kind =", "kind"), "expected TOML"),
    "member missing": (remove_member, "digits-mlp-seed2"),
    "another sigma": (replaced("sigma = 0.5", "sigma = 0.25"), "sigma: expected 0.5.*got 0.25"),
    "sigma as text": (replaced("sigma = 0.5", 'sigma = "a"'), "sigma: expected 0.5"),
    "another data set": (replaced('"digits"', '"cifar10"'), "dataset: expected digits"),
}


@pytest.mark.parametrize("name", BAD_ENSEMBLES)
def test_ensemble_folders_that_cannot_be_used(name: str, made: Made, tmp_path: Path) -> None:
    ensemble = Path(shutil.copytree(made.ensemble, tmp_path / "ensemble"))
    change, said = BAD_ENSEMBLES[name]
    change(ensemble)
    with pytest.raises(SweenError, match=rf"^{ensemble}.*{said}"):
        load_ensemble(ensemble)


HOSTILE: dict[str, tuple[str, str]] = {
    "nested lists": ("config.toml", "x = " + "[" * 5000 + "]" * 5000),
    "nested keys": ("config.toml", "x" + ".a" * 5000 + " = 1"),
    "a number of 5,000 digits": ("config.toml", "x = " + "9" * 5000),
    "a sigma of 401 digits": ("config.toml", "sigma = 1" + "0" * 400),
    "an alpha of 401 digits": ("config.toml", "alpha = 1" + "0" * 400),
    "nested JSON": ("shard.json", "[" * 100_000),
    "another kind": ("config.toml", 'kind = "certificate"'),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_text_in_a_run_folder_makes_a_traceback(name: str, made: Made, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(made.certificates, tmp_path / "run"))
    file, line = HOSTILE[name]
    key = line.partition(" ")[0]
    kept = (folder / file).read_text().splitlines() if (folder / file).is_file() else []
    lines = [line, *(own for own in kept if not own.startswith(f"{key} "))]
    (folder / file).write_text("\n".join(lines) + "\n")
    assert_refused(f"verify {folder}", file, watched=(tmp_path,))


FACTORY = """
from pathlib import Path
from torch import nn

Path(__file__).with_name("was-imported").touch()

def make():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
"""


def test_a_factory_is_imported_only_when_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, run = tmp_path / "code", tmp_path / "run"
    code.mkdir()
    (code / "stranger.py").write_text(FACTORY)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(code)
    monkeypatch.delitem(sys.modules, "stranger", raising=False)
    file = write_member(run) / "model.safetensors"
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    save_checkpoint(model, file, dataclasses.replace(read_manifest(file), arch="stranger:make"))
    certify = CERTIFY.format(source=run, out=tmp_path / "out")
    bench = f"bench {run} --seconds 0.01 --rounds 1 --device cpu"
    for line in (
        *(certify, f"{certify} --arch stranger:other", f"{certify} --arch digits-mlp", bench),
        *(f"weigh {run} --out {tmp_path}/out", f"predict {file} {tmp_path}/digit.png"),
    ):
        assert_refused(line, "stranger:make", "pass --arch stranger:make", watched=(tmp_path,))
    assert "stranger" not in sys.modules
    assert not (code / "was-imported").exists()
    for line in (certify, bench):
        succeed(f"{line} --arch stranger:make")
    assert (code / "was-imported").exists()
