"""Run folders: complete files or none, configs that round-trip, and no mixing of settings."""

import json
import math
import stat
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sween import __version__
from sween.errors import CheckpointError
from sween.run_folder import (
    atomic_path,
    describe_environment,
    read_config,
    run_folder,
    start_run,
    to_toml,
    write_json,
    write_text,
)

CONFIG = {"dataset": "digits", "sigma": 0.25, "seed": 0, "members": ["a", "b"]}

PLAIN = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text()
VALUES = PLAIN | st.lists(PLAIN, max_size=4)
TABLES = st.dictionaries(st.text(), VALUES, max_size=4)
CONFIGS = st.dictionaries(st.text(), VALUES | TABLES, max_size=6)


def test_atomic_path_appears_complete(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "file.txt"
    with atomic_path(path) as temporary:
        temporary.write_text("half")
        assert not path.exists()
        assert temporary.parent == path.parent, "a rename is atomic on one file system only"
        temporary.write_text("whole")
    assert path.read_text() == "whole"
    assert list(path.parent.iterdir()) == [path]
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt, OSError])
def test_a_failure_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, failure: type[BaseException]
) -> None:
    path = tmp_path / "file.txt"

    def write_half() -> None:
        with atomic_path(path) as temporary:
            temporary.write_text("half")
            raise failure

    with pytest.raises(failure):
        write_half()
    assert list(tmp_path.iterdir()) == []
    write_text(path, "old")
    with pytest.raises(failure):
        write_half()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_write_json_refuses_nan_and_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    write_json(path, {"name": "é", "value": 1e-05})
    assert json.loads(path.read_text(encoding="utf-8")) == {"name": "é", "value": 1e-05}
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(path, {"value": math.nan})
    assert json.loads(path.read_text(encoding="utf-8"))["value"] == 1e-05


@given(CONFIGS)
@example({"text": 'a "quoted" \\ name', "odd": "tab\tand\nlines\r\n", "null": "\x00\x7f\x85"})
@example({"large": 1e16, "small": 5e-324, "infinite": [math.inf, -math.inf], "zero": -0.0})
def test_a_config_reads_back_from_toml(config: dict[str, Any]) -> None:
    again = tomllib.loads(to_toml(config))
    assert again == config
    assert _types(again) == _types(config)


def _types(value: object) -> object:
    """Python calls 1, 1.0 and True equal; TOML does not."""
    if isinstance(value, dict):
        return {key: _types(item) for key, item in value.items()}
    return [_types(item) for item in value] if isinstance(value, list) else type(value)


def test_values_that_read_back_as_others() -> None:
    """None is left out; tables come last; NaN is not equal to itself."""
    table = {"none": None, "nan": math.nan, "numpy": [np.float64(1e-05)]}
    again = tomllib.loads(to_toml({"table": table, "none": None, "shape": (1, 8, 8)}))
    assert again == {
        "shape": [1, 8, 8],
        "table": {"nan": pytest.approx(math.nan, nan_ok=True), "numpy": [1e-05]},
    }


@pytest.mark.parametrize("value", [object(), {1}, Path("x"), {"deep": {"deeper": 1}}])
def test_values_without_toml_are_refused(value: object) -> None:
    with pytest.raises(TypeError, match="no TOML for"):
        to_toml({"table": {"key": value}})


