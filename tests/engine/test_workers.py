"""Several engines share the images and write the same rows; one failure stops all cleanly."""

import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from sween.engine import Voters
from sween.engine.workers import Work, run_all
from sween.errors import BadInput
from sween.records import read_certificates
from sween.runs import verify_folder
from sween.sampling import CertifySettings
from tests.certifying import certify_digits

SETTINGS = CertifySettings(n=1_000)
CPU = torch.device("cpu")


def _certify(
    out: Path, devices: list[torch.device] | None, settings: CertifySettings, **options: Any
) -> list[tuple[Any, ...]]:
    certify_digits(out, settings, devices=devices, batch_size=1_000, **options)
    verify_folder(out)
    rows = sorted(read_certificates(out), key=lambda row: (row.index, row.model))
    return [(row.index, row.model, row.estimation_counts, row.radius, row.run) for row in rows]


@pytest.mark.parametrize(
    "settings",
    [
        SETTINGS,
        CertifySettings(n=1_000, sampling="decide", radii=(0.25,)),
        CertifySettings(n=5_000, n0=1_000, sampling="budget", budget=30_000),
    ],
    ids=lambda settings: settings.sampling,
)
def test_two_engines_write_the_same_rows_as_one(settings: CertifySettings, tmp_path: Path) -> None:
    members = settings.sampling == "fixed"
    one = _certify(tmp_path / "one", None, settings, members=members)
    two = _certify(tmp_path / "two", [CPU, CPU], settings, members=members)
    assert one == two
    assert len(one) == 12 * (4 if members else 1)


def test_a_run_of_two_engines_resumes_with_one(tmp_path: Path) -> None:
    whole = _certify(tmp_path / "whole", None, SETTINGS)
    _certify(tmp_path / "out", [CPU, CPU], SETTINGS)
    path = tmp_path / "out" / "certificates.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:5]))
    assert _certify(tmp_path / "out", None, SETTINGS) == whole


def test_devices_that_compute_differently_do_not_share_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when one of several GPUs could not be given the kernels that the others have."""
    known = list[int]()
    arithmetic: Any = vars(Voters)["arithmetic"].fget

    def other_on_the_second(voters: Voters) -> str:
        if id(voters) not in known:
            known.append(id(voters))
        return str(arithmetic(voters)) + ("+compiled" if known.index(id(voters)) else "")

    monkeypatch.setattr(Voters, "arithmetic", property(other_on_the_second))
    with pytest.raises(BadInput, match=r"expected float32, as on cpu, got float32\+compiled"):
        certify_digits(tmp_path / "out", SETTINGS, devices=[CPU, CPU])
    assert not (tmp_path / "out").exists()


def _run(
    engines: Any, groups: int, work: Work[int], progress: list[int]
) -> Generator[int, None, None]:
    """Engines that are only names."""
    return run_all(engines, [[k] for k in range(groups)], work, progress.append)


def _endless(
    engine: Any, group: Sequence[int], on_progress: Callable[[int], None]
) -> Iterator[int]:
    if engine == "broken":
        raise ValueError("this GPU fell off the bus")
    while True:
        yield 1
        time.sleep(0.001)


def test_the_free_engine_takes_the_next_group() -> None:
    done: dict[str, list[int]] = {"quick": [], "slow": []}

    def work(
        engine: Any, group: Sequence[int], on_progress: Callable[[int], None]
    ) -> Iterator[int]:
        time.sleep(0.05 if engine == "slow" else 0.001)
        done[engine].extend(group)
        on_progress(len(group))
        yield group[0]

    progress: list[int] = []
    items = list(_run(["quick", "slow"], 20, work, progress))
    assert sorted(done["quick"] + done["slow"]) == sorted(items) == list(range(20))
    assert len(done["quick"]) > len(done["slow"])
    assert progress == [1] * 20


def test_one_failure_stops_all_engines_and_is_raised() -> None:
    started = threading.active_count()
    with pytest.raises(ValueError, match="fell off the bus"):
        list(_run(["broken", "fine"], 3, _endless, []))
    assert threading.active_count() == started


def test_closing_early_stops_the_engines() -> None:
    started = threading.active_count()
    items = _run(["a", "b"], 2, _endless, [])
    next(items)
    items.close()
    assert threading.active_count() == started
