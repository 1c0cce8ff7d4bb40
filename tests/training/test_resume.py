"""Kill at any instant, run again, get the same weights; many candidates at once."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from sween.data import load_dataset
from sween.errors import BadInput, CheckFailed, CheckpointError, UnknownName
from sween.records import read_rows
from sween.runs.training import STATE_FILE
from sween.training import TrainConfig, train, train_many
from sween.training import trainer as trainer_module
from sween.training.state import TrainingState, load_state, save_state
from sween.training.trainer import Trainer

from .datasets import config, few_digits, files, interrupted, measured, same, weights

ARCHS = ("digits-mlp", "digits-conv", "tests.models.factories:with_dropout")
METHODS: dict[str, dict[str, Any]] = {
    "gaussian": {
        "average": 0.9,
        "copies": 2,
        "optimizer": "muon",
        "radius_gain": 0.9,
        "radius_gain_from": 2,
    },
    "macer": {"schedule": "step", "milestones": (3,), "regulariser_from": 3},
    "consistency": {
        "decay_norms": False,
        "attack_from": 2,
        "attack_steps": 1,
        "attack_size": 0.25,
    },
    "temporal": {"attack_from": 3, "attack_steps": 1, "attack_size": 0.25},
    "acr": {
        "attack_from": 3,
        "attack_steps": 1,
        "copies": 2,
        "votes": 10,
        "reweigh_from": 2,
        "reweigh_every": 2,
        "drop_below": 0.01,
    },
    "catrs": {"attack_from": 2, "attack_steps": 1, "copies": 2, "votes": 10},
}


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("teacher")
    train(config(sigma=0.25, epochs=3), few_digits(50), folder, quiet=True)
    return str(folder)


@pytest.fixture
def save_every_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_module, "SECONDS_BETWEEN_STATES", -1.0)


@pytest.mark.parametrize(("cost", "saves"), [(0.0, [1, 4, 7, 10]), (0.44, [1, 10])])
def test_states_that_take_long_to_save_are_saved_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cost: float, saves: list[int]
) -> None:
    """By a clock on which an epoch takes a second."""
    now, saved = 0.0, list[int]()

    def save(folder: Path, state: TrainingState, *, run: str) -> None:
        nonlocal now
        now += cost
        saved.append(state.epochs_done)

    class Clock:
        def monotonic(self) -> float:
            return now

        def perf_counter(self) -> float:
            nonlocal now
            now += 0.5  # at the start and at the end of an epoch
            return now

    monkeypatch.setattr(trainer_module, "time", Clock())
    monkeypatch.setattr(trainer_module, "save_state", save)
    monkeypatch.setattr(trainer_module, "SECONDS_BETWEEN_STATES", 2.0)
    train(config(epochs=12), few_digits(50), tmp_path, quiet=True)
    assert saved == saves


def test_a_finished_run_does_not_note_where_it_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, data = config(epochs=1), few_digits(50)
    train(own, data, tmp_path, quiet=True)
    before = files(tmp_path)
    monkeypatch.setenv("SWEEN_COMMIT", "another")
    assert train_many([own], data, [tmp_path], quiet=True) == [False]
    assert files(tmp_path) == before


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("stop_after", [1, 4, 7, 13])
@pytest.mark.usefixtures("save_every_epoch")
def test_a_stopped_run_ends_with_the_same_bits(
    tmp_path: Path, method: str, stop_after: int, teacher: str
) -> None:
    taught = {"teacher": teacher} if method == "catrs" else {}
    wanted = config(method=method, **METHODS[method], **taught)
    dataset = few_digits(50)
    train(wanted, dataset, tmp_path / "whole", quiet=True)
    interrupted(wanted, dataset, tmp_path / "stopped", stop_after)
    assert not (tmp_path / "stopped" / "model.safetensors").exists()
    # What a teacher said is kept at once.
    assert (load_state(tmp_path / "stopped") is None) == (stop_after < 4 and not taught)
    again = Trainer(wanted, dataset, tmp_path / "stopped", device=torch.device("cpu"))
    assert again.steps_left == 6 * 3 - (stop_after - 1) // 3 * 3
    train(wanted, dataset, tmp_path / "stopped", quiet=True)
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "stopped"))
    assert measured(tmp_path / "whole") == measured(tmp_path / "stopped")
    assert not (tmp_path / "stopped" / STATE_FILE).exists()


def test_a_teacher_is_asked_once(
    tmp_path: Path, teacher: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That may take longer than an epoch: a run that is stopped in its first does not repeat it."""
    wanted = config(method="catrs", **METHODS["catrs"], teacher=teacher, epochs=3)
    train(wanted, few_digits(50), tmp_path / "whole", quiet=True)
    interrupted(wanted, few_digits(50), tmp_path / "stopped", 1)

    def refuse(*_: object) -> torch.Tensor:
        raise AssertionError

    monkeypatch.setattr(trainer_module, "smoothed_targets", refuse)
    train(wanted, few_digits(50), tmp_path / "stopped", quiet=True)
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "stopped"))


