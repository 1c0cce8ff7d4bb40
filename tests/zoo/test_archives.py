"""`sween zoo pack`, `add` and `remove`: from one machine's ensembles to another's, safely."""

import hashlib
import json
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sween
from sween.errors import BadInput, CheckpointError, FolderBusy, UnknownName
from sween.locks import FolderLock
from sween.zoo import MODELS, add, list_zoo, load, pack, remove, user_folder
from tests.cli.command import assert_refused, listing, run_line, succeed

SHIPPED = "digits-sween3-gaussian-sigma0.50"
OTHER = "cifar10-sween3-gaussian-sigma0.50"


@pytest.fixture(autouse=True)
def zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where models are installed: a folder that is not there yet."""
    monkeypatch.setenv("SWEEN_ZOO", str(tmp_path / "deep" / "zoo"))
    return tmp_path / "deep" / "zoo"


@pytest.fixture
def ensemble(tmp_path: Path) -> Path:
    """An ensemble folder with files that are not part of it."""
    folder = tmp_path / "mine"
    shutil.copytree(MODELS / SHIPPED, folder)
    (folder / "notes.txt").write_text("mine alone")
    (folder / "members" / "unused.safetensors").write_bytes(b"?")
    return folder


@pytest.fixture
def archive(ensemble: Path, tmp_path: Path) -> Path:
    pack({"mine": ensemble}, tmp_path / "mine.zip")
    return tmp_path / "mine.zip"


def _contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def test_what_was_packed_is_used_by_name_elsewhere(
    ensemble: Path, zoo: Path, tmp_path: Path
) -> None:
    file = tmp_path / "models.zip"
    said = succeed(f"zoo pack {ensemble} again={SHIPPED} --out {file}")
    assert hashlib.sha256(file.read_bytes()).hexdigest() in said
    shutil.rmtree(ensemble)
    assert succeed(f"zoo add {file}") == "added: again\nadded: mine\n"
    assert _contents(zoo / "mine") == _contents(MODELS / SHIPPED)
    assert {path.name for path in zoo.iterdir()} == {"mine", "again"}
    shipped = load(SHIPPED)
    assert sween.SmoothedClassifier.load("mine").sigma == shipped.sigma
    assert load("mine").fingerprint == shipped.fingerprint
    line = "certify mine --indices 0:2 --n 200 --quiet --out"
    assert "\n2 certificates written" in succeed(f"{line} {tmp_path}/certified")
    entries = {entry.name: entry for entry in list_zoo()}
    assert [name for name, entry in entries.items() if entry.installed] == ["again", "mine"]
    said = succeed("zoo")
    (shown,) = (line for line in said.splitlines() if line.startswith("mine "))
    assert shown.endswith(", installed")
    assert str(zoo) in said
    assert json.loads(succeed("zoo --json"))["mine"]["installed"] is True
    assert succeed("zoo remove mine") == "removed: mine\n"
    assert {path.name for path in zoo.iterdir()} == {"again"}
    with pytest.raises(UnknownName, match="mine"):
        load("mine")


def test_recounting_finds_an_installed_model(ensemble: Path, tmp_path: Path) -> None:
    """It is none of the zoo's until it is installed."""
    config = ensemble / "config.toml"
    text = config.read_text()
    lines = [
        "weights = [0.5, 0.25, 0.25]" if line.startswith("weights") else line
        for line in text.splitlines()
    ]
    config.write_text("\n".join(lines) + "\n")
    out = tmp_path / "certified"
    succeed(f"certify {ensemble} --indices 0:2 --n 200 --quiet --out {out}")
    line = f"verify {out} --recount all --quiet"
    assert "no zoo model" in run_line(line).stderr
    pack({"mine": ensemble}, tmp_path / "mine.zip")
    add(tmp_path / "mine.zip")
    assert "all votes are identical" in succeed(line)


