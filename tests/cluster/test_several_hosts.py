"""Ray on several hosts, one of which is cut off: network namespaces with addresses of their own."""

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sween.sampling import CertifySettings
from tests.cluster.certified import certify, rows
from tests.cluster.processes import kill

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

pytest.importorskip("ray")

NETWORK, PORT = "10.213.77", 6379
LINE = "certify digits-sween3-gaussian-sigma0.50 --indices 0:12 --n 60000 --quiet --engine ray"


def ip(line: str, *, check: bool = True) -> bool:
    answer = subprocess.run(["ip", *line.split()], capture_output=True, check=False)
    assert answer.returncode == 0 or not check, answer.stderr
    return answer.returncode == 0


@contextlib.contextmanager
def hosts(count: int) -> Iterator[list[str]]:
    """Namespaces on one bridge, numbered from 1; host k has the address NETWORK.k."""
    tag = f"sw{os.getpid() % 10_000}"
    names = [f"{tag}n{k}" for k in range(1, count + 1)]
    if shutil.which("ip") is None or not ip(f"netns add {names[0]}", check=False):
        pytest.skip("no permission to make network namespaces")
    try:
        ip(f"link add {tag}br type bridge")
        ip(f"link set {tag}br up")
        for number, name in enumerate(names, start=1):
            if number > 1:
                ip(f"netns add {name}")
            ip(f"link add {name} type veth peer name eth0 netns {name}")
            ip(f"link set {name} master {tag}br up")
            ip(f"-n {name} address add {NETWORK}.{number}/24 dev eth0")
            ip(f"-n {name} link set eth0 up")
            ip(f"-n {name} link set lo up")
        yield names
    finally:
        for name in names:
            for process in subprocess.getoutput(f"ip netns pids {name}").split():
                with contextlib.suppress(ProcessLookupError):
                    kill(int(process))
            ip(f"netns del {name}", check=False)
        ip(f"link del {tag}br", check=False)


def inside(host: str, *command: str | Path, log: Path) -> "subprocess.Popen[bytes]":
    """A process of a host, whose death is noticed within seconds."""
    environment = {
        **os.environ,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "disabled",
        "RAY_health_check_period_ms": "1000",
        "RAY_health_check_timeout_ms": "1000",
        "RAY_health_check_failure_threshold": "3",
    }
    with log.open("wb") as output:
        return subprocess.Popen(
            ["ip", "netns", "exec", host, *map(str, command)],
            env=environment,
            stdout=output,
            stderr=output,
        )


@contextlib.contextmanager
def cluster(names: list[str], folder: Path) -> Iterator[None]:
    """A Ray head on the first host and a node on each of the others, with one core each."""
    ray = (sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus=1")
    nodes = list["subprocess.Popen[bytes]"]()
    try:
        for number, name in enumerate(names, start=1):
            where = ["--head", f"--port={PORT}", "--include-dashboard=false"]
            if number > 1:
                where = [f"--address={NETWORK}.1:{PORT}"]
            where += [f"--node-ip-address={NETWORK}.{number}", f"--temp-dir={folder}/{number}"]
            where += ["--object-store-memory=100000000"]
            nodes.append(inside(name, *ray, *where, log=folder / f"node{number}.log"))
            if number == 1:
                time.sleep(12)
        yield
    finally:
        for node in nodes:
            node.terminate()  # `ray start` then ends what it started
        for node in nodes:
            try:
                node.wait(timeout=30)
            except subprocess.TimeoutExpired:
                node.kill()
                node.wait()


def rows_in(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_a_host_that_is_cut_off_costs_its_blocks_only(tmp_path: Path) -> None:
    out = tmp_path / "out"
    path = out / "certificates.jsonl"
    short = Path("/tmp") / f"sween-hosts-{os.getpid()}"  # sockets need short paths
    short.mkdir()
    try:
        with hosts(3) as names, cluster(names, short):
            command = [sys.executable, "-m", "sween", *LINE.split(), "--out", str(out)]
            command += ["--ray-address", f"{NETWORK}.1:{PORT}", "--workers", "3"]
            end = time.monotonic() + 120
            while True:  # until all nodes have joined
                driver = inside(names[0], *command, log=tmp_path / "driver.log")
                while not rows_in(path) >= 2 and driver.poll() is None:
                    time.sleep(0.02)
                said = (tmp_path / "driver.log").read_text()
                if rows_in(path):
                    break
                logs = "\n".join(own.read_text() for own in sorted(short.glob("*.log")))
                assert time.monotonic() < end, said + logs
            assert 2 <= rows_in(path) < 12, said
            ip(f"link set {names[2]} down")
            code = driver.wait(timeout=300)
            assert code == 0, (tmp_path / "driver.log").read_text()
    finally:
        shutil.rmtree(short, ignore_errors=True)
    assert rows(out) == certify(tmp_path / "one", CertifySettings(n=60_000), None)
