"""The number of processes does not change a run: draws, batch statistics and loss are the same."""

import dataclasses
import itertools
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from PIL import Image
from torch._dynamo.utils import counters

from sween.errors import BadInput, CheckpointError
from sween.records import read_rows
from sween.run_folder import read_config
from sween.training import train, train_many
from sween.training.config import TrainConfig
from sween.training.distributed import Processes
from sween.training.keyed_draws import KeyedDraws
from sween.training.state import load_state
from sween.training.trainer import Trainer

from .datasets import config, few_digits, files, measured, same, weights
from .processes import BATCH, RUNS, normalise, norms, train_all, wanted, write_teacher

CPU = torch.device("cpu")
ROOT = Path(__file__).parents[2]
ALONE = Processes(0, 1)


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Processes]:
    """This process as the only one."""
    dist.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    yield ALONE
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes made; started as torchrun does, without the seconds it takes itself."""
    out = tmp_path_factory.mktemp("pair")
    write_teacher(out)
    with socket.create_server(("localhost", 0)) as free:
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    shared |= {"TORCHELASTIC_RUN_ID": "test"}
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.training.processes", str(out)],
            cwd=ROOT,
            env=os.environ | shared | {"RANK": rank, "LOCAL_RANK": rank},
        )
        for rank in ("0", "1")
    ]
    assert [process.wait(timeout=300) for process in started] == [0, 0]
    return out


def test_a_process_may_end_while_it_looks_for_failures() -> None:
    """Python ends threads at their next step; one in torch's C++ code would abort the process."""
    script = """
import socket, time
import torch.distributed as dist
from sween.training import torchrun

torchrun._POLL = 0.0  # it does nothing but look
with socket.create_server(("localhost", 0)) as free:
    port = free.getsockname()[1]
store = dist.TCPStore("localhost", port, 1, True)
torchrun._watch = torchrun._Watch(dist.PrefixStore("run", store), 0)
dist.destroy_process_group = lambda: None  # there is none; it would take time
time.sleep(0.2)
print("done")
torchrun.end_process()
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_a_process_leaves_after_the_first_one_has_printed_the_failure() -> None:
    """torchrun ends all processes when one leaves, and the line would be lost."""
    script = """
import os, sys, time
import torch.distributed as dist
from sween.training import torchrun

torchrun._POLL = torchrun._GRACE = 0.01
store, left = dist.HashStore(), []
os._exit = lambda code: (left.append(code), sys.exit())  # ends the thread that looks
torchrun._Watch(store, 2)
store.set("failure", "sween: error: of process 1")
time.sleep(0.5)
print(left)
first = torchrun._Watch(store, 0)
time.sleep(0.5)
first.report("sween: error: no answer from another process")
print(left)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout == "[]\n[2, 2]\n", done.stderr
    assert done.stderr == "sween: error: of process 1"