def test_the_same_ensembles_give_the_same_bytes(
    ensemble: Path, archive: Path, tmp_path: Path
) -> None:
    """Whatever the order, the dates and the permissions of the files."""
    for path in ensemble.rglob("*"):
        os.utime(path, (1e9, 1e9))
        path.chmod(0o700)
    pack({"mine": ensemble}, tmp_path / "again.zip")
    assert (tmp_path / "again.zip").read_bytes() == archive.read_bytes()
    for name, order in (("one", ("a", "b")), ("two", ("b", "a"))):
        pack(dict.fromkeys(order, ensemble), tmp_path / f"{name}.zip")
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()
    with zipfile.ZipFile(archive) as content:
        names = content.namelist()
        manifest = json.loads(content.read("manifest.json"))
        for file, stored in manifest["models"]["mine"].items():
            own = content.read(f"mine/{file}")
            assert stored == {"bytes": len(own), "sha256": hashlib.sha256(own).hexdigest()}
    assert {Path(name).suffix for name in names} == {".json", ".toml", ".safetensors"}
    assert not any("notes" in name or "unused" in name for name in names)


def test_adding_the_same_again_does_nothing(archive: Path, zoo: Path) -> None:
    succeed(f"zoo add {archive}")
    before = listing(zoo)
    for option in ("", " --replace"):
        assert succeed(f"zoo add {archive}{option}") == "already there: mine\n"
    assert listing(zoo) == before


def test_a_shipped_model_is_never_replaced_or_removed(tmp_path: Path) -> None:
    pack({SHIPPED: SHIPPED}, tmp_path / "same.zip")
    assert add(tmp_path / "same.zip") == {SHIPPED: "already there"}
    pack({SHIPPED: OTHER}, tmp_path / "other.zip")
    for option in ("", " --replace"):
        assert_refused(
            f"zoo add {tmp_path}/other.zip{option}", SHIPPED, "ships", watched=(tmp_path, MODELS)
        )
    assert_refused(f"zoo remove {SHIPPED}", SHIPPED, "ships", watched=(tmp_path, MODELS))
    assert not user_folder().exists()


def test_a_taken_name_needs_replace(archive: Path, zoo: Path, tmp_path: Path) -> None:
    add(archive)
    other = tmp_path / "other.zip"
    pack({"mine": OTHER, "new": SHIPPED}, other)
    assert_refused(f"zoo add {other}", "mine", "--replace", watched=(zoo,))
    assert add(other, replace=True) == {"mine": "replaced", "new": "added"}
    assert load("mine").fingerprint == load(OTHER).fingerprint
    assert {path.name for path in zoo.iterdir()} == {"mine", "new"}


def test_a_damaged_installation_is_named_and_can_be_replaced(archive: Path, zoo: Path) -> None:
    add(archive)
    (zoo / "mine" / "config.toml").write_text("sigma = 0.5\n")
    assert_refused("zoo", str(zoo / "mine"), "zoo remove mine", watched=(zoo,))
    assert load(SHIPPED).sigma == 0.5
    assert add(archive, replace=True) == {"mine": "replaced"}
    assert load("mine").fingerprint == load(SHIPPED).fingerprint


def _rewritten(
    source: Path,
    target: Path,
    change: Callable[[zipfile.ZipInfo, bytes], list[tuple[zipfile.ZipInfo, bytes]]],
) -> Path:
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for info in old.infolist():
            for own, content in change(info, old.read(info)):
                new.writestr(own, content, compress_type=own.compress_type)
    return target


def _with_manifest(change: Callable[[dict[str, Any]], object]) -> Any:
    """An archive whose manifest was changed, all other files left."""

    def rewrite(info: zipfile.ZipInfo, content: bytes) -> list[tuple[zipfile.ZipInfo, bytes]]:
        if info.filename == "manifest.json":
            manifest = json.loads(content)
            change(manifest)
            content = json.dumps(manifest).encode()
        return [(info, content)]

    return rewrite


def _named(name: str, mode: int = stat.S_IFREG | 0o644) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.external_attr = mode << 16
    return info