def train_digits(method: str, out: Path) -> None:
    extra: dict[str, Any] = {"copies": 4} if method == "macer" else {}
    recipe = TrainConfig(
        dataset="digits", arch="digits-conv", sigma=0.5, method=method, epochs=8, **extra
    )
    train(recipe, load_dataset("digits"), out, quiet=True)


_SCRIPT = f"""
import sys
from pathlib import Path
from sween.training import trainer
from {__name__} import train_digits
trainer.SECONDS_BETWEEN_STATES = 0.0
train_digits(sys.argv[1], Path(sys.argv[2]))
"""


@pytest.mark.parametrize("method", ["gaussian", pytest.param("macer", marks=pytest.mark.slow)])
def test_a_killed_run_resumes(tmp_path: Path, method: str) -> None:
    train_digits(method, tmp_path / "whole")
    killed = tmp_path / "killed"
    command = [sys.executable, "-c", _SCRIPT, method, str(killed)]
    as_here = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    kills = 0
    for rows in (1, 3, 6):
        process = subprocess.Popen(command, cwd=Path(__file__).parents[2], env=as_here)
        path = killed / "metrics.jsonl"
        while process.poll() is None and (len(read_rows(path)) if path.exists() else 0) < rows:
            time.sleep(0.01)
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
            kills += 1
        process.wait()
    assert kills > 0
    train_digits(method, killed)
    assert same(weights(tmp_path / "whole"), weights(killed))
    assert measured(tmp_path / "whole") == measured(killed)


def test_a_finished_run_is_left_as_it_is(tmp_path: Path) -> None:
    train(config(epochs=1), few_digits(), tmp_path, quiet=True)
    before = files(tmp_path)
    (tmp_path / STATE_FILE).write_bytes(b"left by a kill after the last epoch")
    train(config(epochs=1), few_digits(), tmp_path, quiet=True)
    assert files(tmp_path) == before