def assert_same_run(one: Path, other: Path) -> None:
    """One loss curve and the same weights, to float32 tolerance."""
    curves = [torch.tensor(measured(folder), dtype=torch.float64) for folder in (one, other)]
    torch.testing.assert_close(*curves, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(weights(one), weights(other), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", norms())
def test_batch_norms_see_the_whole_batch(name: str, pair: Path) -> None:
    parts = [torch.load(pair / f"norms{rank}")[name] for rank in (0, 1)]
    norm, values = norms()[name]
    whole = normalise(norm, values, slice(0, BATCH))
    for key in ("output", "gradient"):
        torch.testing.assert_close(torch.cat([part.pop(key) for part in parts]), whole.pop(key))
    for key, expected in whole.items():
        found = [part[key] for part in parts]
        if key.startswith("grad."):
            torch.testing.assert_close(sum(found), expected)
        else:
            assert torch.equal(*found)
            torch.testing.assert_close(found[0], expected)


def test_one_process_and_two_train_the_same(pair: Path, tmp_path: Path, alone: Processes) -> None:
    write_teacher(tmp_path)
    train_all(alone, tmp_path)
    for run in (*RUNS, "photos"):
        assert_same_run(tmp_path / run, pair / run)
        assert sorted(files(tmp_path / run)) == sorted(files(pair / run))


def test_images_weighed_by_the_network_s_own_votes_are_refused(
    tmp_path: Path, alone: Processes
) -> None:
    """Processes round differently, and one vote would change all later draws."""
    asked = config(method="acr")
    with pytest.raises(BadInput, match=r"method: .*got acr under torchrun; .*one process"):
        train_many([asked], few_digits(50), [tmp_path / "run"], quiet=True, processes=alone)
    assert not (tmp_path / "run").exists()


def test_a_memory_of_images_is_refused(tmp_path: Path, alone: Processes) -> None:
    """Each process would remember only the images that happened to be in its part."""
    asked = config(method="temporal")
    with pytest.raises(BadInput, match=r"method: .*got temporal under torchrun; .*one process"):
        train_many([asked], few_digits(50), [tmp_path / "run"], quiet=True, processes=alone)
    assert not (tmp_path / "run").exists()


def test_radius_gains_are_refused(tmp_path: Path, alone: Processes) -> None:
    asked = config(radius_gain=0.9)
    with pytest.raises(BadInput, match=r"radius_gain: .*got 0\.9 under torchrun; .*one process"):
        train_many([asked], few_digits(50), [tmp_path / "run"], quiet=True, processes=alone)
    assert not (tmp_path / "run").exists()


def test_the_state_of_two_processes_resumes_in_one(
    pair: Path, tmp_path: Path, alone: Processes
) -> None:
    stopped = pair / "stopped"
    state = load_state(stopped)
    assert state is not None
    assert state.epochs_done == 1
    train_many([wanted("gaussian")], few_digits(50), [stopped], quiet=True, processes=alone)
    assert_same_run(stopped, pair / "gaussian")


def test_plain_runs_and_keyed_ones_do_not_resume_each_other(
    tmp_path: Path, alone: Processes
) -> None:
    plain, keyed, dataset = tmp_path / "plain", tmp_path / "keyed", few_digits(50)
    asked = wanted("gaussian")
    train(asked, dataset, plain, quiet=True)
    train_many([asked], dataset, [keyed], quiet=True, processes=alone)
    assert read_config(keyed) == read_config(plain) | {"draws": "keyed by example"}
    assert TrainConfig.from_dict(read_config(keyed)) == asked
    before = files(plain), files(keyed)
    with pytest.raises(CheckpointError, match=r"without torchrun, as it was started, got .* under"):
        train_many([asked], dataset, [plain], quiet=True, processes=alone)
    with pytest.raises(CheckpointError, match=r"under torchrun, .* as it was started, got"):
        train(asked, dataset, keyed, quiet=True)
    assert (files(plain), files(keyed)) == before


def test_draws_belong_to_examples() -> None:
    keyed = KeyedDraws(CPU, compiled=False)

    def draw(epoch: int, examples: list[int], seed: int = 0) -> list[torch.Tensor]:
        keyed.start_epoch(seed, "training of a network", epoch)
        picks = torch.tensor(examples)
        shifts, flips = keyed.crop_flips(picks, padding=4)
        return [*keyed.noise(picks, (2, 3, 5)), shifts.T, flips]

    count = 3000
    *noise, shifts, flips = draw(0, list(range(count)))
    *some, some_shifts, some_flips = draw(0, [7, 2999, 0])
    for place, example in enumerate((7, 2999, 0)):
        assert torch.equal(some[place], noise[example])
        assert torch.equal(some_shifts[place], shifts[example])
        assert some_flips[place] == flips[example]
    for others in (draw(1, [7]), draw(0, [7], seed=1)):
        assert not torch.isin(others[0], noise[7]).any()
    together = torch.stack(noise)
    assert len(torch.unique(together)) > 0.999 * together.numel(), "examples share draws"
    assert together.mean().item() == pytest.approx(0, abs=0.015)
    assert together.std().item() == pytest.approx(1, abs=0.015)
    assert [tuple(torch.unique(one).tolist()) for one in shifts.T] == [tuple(range(9))] * 2
    frequencies = shifts.flatten().bincount() / (2 * count)
    assert frequencies.tolist() == pytest.approx([1 / 9] * 9, abs=0.02)
    assert flips.float().mean().item() == pytest.approx(0.5, abs=0.04)


def test_uniform_draws_belong_to_examples() -> None:
    keyed = KeyedDraws(CPU, compiled=False)
    keyed.start_epoch(0, "training of a network", 0)
    draws = keyed.uniforms(torch.arange(3000), 6)
    assert torch.equal(keyed.uniforms(torch.tensor([7, 2999]), 6), draws[[7, 2999]])
    assert 0 <= draws.min() < 0.001
    assert 0.999 < draws.max() < 1
    assert draws.mean().item() == pytest.approx(0.5, abs=0.01)
    assert draws.std().item() == pytest.approx(12**-0.5, abs=0.005)
    assert len(torch.unique(draws)) > 0.99 * draws.numel()


@pytest.mark.parametrize(("size", "count"), [(100, 3), (7, 7), (128, 1), (15, 2)])
def test_parts_cover_a_batch_evenly(size: int, count: int) -> None:
    slots = [list(range(size))[Processes(rank, count).part(size)] for rank in range(count)]
    assert list(itertools.chain(*slots)) == list(range(size))
    assert max(map(len, slots)) - min(map(len, slots)) <= 1


def test_more_processes_than_images_are_refused() -> None:
    with pytest.raises(BadInput, match=r"batch_size: expected at least 3, .*got 2; .*fewer"):
        Processes(0, 3).part(2)


@pytest.mark.slow
@pytest.mark.filterwarnings(  # of torch's own compiler
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"
)
@pytest.mark.parametrize("method", ["gaussian", "acr", "catrs"])
def test_the_compiled_step_trains_the_same_to_bfloat16(
    tmp_path: Path, alone: Processes, method: str
) -> None:
    """As on a GPU, where reductions are part of the compiled function."""
    write_teacher(tmp_path)
    if method == "acr":
        unweighed = {"drop_below": 0.0, "reweigh_every": 0}
        asked = config(method="acr", attack_from=1, attack_steps=2, epochs=3, **unweighed)
    else:
        asked = wanted(method, tmp_path)
    whole = few_digits(50)
    # Digits are checked against their white level, which a compiled function cannot do.
    splits = [dataclasses.replace(one, white=255) for one in (whole.train, whole.weights)]
    dataset = dataclasses.replace(whole, train=splits[0], weights=splits[1])
    counters["frames"].clear()
    # The limit of many candidates, which share the code of a step.
    with torch._dynamo.config.patch(recompile_limit=1):
        for fast in (True, False):
            out = tmp_path / str(fast)
            trainer = Trainer(asked, dataset, out, device=CPU, fast=fast, processes=alone)
            assert list(trainer.run())
    assert counters["frames"]["ok"] == counters["frames"]["total"] > 0, "some of it ran uncompiled"
    losses = [torch.tensor(measured(out))[:, 1] for out in (tmp_path / "True", tmp_path / "False")]
    torch.testing.assert_close(*losses, rtol=0.02, atol=0)


def torchrun(count: int, out: Path, *options: str) -> list[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    verb = ["--nproc-per-node", str(count), "-m", "sween", "train", "--quiet", "--sigma", "0.5"]
    return [*launcher, *verb, "--epochs", "6", "--batch-size", "100", "--out", str(out), *options]


DIGITS = ("--dataset", "digits", "--arch", "digits-resnet")


@pytest.mark.slow
def test_torchrun_with_any_number_of_processes_trains_the_same(tmp_path: Path) -> None:
    for count in (1, 2, 3):
        subprocess.run(torchrun(count, tmp_path / str(count), *DIGITS), check=True)
    assert_same_run(tmp_path / "1", tmp_path / "2")
    assert_same_run(tmp_path / "1", tmp_path / "3")
    losses = [loss for _, loss, _ in measured(tmp_path / "3")]
    assert losses[-1] < losses[0] / 2


@pytest.mark.slow
@pytest.mark.parametrize("augmentation", ["crop-flip", "resized-crop-flip"])
def test_torchrun_streams_each_process_its_part(
    augmentation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWEEN_CACHE", str(tmp_path / "cache"))
    random = np.random.default_rng(0)
    for folder in (tmp_path / "photos" / part / name for part in ("train", "val") for name in "ab"):
        folder.mkdir(parents=True)
        for number in range(12):
            pixels = random.integers(0, 256, (*random.integers(8, 20, 2), 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{number}.png")
    photos = ("--dataset", "image_folder", "--data-root", str(tmp_path / "photos"))
    arch = ("--image-size", "8", "--arch", "tests.models.factories:of_small_photos")
    batches = ("--batch-size", "7", "--augmentation", augmentation)  # parts of 3 and 4
    for name, count, limit in (("held", 2, "1000000"), ("read", 2, "1"), ("alone", 1, "1")):
        monkeypatch.setenv("SWEEN_STREAM_ABOVE", limit)
        command = torchrun(count, tmp_path / name, *photos, *arch, *batches)
        subprocess.run(command, cwd=ROOT, check=True)
    assert same(weights(tmp_path / "held"), weights(tmp_path / "read"))
    assert read_config(tmp_path / "held") == read_config(tmp_path / "alone")
    assert_same_run(tmp_path / "read", tmp_path / "alone")


@pytest.mark.slow
def test_a_killed_process_ends_the_run_which_resumes_with_another_number(tmp_path: Path) -> None:
    subprocess.run(torchrun(1, tmp_path / "whole", *DIGITS), check=True)
    killed = tmp_path / "killed"
    launcher = subprocess.Popen(torchrun(2, killed, *DIGITS), stderr=subprocess.PIPE, text=True)
    rows = killed / "metrics.jsonl"
    while not rows.exists() or len(read_rows(rows)) < 2:
        assert launcher.poll() is None
        time.sleep(0.01)
    children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
    os.kill(int(children[-1]), signal.SIGKILL)
    assert launcher.communicate(timeout=60)
    assert launcher.returncode != 0
    state = load_state(killed)
    assert state is not None
    assert 1 <= state.epochs_done < 6
    for count in (1, 3):
        resumed = tmp_path / f"resumed{count}"
        shutil.copytree(killed, resumed)
        subprocess.run(torchrun(count, resumed, *DIGITS), check=True)
        assert_same_run(resumed, tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dataset", "arch", "message"),
    [
        ("missing_in_one", "digits-mlp", "digits: .*got none; pass --data-root .process 1"),
        ("differing_pixel", "digits-mlp", r"process 1: .*got train_data \w+\.+ -> "),
        ("digits", "fails_in_one", "memory ran out .*: no memory left in process 1"),
        ("digits", "digits-mlpp", "unknown architecture 'digits-mlpp'"),
    ],
)
def test_a_failure_of_one_process_ends_all_with_one_line(
    tmp_path: Path, dataset: str, arch: str, message: str
) -> None:
    own = "tests.training.processes:"
    options = [name if "digits" in name else own + name for name in (dataset, arch)]
    command = torchrun(3, tmp_path / "run", "--dataset", options[0], "--arch", options[1])
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert answer.returncode != 0
    assert answer.stdout == ""
    said = [line for line in answer.stderr.splitlines() if line.startswith("sween: ")]
    assert len(said) == 1
    assert re.search(message, said[0])
    assert re.search(r"exitcode +: 2 ", answer.stderr)  # as torchrun reports it
    assert answer.stderr.count("Traceback (most recent call last)") == 1  # its own
    assert not (tmp_path / "run" / "model.safetensors").exists()