def _with_file(name: str, mode: int = stat.S_IFREG | 0o644, *, listed: bool = True) -> Any:
    """One more file, which the manifest lists unless told otherwise."""
    content = b"../../../target"
    stored = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}

    def rewrite(info: zipfile.ZipInfo, old: bytes) -> list[tuple[zipfile.ZipInfo, bytes]]:
        if info.filename != "manifest.json":
            return [(info, old)]
        manifest = json.loads(old)
        if listed:
            model, _, file = name.partition("/")
            manifest["models"].setdefault(model, {"config.toml": stored})[file] = stored
        return [(info, json.dumps(manifest).encode()), (_named(name, mode), content)]

    return rewrite


def _compressed(info: zipfile.ZipInfo, content: bytes) -> list[tuple[zipfile.ZipInfo, bytes]]:
    if info.filename.endswith("config.toml"):
        info.compress_type = zipfile.ZIP_DEFLATED
    return [(info, content)]


def _changed_weights(info: zipfile.ZipInfo, content: bytes) -> list[tuple[zipfile.ZipInfo, bytes]]:
    if info.filename.endswith("digits-conv.safetensors"):
        content = content[:-1] + bytes([content[-1] ^ 1])
    return [(info, content)]


def _twice(info: zipfile.ZipInfo, content: bytes) -> list[tuple[zipfile.ZipInfo, bytes]]:
    return [(info, content)] * (2 if info.filename.endswith("config.toml") else 1)


def _linked(info: zipfile.ZipInfo, content: bytes) -> list[tuple[zipfile.ZipInfo, bytes]]:
    if info.filename.endswith("environment.json"):
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
    return [(info, content)]


def _without_config(info: zipfile.ZipInfo, content: bytes) -> list[tuple[zipfile.ZipInfo, bytes]]:
    return [] if info.filename.endswith("config.toml") else [(info, content)]


ALTERED: dict[str, tuple[Any, str]] = {
    "outside": (_with_file("mine/../../target"), "target"),
    "absolute": (_with_file("mine//tmp/target"), "target"),
    "windows": (_with_file("mine/..\\target"), "target"),
    "model outside": (_with_file("../x"), "'..'"),
    "hidden model": (_with_file(".hidden/environment.json"), "'.hidden'"),
    "code": (_with_file("mine/members/a.py"), "a.py"),
    "pickle": (_with_file("mine/members/a.pt"), "a.pt"),
    "unused checkpoint": (_with_file("mine/members/a.safetensors"), "a.safetensors"),
    "link": (_linked, "environment.json"),
    "not listed": (_with_file("mine/a.json", listed=False), "a.json"),
    "folder": (_with_file("mine/members/", listed=False), "members/"),
    "duplicate": (_twice, "twice"),
    "compressed": (_compressed, "config.toml"),
    "weights": (_changed_weights, "digits-conv.safetensors"),
    "missing": (_without_config, "config.toml"),
    "no models": (_with_manifest(lambda content: content.update(models={})), "no models"),
    "a list": (_with_manifest(lambda content: content.update(models=["mine"])), "list"),
    "format": (_with_manifest(lambda content: content.update(format="other")), "other"),
    "version": (_with_manifest(lambda content: content.update(version=2)), "version 2"),
    "size": (
        _with_manifest(lambda content: content["models"]["mine"]["config.toml"].update(bytes=9)),
        "instead of 9",
    ),
}


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("how", ALTERED)
def test_an_altered_archive_is_refused(how: str, archive: Path, tmp_path: Path) -> None:
    change, part = ALTERED[how]
    bad = _rewritten(archive, tmp_path / "bad.zip", change)
    assert_refused(f"zoo add {bad}", str(bad), part, watched=(tmp_path,))


def test_entries_that_share_their_bytes_are_refused(archive: Path, tmp_path: Path) -> None:
    """Overlapping entries, of which a small archive would unpack to a large folder."""
    bad = tmp_path / "bad.zip"

    def double(manifest: dict[str, Any]) -> None:
        manifest["models"].update({f"m{k}": manifest["models"]["mine"] for k in range(9)})

    _rewritten(archive, bad, _with_manifest(double))
    with zipfile.ZipFile(bad, "a") as content:
        for info in content.infolist()[1:]:
            for k in range(9):
                other = _named(info.filename.replace("mine", f"m{k}"))
                other.header_offset, other.CRC = info.header_offset, info.CRC
                other.file_size = other.compress_size = info.file_size
                content.filelist.append(other)
        content._didModify = True  # type: ignore[attr-defined]
    assert_refused(f"zoo add {bad}", "smaller archive", watched=(tmp_path,))


