"""Ray writes the rows of one process, also after a worker or the driver was killed."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sween.cluster import RayPool
from sween.sampling import CertifySettings
from tests.cli.command import assert_refused
from tests.cluster.certified import SETTINGS, certify, rows
from tests.cluster.processes import actors, kill, wait_for

pytestmark = pytest.mark.slow

ray = pytest.importorskip("ray")

MODEL = "digits-sween3-gaussian-sigma0.50"
LINE = f"certify {MODEL} --indices 0:12 --n 40000 --quiet"


@pytest.fixture(scope="module")
def pool() -> Iterator[RayPool]:
    with RayPool(2, device="cpu") as own:
        yield own


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("name", SETTINGS)
def test_ray_writes_the_same_folder_as_one_process(
    name: str, workers: int, pool: RayPool, tmp_path: Path
) -> None:
    members, exit = name == "fixed", "paper" if name == "decide" else "none"
    one = certify(tmp_path / "one", SETTINGS[name], None, members=members, exit=exit)
    some = RayPool(workers)  # of the Ray that runs already
    found = certify(tmp_path / "ray", SETTINGS[name], some, members=members, exit=exit)
    assert found == one
    config = "config.toml"
    assert (tmp_path / "ray" / config).read_bytes() == (tmp_path / "one" / config).read_bytes()


def test_a_killed_worker_costs_its_blocks_only(pool: RayPool, tmp_path: Path) -> None:
    settings, out = CertifySettings(n=40_000), tmp_path / "ray"
    one = certify(tmp_path / "one", settings, None)
    path, killed = out / "certificates.jsonl", list[int]()

    def murder() -> None:
        wait_for(lambda: path.exists() and path.read_bytes().count(b"\n") >= 2)
        killed.append(actors(os.getpid())[0])
        kill(killed[0])

    murderer = threading.Thread(target=murder)
    murderer.start()
    assert certify(out, settings, pool) == one
    murderer.join()
    assert killed


def start(out: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [*(sys.executable, "-m", "sween"), *LINE.split(), "--out", str(out), "--engine", "ray"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_killed_driver_loses_nothing_that_was_written(tmp_path: Path) -> None:
    out = tmp_path / "ray"
    path = out / "certificates.jsonl"
    driver = start(out)
    wait_for(lambda: path.exists() and path.read_bytes().count(b"\n") >= 2)
    workers = actors(driver.pid)
    assert len(workers) == len(os.sched_getaffinity(0))
    kill(driver.pid)
    driver.communicate()
    written = path.read_bytes().splitlines(keepends=True)
    assert 2 <= len(written) < 12
    wait_for(lambda: not any(Path(f"/proc/{process}").exists() for process in workers))
    again = start(out)
    said, complaints = again.communicate(timeout=300)
    assert again.returncode == 0, complaints
    assert complaints == ""  # no chatter
    assert f"{12 - len(written)} certificates written" in said
    assert rows(out) == certify(tmp_path / "one", CertifySettings(n=40_000), None)
    assert set(written) <= set(path.read_bytes().splitlines(keepends=True))


def test_more_workers_than_the_cluster_has_are_refused(pool: RayPool, tmp_path: Path) -> None:
    line = f"{LINE} --out {tmp_path / 'out'} --engine ray --workers 999"
    assert_refused(line, "workers", "at most", "999", watched=(tmp_path,))