def test_any_flipped_bit_of_the_state_is_found(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    tensors = {
        "model.weight": torch.randn(3, 4, generator=generator),
        "model.count": torch.tensor(7),
        "momentum.weight": torch.randn(3, 4, generator=generator).half(),
    }
    save_state(tmp_path, TrainingState(3, tensors))
    state, path = load_state(tmp_path), tmp_path / STATE_FILE
    assert state is not None
    assert state.epochs_done == 3
    assert same(state.tensors, tensors)
    content = path.read_bytes()
    for place in range(len(content)):
        for bit in range(8):
            flipped = bytearray(content)
            flipped[place] ^= 1 << bit
            path.write_bytes(flipped)
            with pytest.raises(CheckpointError, match=rf"{STATE_FILE}: .*delete"):
                load_state(tmp_path)


def test_a_run_does_not_resume_from_a_damaged_state(tmp_path: Path) -> None:
    interrupted(config(), few_digits(50), tmp_path, 4)  # the first epoch is saved at once
    path = tmp_path / STATE_FILE
    path.write_bytes(path.read_bytes()[:200])
    before = files(tmp_path)
    with pytest.raises(CheckpointError, match=rf"{STATE_FILE}.*delete that file"):
        train(config(), few_digits(50), tmp_path, quiet=True)
    assert files(tmp_path) == before


def test_the_note_has_loss_and_accuracy_of_the_last_epoch(tmp_path: Path) -> None:
    trainer = Trainer(config(epochs=2), few_digits(50), tmp_path, device=torch.device("cpu"))
    notes = list(trainer.run())
    wanted = [
        f"loss {loss:.3g}, acc {100 * accuracy:.1f}%" for _, loss, accuracy in measured(tmp_path)
    ]
    assert notes == ["epoch 1/2"] * 3 + [f"epoch 2/2, {wanted[0]}"] * 3
    assert trainer.note == f"epoch 2/2, {wanted[1]}"


def test_many_at_once_give_what_each_gives_alone(tmp_path: Path) -> None:
    configs = [config(seed=seed, arch=arch, epochs=2) for seed, arch in enumerate(ARCHS)]
    train_many(configs, few_digits(), [tmp_path / f"{k}" for k in range(3)], quiet=True)
    for k, wanted in enumerate(configs):
        train(wanted, few_digits(), tmp_path / f"alone{k}", quiet=True)
        assert same(weights(tmp_path / f"{k}"), weights(tmp_path / f"alone{k}"))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"learning_rate": 1e9}, "diverged"),
        ({"arch": "tests.models.factories:fails_in_training"}, "bad: ValueError: not this batch"),
    ],
)
def test_one_failing_does_not_stop_the_others(
    fields: dict[str, Any], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configs = [config(epochs=2), config(epochs=2, seed=1, **fields), config(epochs=1, seed=2)]
    outs = [tmp_path / name for name in ("good", "bad", "fine")]
    with pytest.raises(CheckFailed, match="1 of 3 candidates failed"):
        train_many(configs, few_digits(), outs, quiet=True)
    assert [(out / "model.safetensors").exists() for out in outs] == [True, False, True]
    assert message in capsys.readouterr().err


def test_running_out_of_memory_is_the_candidates_own_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(wanted: TrainConfig, *args: Any, **options: Any) -> Trainer:
        if wanted.seed == 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return Trainer(wanted, *args, **options)

    monkeypatch.setattr("sween.training.many.Trainer", make)
    outs = [tmp_path / name for name in ("large", "small")]
    with pytest.raises(CheckFailed, match=r"1 of 2 candidates failed: .*large: CUDA out of memory"):
        train_many([config(epochs=1, seed=1), config(epochs=1)], few_digits(), outs, quiet=True)
    assert (outs[1] / "model.safetensors").exists()


def test_an_invalid_request_is_refused_before_the_others_train(tmp_path: Path) -> None:
    configs = [config(epochs=1), config(epochs=1, arch="digits-cow")]
    with pytest.raises(UnknownName, match="digits-cow"):
        train_many(configs, few_digits(), [tmp_path / "a", tmp_path / "b"], quiet=True)
    outs = [tmp_path / "run", tmp_path / "other" / ".." / "run"]
    with pytest.raises(BadInput, match=r"outs: expected a different folder for each, got .*run 2"):
        train_many(configs, few_digits(), outs, quiet=True)
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_fails_in_its_first_epoch_leaves_no_state(tmp_path: Path, teacher: str) -> None:
    """What its teacher said is kept before; the corrected command must not start from there."""
    wanted = {"method": "catrs", "teacher": teacher, **METHODS["catrs"]}
    with pytest.raises(BadInput, match="diverged"):
        train(config(**wanted, learning_rate=1e30), few_digits(50), tmp_path / "out", quiet=True)
    assert not (tmp_path / "out").exists()


def test_a_state_that_was_left_by_another_config_is_refused(tmp_path: Path) -> None:
    interrupted(config(), few_digits(50), tmp_path / "run", 4)
    (tmp_path / "other").mkdir()
    state = (tmp_path / "run" / STATE_FILE).read_bytes()
    (tmp_path / "other" / STATE_FILE).write_bytes(state)
    with pytest.raises(CheckpointError, match=rf"{STATE_FILE}: .*this run, got .*delete"):
        train(config(seed=1), few_digits(50), tmp_path / "other", quiet=True)
    assert list(files(tmp_path / "other")) == [STATE_FILE]


@pytest.mark.usefixtures("save_every_epoch")
def test_the_state_of_another_network_is_refused(tmp_path: Path) -> None:
    for name in ("digits-conv", "digits-mlp"):
        interrupted(config(arch=name), few_digits(), tmp_path / name)
    state = (tmp_path / "digits-conv" / STATE_FILE).read_bytes()
    (tmp_path / "digits-mlp" / STATE_FILE).write_bytes(state)
    metrics = tmp_path / "digits-mlp" / "metrics.jsonl"
    metrics.write_text(2 * metrics.read_text())
    before = metrics.read_bytes()
    with pytest.raises(CheckpointError, match=rf"{STATE_FILE}: expected a training .* delete"):
        train(config(arch="digits-mlp"), few_digits(), tmp_path / "digits-mlp", quiet=True)
    assert metrics.read_bytes() == before


@pytest.mark.usefixtures("save_every_epoch")
def test_divergence_keeps_the_last_good_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def explode(wanted: TrainConfig, step: int, per_epoch: int) -> float:
        return 1e30 if step >= 2 * per_epoch else 0.01

    monkeypatch.setattr(trainer_module, "learning_rate", explode)
    with pytest.raises(Exception, match=r"diverged at epoch 3, step \d"):
        train(config(), few_digits(), tmp_path / "run", quiet=True)
    state = load_state(tmp_path / "run")
    assert state is not None
    assert state.epochs_done == 2
    assert all(bool(tensor.isfinite().all()) for tensor in state.tensors.values())
