"""Checkpoints, ensembles and runs that were damaged or do not belong together."""

import dataclasses
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from sween.models import Manifest, create_model, read_manifest, save_checkpoint
from tests.cli.command import assert_refused, run_line, succeed
from tests.cli.conftest import Made

CERTIFY = "certify {source} --indices 0:2 --n 200 --out {out}"


def copied(source: Path, to: Path) -> Path:
    return Path(shutil.copytree(source, to))


def write_member(out: Path, **changes: Any) -> Path:
    """A run folder with an untrained network, for other data or noise than the made ones."""
    values: dict[str, Any] = {
        "arch": "digits-mlp",
        "num_classes": 10,
        "image_shape": (1, 8, 8),
        "dataset": "digits",
        "class_names": tuple("0123456789"),
        "sigma": 0.5,
        "training": {},
    }
    manifest = Manifest(**(values | changes))
    model = create_model(
        manifest.arch, num_classes=manifest.num_classes, image_shape=manifest.image_shape
    )
    save_checkpoint(model, out / "model.safetensors", manifest)
    return out


def rewrite(file: Path, change: Callable[[dict[str, torch.Tensor], dict[str, Any]], None]) -> None:
    """Alter the tensors or the manifest of a checkpoint behind sween's back."""
    tensors, manifest = load_file(file), dataclasses.asdict(read_manifest(file))
    change(tensors, manifest)
    save_file(tensors, file, metadata={"sween": json.dumps(manifest)})


def nudge_weight(tensors: dict[str, torch.Tensor], manifest: dict[str, Any]) -> None:
    tensors[min(tensors)].view(-1)[0] += 1e-3


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1000])


BAD_CHECKPOINTS: dict[str, tuple[Callable[[Path], None], tuple[str, ...]]] = {
    "missing": (Path.unlink, ("no such file", "check the path")),
    "truncated": (truncate, ("a whole safetensors file", "truncated")),
    "altered weights": (lambda f: rewrite(f, nudge_weight), ("fingerprint", "altered")),
}


@pytest.mark.parametrize("verb", ["weigh", "certify"])
@pytest.mark.parametrize("name", BAD_CHECKPOINTS)
def test_checkpoints_that_cannot_be_used(name: str, verb: str, made: Made, tmp_path: Path) -> None:
    run = copied(made.runs[0], tmp_path / "run")
    change, parts = BAD_CHECKPOINTS[name]
    change(run / "model.safetensors")
    lines = {
        "weigh": f"weigh {made.runs[1]} {run} --out {tmp_path}/out",
        "certify": CERTIFY.format(source=run / "model.safetensors", out=tmp_path / "out"),
    }
    assert_refused(lines[verb], "run/model.safetensors", *parts, watched=(tmp_path,))


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
    line = f"weigh {made.runs[0]} {other} --out {tmp_path}/out"
    assert_refused(line, f"{other}: {field}", "combine only members", watched=(tmp_path,))


@pytest.mark.parametrize("verb", ["weigh", "certify"])
def test_members_of_other_classes_than_the_data(verb: str, tmp_path: Path) -> None:
    run = write_member(tmp_path / "run", class_names=tuple("1234567890"))
    line = CERTIFY if verb == "certify" else "weigh {source} --out {out}"
    line = line.format(source=run, out=tmp_path / "out")
    assert_refused(line, "classes", "'9', '0'", "load", watched=(tmp_path,))


def test_a_member_trained_without_noise(tmp_path: Path) -> None:
    run = write_member(tmp_path / "run", sigma=0.0)
    line = CERTIFY.format(source=run, out=tmp_path / "out")
    assert_refused(line, "sigma", "got 0.0", "try 0.25", watched=(tmp_path,))


def replaced(old: str, new: str) -> Callable[[Path], None]:
    def change(ensemble: Path) -> None:
        text = (ensemble / "config.toml").read_text()
        assert old in text
        (ensemble / "config.toml").write_text(text.replace(old, new))

    return change