@pytest.mark.parametrize(
    "content", [b"", b"PK", b"PK\x05\x06" + bytes(18), b"not a zip" * 100], ids=len
)
def test_what_is_not_an_archive_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "bad.zip").write_bytes(content)
    assert_refused(f"zoo add {tmp_path}/bad.zip", "bad.zip", watched=(tmp_path,))


def test_any_damaged_byte_is_refused_or_without_effect(
    archive: Path, zoo: Path, tmp_path: Path
) -> None:
    whole, picks = archive.read_bytes(), random.Random(0)
    with zipfile.ZipFile(archive) as content:
        first = min(info.header_offset for info in content.infolist()[1:])
        table = content.start_dir
    # The table of contents and the manifest are most of what is parsed; the rest has checksums.
    places = picks.sample(range(table, len(whole)), 150) + picks.sample(range(first), 50)
    for place in places:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << picks.randrange(8)
        (tmp_path / "bad.zip").write_bytes(damaged)
        try:
            add(tmp_path / "bad.zip")
        except CheckpointError:
            assert not zoo.exists()
        else:  # a date or another field that is not used
            assert _contents(zoo / "mine") == _contents(MODELS / SHIPPED), place
            shutil.rmtree(zoo)
    for length in (len(whole) - 1, table, len(whole) // 2, 100):
        (tmp_path / "bad.zip").write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match="get it again"):
            add(tmp_path / "bad.zip")
        assert not zoo.exists()


def test_one_bad_model_of_an_archive_keeps_out_the_others(
    ensemble: Path, zoo: Path, tmp_path: Path
) -> None:
    pack({"a": SHIPPED, "b": ensemble}, tmp_path / "two.zip")

    def spoil(info: zipfile.ZipInfo, content: bytes) -> list[tuple[zipfile.ZipInfo, bytes]]:
        """An ensemble of members that it does not have, with the right checksums."""
        new = (ensemble / "config.toml").read_bytes().replace(b"digits-conv", b"digits-abcd")
        if info.filename == "manifest.json":
            manifest = json.loads(content)
            digest = hashlib.sha256(new).hexdigest()
            manifest["models"]["b"]["config.toml"] = {"bytes": len(new), "sha256": digest}
            return [(info, json.dumps(manifest).encode())]
        return [(info, new if info.filename == "b/config.toml" else content)]

    bad = _rewritten(tmp_path / "two.zip", tmp_path / "bad.zip", spoil)
    assert_refused(f"zoo add {bad}", "digits-abcd", watched=(tmp_path,))
    assert not zoo.exists()


@pytest.mark.parametrize("measured", ['{"acr": "\\u001b[2J"}', "[]", "{", '{"acr": 0.5}'])
def test_measured_numbers_that_cannot_be_listed_are_refused(
    measured: str, ensemble: Path, tmp_path: Path
) -> None:
    (ensemble / "measured.json").write_text(measured)
    with pytest.raises(CheckpointError, match="measured numbers"):
        pack({"mine": ensemble}, tmp_path / "mine.zip")
    assert not (tmp_path / "mine.zip").exists()


