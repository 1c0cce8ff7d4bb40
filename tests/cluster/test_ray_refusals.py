"""What Ray cannot do is refused in one line, and nothing is written."""

import socket
from pathlib import Path

import pytest

from tests.cli.command import assert_refused

pytestmark = pytest.mark.slow

ray = pytest.importorskip("ray")

LINE = "certify digits-sween3-gaussian-sigma0.50 --indices 0:12 --n 40000 --quiet"


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ("--engine ray --ray-address 127.0.0.1:1", ("--ray-address", "refused")),
        ("--engine ray --ray-address nonsense", ("--ray-address", "nonsense")),
        ("--engine ray --device cuda", ("GPUs", "none", "--device cpu")),
        ("--engine ray --workers 0", ("workers", "at least 1")),
        ("--engine ray --device tpu", ("device", "tpu")),
    ],
)
def test_bad_input_is_refused_in_one_line(
    options: str, parts: tuple[str, ...], tmp_path: Path
) -> None:
    assert_refused(f"{LINE} --out {tmp_path / 'out'} {options}", *parts, watched=(tmp_path,))


def test_a_server_that_is_no_cluster_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        line = f"{LINE} --out {tmp_path / 'out'} --engine ray --ray-address {address}"
        assert_refused(line, "--ray-address", "no answer", watched=(tmp_path,))