def test_a_run_starts_and_resumes(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "run"
    start_run(folder, CONFIG)
    assert read_config(folder) == CONFIG
    assert sorted(path.name for path in folder.iterdir()) == ["config.toml", "environment.json"]
    environment = (folder / "environment.json").read_bytes()
    (folder / "metrics.jsonl").write_text("kept")
    start_run(folder, dict(reversed(CONFIG.items())))
    assert (folder / "environment.json").read_bytes() == environment
    assert (folder / "metrics.jsonl").read_text() == "kept"


def test_a_run_of_another_version_resumes_and_notes_both(tmp_path: Path) -> None:
    start_run(tmp_path, CONFIG)
    first = tmp_path / "environment.json"
    write_json(first, {**json.loads(first.read_text()), "sween": "0.1.0"})
    for _ in range(2):  # the second time both are known
        start_run(tmp_path, CONFIG)
    names = ("environment.json", "environment-2.json")
    noted = [json.loads((tmp_path / name).read_text())["sween"] for name in names]
    assert noted == ["0.1.0", __version__]
    assert len(list(tmp_path.iterdir())) == 3


def test_a_run_killed_before_its_config_starts_afresh(tmp_path: Path) -> None:
    write_json(tmp_path / "environment.json", {"sween": "older"})
    start_run(tmp_path, CONFIG)
    assert json.loads((tmp_path / "environment.json").read_text())["sween"] == __version__


def test_another_config_is_refused_with_what_differs(tmp_path: Path) -> None:
    start_run(tmp_path, CONFIG)
    before = (tmp_path / "config.toml").read_bytes()
    other = {**CONFIG, "sigma": 0.5, "epochs": 3, "members": ["a"]}
    with pytest.raises(CheckpointError) as caught:
        start_run(tmp_path, other)
    message = str(caught.value)
    for part in (
        str(tmp_path),
        "sigma 0.25 -> 0.5",
        "epochs None -> 3",
        "members ['a', 'b'] -> ['a']",
        "another folder",
    ):
        assert part in message
    assert "dataset" not in message
    assert "seed" not in message
    assert len(message.splitlines()) == 1
    assert (tmp_path / "config.toml").read_bytes() == before


def test_a_run_that_fails_before_its_first_row_leaves_nothing(tmp_path: Path) -> None:
    def fail(rows: str) -> None:
        with run_folder(tmp_path / "a" / "b", CONFIG, rows="rows.jsonl") as path:
            path.write_text(rows)
            raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        fail("")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="inside"):
        fail("row\n")
    assert read_config(tmp_path / "a" / "b") == CONFIG
    with pytest.raises(ValueError, match="inside"):
        fail("")
    assert read_config(tmp_path / "a" / "b") == CONFIG, "an older run's files are kept"


def test_rows_without_a_config_are_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("row\n")
    with (
        pytest.raises(CheckpointError, match=r"config\.toml .*rows\.jsonl"),
        run_folder(tmp_path, CONFIG, rows="rows.jsonl"),
    ):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]


def test_folders_without_a_usable_config_are_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="got no such folder"):
        read_config(tmp_path / "absent")
    with pytest.raises(CheckpointError, match=r"got no config\.toml in it"):
        read_config(tmp_path)
    for content in (b"sigma = ", b"\xff\xfe"):
        (tmp_path / "config.toml").write_bytes(content)
        with pytest.raises(CheckpointError, match=r"config\.toml: expected TOML"):
            read_config(tmp_path)
        with pytest.raises(CheckpointError, match=r"config\.toml: expected TOML"):
            start_run(tmp_path, CONFIG)


def test_the_environment_records_hardware_and_versions() -> None:
    environment = describe_environment()
    wanted = {"sween", "commit", "date", "python", "torch", "numpy", "scipy", "platform"}
    assert set(environment) == wanted | {"processor", "cpu_count", "threads", "gpu"}
    assert environment["sween"] == __version__
    assert environment["date"].endswith("+00:00")
    assert environment["processor"]
    json.dumps(environment, allow_nan=False)


def test_the_environment_reveals_no_paths() -> None:
    text = json.dumps(describe_environment())
    here = Path(__file__).resolve()
    for private in (Path.home(), Path.cwd(), here.parents[1], here.parents[2]):
        if len(private.parts) > 1:
            assert str(private) not in text
    assert not any(
        isinstance(value, str) and value.startswith(("/", "~", "\\"))
        for value in describe_environment().values()
    )