def test_an_archive_cannot_make_sween_import_a_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_net.py").write_text(
        "from torch import nn\n"
        "def make(num_classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    trained = f"train --dataset digits --arch own_net:make --sigma 0.5 --epochs 1 --out {tmp_path}"
    succeed(f"{trained}/run --quiet")
    arch = "--arch own_net:make"
    succeed(f"weigh {tmp_path}/run {arch} --method uniform --quiet --out {tmp_path}/mine")
    assert_refused(f"zoo pack mine --out {tmp_path}/mine.zip", "own_net", watched=(tmp_path,))
    succeed(f"zoo pack mine --out {tmp_path}/mine.zip {arch}")
    shutil.rmtree(tmp_path / "mine")
    assert_refused(f"zoo add {tmp_path}/mine.zip", "own_net", watched=(tmp_path,))
    succeed(f"zoo add {tmp_path}/mine.zip {arch}")
    assert load("mine", archs=["own_net:make"]).member_names == ("make",)


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("zoo pack {tmp}/none --out {tmp}/a.zip", ("none", "sween weigh")),
        ("zoo pack {tmp} --out {tmp}/a.zip", ("{tmp}", "sween weigh")),
        ("zoo pack {mine} {mine}/ --out {tmp}/a.zip", ("mine 2 times", "NAME=FOLDER")),
        ("zoo pack ../x={mine} --out {tmp}/a.zip", ("'../x'", "letters")),
        ("zoo pack {mine} --out {mine}/config.toml", ("config.toml", "a new file")),
        ("zoo add {tmp}/none.zip", ("none.zip", "check the path")),
        ("zoo add {tmp}", ("{tmp}",)),
        ("zoo remove mine", ("'mine'", "none")),
        ("zoo remove ../mine", ("../mine",)),
    ],
)
def test_bad_input_is_one_line(
    line: str, parts: tuple[str, ...], ensemble: Path, tmp_path: Path
) -> None:
    filled = [part.format(tmp=tmp_path) for part in parts]
    assert_refused(line.format(tmp=tmp_path, mine=ensemble), *filled, watched=(tmp_path,))


def test_two_installations_do_not_meet(archive: Path, zoo: Path) -> None:
    with FolderLock(zoo), pytest.raises(FolderBusy):
        add(archive)


KILLED = """
import os, signal, sys
from pathlib import Path
from sween.zoo import add
left, rename = [int(sys.argv[1])], Path.rename
def late(self, target):
    left[0] -= 1
    if left[0] < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return rename(self, target)
Path.rename = late
add(sys.argv[2], replace=True)
"""


@pytest.mark.parametrize("renames", [0, 1])
def test_a_killed_replacement_is_undone_by_the_next_call(
    renames: int, archive: Path, zoo: Path, tmp_path: Path
) -> None:
    """Killed before the old model was moved away, and before the new one took its place."""
    add(archive)
    pack({"mine": OTHER}, tmp_path / "other.zip")
    command = [sys.executable, "-c", KILLED, str(renames), str(tmp_path / "other.zip")]
    assert subprocess.run(command, check=False, timeout=120).returncode == -signal.SIGKILL
    assert (zoo / "mine").exists() == (renames == 0)
    assert add(archive) == {"mine": "already there"}
    assert {path.name for path in zoo.iterdir()} == {"mine"}
    assert _contents(zoo / "mine") == _contents(MODELS / SHIPPED)


def test_a_replacement_that_fails_keeps_the_old_model(
    archive: Path, zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(archive)
    pack({"mine": OTHER}, tmp_path / "other.zip")
    rename = Path.rename

    def failing(self: Path, target: Path) -> Path:
        if self.parent.name == ".sween-staging":
            raise OSError(5, os.strerror(5), str(target))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    assert_refused(f"zoo add {tmp_path}/other.zip --replace", "mine", watched=(zoo,))


def test_where_models_are_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert user_folder() == tmp_path / "deep" / "zoo"
    monkeypatch.delenv("SWEEN_ZOO")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert user_folder() == tmp_path / "data" / "sween" / "zoo"
    for ignored in ("", "relative"):
        monkeypatch.setenv("XDG_DATA_HOME", ignored)
        assert user_folder() == tmp_path / ".local" / "share" / "sween" / "zoo"


def test_installed_models_never_hide_shipped_ones(archive: Path, zoo: Path) -> None:
    """As when a later version of sween ships a model of that name."""
    add(archive)
    (zoo / "mine").rename(zoo / OTHER)
    assert load(OTHER).dataset == "cifar10"
    assert not next(entry.installed for entry in list_zoo() if entry.name == OTHER)
    remove(OTHER)
    assert not list(zoo.iterdir())


def test_no_ensembles_to_pack(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="at least one"):
        pack({}, tmp_path / "none.zip")
