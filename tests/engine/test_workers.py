"""Several engines share the images and write the same rows; a failure of one stops all, cleanly."""

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import sween
from sween.data import load_dataset
from sween.engine.workers import Emit, run_all
from sween.records import read_certificates
from sween.smoothing import CertifySettings, certify_images, verify_folder

NAME = "digits-sween3-gaussian-sigma0.50"
SETTINGS = CertifySettings(n=1_000)
CPU = torch.device("cpu")


def _certify(
    out: Path, devices: list[torch.device] | None, **options: Any
) -> list[tuple[Any, ...]]:
    certify_images(
        sween.load(NAME),
        load_dataset("digits"),
        list(range(12)),
        options.pop("settings", SETTINGS),
        out,
        devices=devices,
        batch_size=1_000,
        quiet=True,
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
def test_two_engines_write_the_rows_of_one(settings: CertifySettings, tmp_path: Path) -> None:
    members = settings.sampling == "fixed"
    one = _certify(tmp_path / "one", None, settings=settings, members=members)
    two = _certify(tmp_path / "two", [CPU, CPU], settings=settings, members=members)
    assert one == two
    assert len(one) == 12 * (4 if members else 1)


def test_a_run_of_two_goes_on_with_one(tmp_path: Path) -> None:
    whole = _certify(tmp_path / "whole", None)
    _certify(tmp_path / "out", [CPU, CPU])
    path = tmp_path / "out" / "certificates.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:5]))
    assert _certify(tmp_path / "out", None) == whole


class _Engine:
    def __init__(self, name: str) -> None:
        self.name = name


def test_the_free_engine_takes_the_next_group() -> None:
    done: dict[str, list[int]] = {"quick": [], "slow": []}

    def work(engine: Any, group: Sequence[int], emit: Emit) -> None:
        time.sleep(0.05 if engine.name == "slow" else 0.001)
        done[engine.name].extend(group)
        emit(len(group))

    items: list[Any] = []
    run_all([_Engine("quick"), _Engine("slow")], [[k] for k in range(20)], work, items.append)  # type: ignore[list-item]
    assert sorted(done["quick"] + done["slow"]) == list(range(20))
    assert len(done["quick"]) > len(done["slow"])
    assert items == [1] * 20


def test_one_failure_stops_all_and_is_told() -> None:
    started = threading.active_count()
    handled: list[Any] = []

    def work(engine: Any, group: Sequence[int], emit: Emit) -> None:
        if engine.name == "broken":
            raise ValueError("this GPU fell off the bus")
        while True:  # would go on for ever
            emit(1)
            time.sleep(0.001)

    with pytest.raises(ValueError, match="fell off the bus"):
        run_all([_Engine("broken"), _Engine("fine")], [[1], [2], [3]], work, handled.append)  # type: ignore[list-item]
    assert threading.active_count() == started


def test_an_error_while_writing_stops_the_engines() -> None:
    started = threading.active_count()

    def work(engine: Any, group: Sequence[int], emit: Emit) -> None:
        while True:
            emit(1)
            time.sleep(0.001)

    def full_disk(item: Any) -> None:
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        run_all([_Engine("a"), _Engine("b")], [[1], [2]], work, full_disk)  # type: ignore[list-item]
    assert threading.active_count() == started