def remove_member(ensemble: Path) -> None:
    (ensemble / "members/digits-mlp-seed2.safetensors").unlink()


def exchange_members(ensemble: Path) -> None:
    first, second = sorted((ensemble / "members").iterdir())
    shutil.copyfile(first, second)


BAD_ENSEMBLES: dict[str, tuple[Callable[[Path], None], tuple[str, ...]]] = {
    "off the simplex": (replaced("[0.5, 0.5]", "[0.5, 0.6]"), ("sum 1.1", "`sween weigh`")),
    "negative weight": (replaced("[0.5, 0.5]", "[1.5, -0.5]"), ("-0.5", "`sween weigh`")),
    "nan weight": (replaced("[0.5, 0.5]", "[nan, 1.0]"), ("nan", "`sween weigh`")),
    "three weights": (replaced("[0.5, 0.5]", "[0.5, 0.5, 0.0]"), ("(3,)", "`sween weigh`")),
    "weights as text": (replaced("[0.5, 0.5]", '["a", "b"]'), ("config.toml", "`sween weigh`")),
    "weights as one": (replaced("[0.5, 0.5]", "1.0"), ("config.toml", "`sween weigh`")),
    "no weights": (replaced("weights =", "w ="), ("no 'weights'", "`sween weigh`")),
    "no fingerprints": (replaced("fingerprints = [", "fingerprints = []\nf = ["), ("0 finger",)),
    "no TOML": (replaced("kind =", "kind"), ("config.toml", "expected TOML", "restore")),
    "member missing": (remove_member, ("digits-mlp-seed2", "no such file", "check the path")),
    "members exchanged": (exchange_members, ("digits-mlp-seed2", "fingerprint", "replaced")),
}


@pytest.mark.parametrize("name", BAD_ENSEMBLES)
def test_ensemble_folders_that_cannot_be_used(name: str, made: Made, tmp_path: Path) -> None:
    ensemble = copied(made.ensemble, tmp_path / "ensemble")
    change, parts = BAD_ENSEMBLES[name]
    change(ensemble)
    line = CERTIFY.format(source=ensemble, out=tmp_path / "out")
    assert_refused(line, str(ensemble), *parts, watched=(tmp_path,))


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
    lines = [
        CERTIFY.format(source=run, out=tmp_path / "out"),
        CERTIFY.format(source=run, out=tmp_path / "out") + " --arch stranger:other",
        CERTIFY.format(source=run, out=tmp_path / "out") + " --arch digits-mlp",
        f"weigh {run} --out {tmp_path}/out",
        f"predict {file} {tmp_path}/digit.png",
        f"bench {run} --seconds 0.01 --rounds 1 --device cpu",
    ]
    for line in lines:
        assert_refused(line, "stranger:make", "pass --arch stranger:make", watched=(tmp_path,))
    assert "stranger" not in sys.modules
    assert not (code / "was-imported").exists()
    for line in (lines[0], lines[-1]):
        succeed(f"{line} --arch stranger:make")
    assert (code / "was-imported").exists()
    # A factory that is trusted and does not fit says so, not that it should be trusted.
    (tmp_path / "out").rename(tmp_path / "done")
    rewrite(file, nudge_weight)
    line = f"{lines[0]} --arch stranger:make"
    assert_refused(line, "fingerprint", "altered", watched=(tmp_path,))


def test_the_model_of_a_run_cannot_be_exchanged(made: Made, tmp_path: Path) -> None:
    """The config knows the weights, so that rows of two models never mix."""
    run = copied(made.runs[0], tmp_path / "run")
    line = CERTIFY.format(source=run, out=tmp_path / "out")
    assert run_line(line).code == 0
    shutil.copyfile(made.runs[1] / "model.safetensors", run / "model.safetensors")
    assert_refused(line, "fingerprint", "choose another folder", watched=(tmp_path,))
