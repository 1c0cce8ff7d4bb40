"""How members are compiled: what is asked for, what is recorded, and what happens if it fails."""

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from sween.engine import backends
from sween.engine import prepare as preparing
from sween.engine.arithmetic import InArithmetic
from sween.engine.forms import plain_form
from sween.engine.fuse_layers import fuse_layers
from sween.engine.preparation import DEFAULT_COMPILE_MODE, Preparation
from sween.engine.prepare import prepare
from sween.errors import CheckpointError, ContractError, PreparationWarning, UnknownName
from sween.run_folder import read_config
from sween.runs import CertificationRun
from sween.sampling import CertifySettings
from tests.certifying import certify_digits
from tests.engine.cudnn import Emulated, emulate
from tests.engine.kernels.networks import trained_looking
from tests.engine.test_prepare import BATCH_STATISTICS
from tests.smoothing.small import SHAPE, Computed, images, smoothed

GPU, CPU = torch.device("cuda"), torch.device("cpu")
SETTINGS = CertifySettings(n0=100, n=500)


@pytest.mark.parametrize(
    ("asked", "on_gpu", "on_cpu"),
    [
        (None, DEFAULT_COMPILE_MODE, None),
        (True, DEFAULT_COMPILE_MODE, "max"),
        (False, None, None),
        ("max", "max", "max"),
        ("fast", "fast", None),
    ],
)
def test_what_is_asked_for(
    asked: bool | str | None, on_gpu: str | None, on_cpu: str | None
) -> None:
    preparation = Preparation(compile=asked)
    assert (preparation.compile_mode(GPU), preparation.compile_mode(CPU)) == (on_gpu, on_cpu)


@pytest.mark.parametrize("asked", ["fastest", "", 3])
def test_other_ways_are_refused(asked: Any) -> None:
    with pytest.raises(UnknownName, match="fast, max"):
        smoothed(compile=asked)


@pytest.mark.parametrize(
    ("arithmetic", "asked"),
    [
        ("float32", False),
        ("float16+fused", True),
        ("float16+compiled", "max"),
        ("float16+fused, float16+compiled", "max"),
        ("float16+cudnn", "fast"),
        ("float16+cudnn+compiled", "fast"),
        ("float16+fused, float16+cudnn", "fast"),
        ("tf32+cudnn, tf32", "fast"),
    ],
)
def test_a_record_names_how_to_get_the_same_arithmetic(arithmetic: str, asked: bool | str) -> None:
    assert Preparation.recorded(arithmetic).compile == asked


def _network(seed: int = 0) -> nn.Module:
    return trained_looking("digits-resnet", seed, SHAPE)


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> Emulated:
    """Members are prepared as `fast` prepares them on a GPU, with an emulated cuDNN."""
    monkeypatch.setattr(Preparation, "compile_mode", lambda self, _: self.compile or None)
    return emulate(monkeypatch)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@torch.no_grad()
def test_fast_members(precision: str, on_gpu: Emulated) -> None:
    model = _network()
    before = copy.deepcopy(model.state_dict())
    plain = prepare(model, Preparation(precision), images())
    fast = prepare(model, Preparation(precision, "fast"), images())
    assert (fast.arithmetic, fast.compiled, fast.shared) == (f"{precision}+cudnn", True, False)
    assert on_gpu.plain > 0
    assert on_gpu.with_shortcut > 0
    tolerance = 1e-5 if precision == "float32" else 0.1
    assert torch.allclose(fast.run(images()), plain.run(images()), atol=tolerance)
    assert isinstance(fast.run, InArithmetic)
    for part in fast.run.modules():
        if isinstance(part, nn.Conv2d):
            assert part.weight.is_contiguous(memory_format=torch.channels_last)
    after = model.state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())


