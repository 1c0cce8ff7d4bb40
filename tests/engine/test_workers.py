"""Several engines share the images and write the same rows; one failure stops all cleanly."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import sween
from sween.data import load_dataset
from sween.engine.workers import run_all
from sween.records import read_certificates
from sween.runs import verify_folder
from sween.sampling import CertifySettings
from tests.certifying import certify_into

NAME = "digits-sween3-gaussian-sigma0.50"
SETTINGS = CertifySettings(n=1_000)
CPU = torch.device("cpu")


def _certify(
    out: Path, devices: list[torch.device] | None, **options: Any
) -> list[tuple[Any, ...]]:
    certify_into(
        out,
        sween.load(NAME),
        load_dataset("digits"),
        list(range(12)),
        options.pop("settings", SETTINGS),
        devices=devices,
        batch_size=1_000,
        **options,
    )
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
    one = _certify(tmp_path / "one", None, settings=settings, members=members)
    two = _certify(tmp_path / "two", [CPU, CPU], settings=settings, members=members)
    assert one == two
    assert len(one) == 12 * (4 if members else 1)


def test_a_run_of_two_engines_resumes_with_one(tmp_path: Path) -> None:
    whole = _certify(tmp_path / "whole", None)
    _certify(tmp_path / "out", [CPU, CPU])
    path = tmp_path / "out" / "certificates.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:5]))
    assert _certify(tmp_path / "out", None) == whole


Progress = Callable[[int], None]


class _Engine:
    def __init__(self, name: str) -> None:
        self.name = name


def test_the_free_engine_takes_the_next_group() -> None:
    done: dict[str, list[int]] = {"quick": [], "slow": []}

    def work(
        engine: Any, group: Sequence[int], on_progress: Callable[[int], None]
    ) -> Iterator[int]:
        time.sleep(0.05 if engine.name == "slow" else 0.001)
        done[engine.name].extend(group)
        on_progress(len(group))
        yield group[0]

    progress: list[int] = []
    engines: Any = [_Engine("quick"), _Engine("slow")]
    items = list(run_all(engines, [[k] for k in range(20)], work, progress.append))
    assert sorted(done["quick"] + done["slow"]) == sorted(items) == list(range(20))
    assert len(done["quick"]) > len(done["slow"])
    assert progress == [1] * 20


def test_one_failure_stops_all_engines_and_is_raised() -> None:
    started = threading.active_count()

    def work(
        engine: Any, group: Sequence[int], on_progress: Callable[[int], None]
    ) -> Iterator[int]:
        if engine.name == "broken":
            raise ValueError("this GPU fell off the bus")
        while True:  # would go on for ever
            yield 1
            time.sleep(0.001)

    engines: Any = [_Engine("broken"), _Engine("fine")]
    with pytest.raises(ValueError, match="fell off the bus"):
        list(run_all(engines, [[1], [2], [3]], work, lambda _: None))
    assert threading.active_count() == started


def test_closing_early_stops_the_engines() -> None:
    started = threading.active_count()

    def work(
        engine: Any, group: Sequence[int], on_progress: Callable[[int], None]
    ) -> Iterator[int]:
        while True:
            yield 1
            time.sleep(0.001)

    engines: Any = [_Engine("a"), _Engine("b")]
    items = run_all(engines, [[1], [2]], work, lambda _: None)
    next(items)
    items.close()
    assert threading.active_count() == started