class OwnConstants(nn.Module):
    """Makes a float32 tensor in its code, which only autocast brings to a reduced precision."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(64), nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        own = torch.full_like(x.flatten(1), 0.5, dtype=torch.float32)
        out: torch.Tensor = self.linear(self.norm(x.flatten(1)) - own)
        return out


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize("whole", [True, False])
@torch.no_grad()
def test_all_layers_are_in_the_arithmetic_where_that_works(whole: bool) -> None:
    plain = nn.Sequential(nn.Flatten(), nn.LayerNorm(64), nn.Linear(64, 10))
    model: nn.Module = plain if whole else OwnConstants()
    fast = prepare(model.eval(), Preparation("bfloat16", "fast"), images())
    assert fast.arithmetic == "bfloat16+cudnn"
    assert isinstance(fast.run, InArithmetic)
    assert fast.run.whole is whole
    assert fast.run(images()).dtype == torch.float32
    assert torch.allclose(fast.run(images()), model(images()), atol=0.05)


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize("whole", [True, False])
@torch.no_grad()
def test_single_layers_run_only_where_fused_ones_do_not(
    whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Libraries take seconds to find kernels for some of them."""
    calls, right = list[int](), plain_form

    def counted(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        return right(*arguments, **options)

    monkeypatch.setattr(preparing, "plain_form", counted)
    model = _network() if whole else OwnConstants().eval()
    prepared = prepare(model, Preparation("bfloat16", "fast"), images())
    assert prepared.arithmetic == "bfloat16+cudnn"
    assert calls == ([] if whole else [1])


@pytest.mark.parametrize("change", ["none", "autocast", "channels first"])
def test_the_compiler_is_left_out_only_where_kernels_read_all_tensors(
    change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "is_all_fused", lambda module: True)
    ready = InArithmetic(nn.Conv2d(3, 4, 3), CPU, torch.float16, whole=change != "autocast")
    ready.channels_last = change != "channels first"
    batch: Any = SimpleNamespace(device=GPU)
    names = [*backends.by_libraries(ready, batch)]
    assert names == (["cudnn"] if change == "none" else ["cudnn+compiled", "cudnn"])


@pytest.mark.usefixtures("on_gpu")
def test_a_model_that_does_not_run_in_the_arithmetic_is_refused_without_a_warning() -> None:
    layer = nn.Linear(64, 10)
    nn.init.constant_(layer.weight, 3e4)
    model = nn.Sequential(nn.Flatten(), layer, nn.LayerNorm(10)).eval()
    with torch.no_grad(), pytest.raises(ContractError, match="float16"):
        prepare(model, Preparation("float16", "fast"), images())


@pytest.mark.usefixtures("on_gpu")
def test_a_fast_run_is_recorded_and_resumes_only_as_such(tmp_path: Path) -> None:
    rows = certify_digits(tmp_path, SETTINGS, 2, compile="fast")
    assert {row.precision for row in rows} == {"float32+cudnn"}
    assert read_config(tmp_path)["precision"] == "float32+cudnn"
    assert len(CertificationRun.read(tmp_path).rows) == 2
    with pytest.raises(CheckpointError, match=r"float32\+cudnn"):
        certify_digits(tmp_path, SETTINGS, 3, compile=False)


def test_fast_changes_nothing_on_a_cpu() -> None:
    prepared = prepare(_network(), Preparation(compile="fast"), images())
    assert (prepared.arithmetic, prepared.compiled) == ("float32", False)


@pytest.mark.usefixtures("on_gpu")
def test_a_fast_member_that_mixes_its_batch_is_refused() -> None:
    with pytest.raises(ContractError, match="rest of its batch"):
        smoothed(BATCH_STATISTICS, num_classes=4, compile="fast").certify(
            images(1), settings=SETTINGS
        )


class Aliased(nn.Module):
    """`+=` changes a tensor under two names, which a trace does not see."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.linear = nn.Conv2d(1, 1, 3, padding=1), nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = 2 * x
        other = kept
        kept += self.conv(x)
        out: torch.Tensor = self.linear((torch.relu(self.conv(kept)) + 9 * other).flatten(1))
        return out


@pytest.mark.usefixtures("on_gpu")
@torch.no_grad()
def test_a_module_that_tracing_misreads_is_not_fused() -> None:
    model = Aliased().eval()
    wanted = model(images())
    assert not torch.allclose(fuse_layers(model)(images()), wanted, atol=1e-2)
    prepared = prepare(model, Preparation(compile="fast"), images())
    assert torch.equal(prepared.run(images()), wanted)


@pytest.mark.parametrize("fault", ["capture", "wrong"])
@torch.no_grad()
def test_what_cannot_be_prepared_fast_is_used_plain_with_one_warning(
    fault: str, on_gpu: Emulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    def capture(run: nn.Module, _: torch.Tensor) -> nn.Module:
        if fault == "capture":
            raise RuntimeError("operation not permitted when stream is capturing")
        return Computed(lambda x: run(x).flip(1)) if fault == "wrong" else run

    monkeypatch.setattr(backends, "captured", capture)
    model = _network()
    message = {"capture": "stream is capturing", "wrong": "differ by"}[fault]
    with pytest.warns(PreparationWarning, match=f"cuDNN's fused convolutions.*{message}"):
        prepared = prepare(model, Preparation(compile="fast"), images())
    assert (prepared.arithmetic, prepared.compiled) == ("float32", False)
    assert torch.allclose(prepared.run(images()), model(images()), atol=1e-4)


def test_out_of_memory_in_fast_preparation_halves_the_pass(
    on_gpu: Emulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = list[int]()

    def capture(run: nn.Module, batch: torch.Tensor) -> nn.Module:
        tried.append(len(batch))
        if len(batch) > 150:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return run

    monkeypatch.setattr(backends, "captured", capture)
    engine = smoothed(_network(), compile="fast", forward_rows=400).engine
    engine.prepare(images(1)[0])
    assert tried == [400, 200, 100]
    assert (engine.forward_rows, engine.precision) == (100, "float32+cudnn")


@pytest.mark.usefixtures("on_gpu")
def test_without_any_kernel_of_cudnn_votes_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = smoothed(_network()).certify(images(2), settings=SETTINGS)
    emulate(monkeypatch, RuntimeError("no engine"))
    fast = smoothed(_network(), compile="fast").certify(images(2), settings=SETTINGS)
    assert [row.estimation_counts for row in fast] == [row.estimation_counts for row in plain]
