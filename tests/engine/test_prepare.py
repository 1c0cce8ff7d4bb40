"""Prepared members: folded, in the right arithmetic, following their module."""

import copy
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

from sween.engine.fold_batch_norm import fold_batch_norm
from sween.engine.prepare import Member, Preparation, prepare
from sween.ensemble import WeightedEnsemble
from sween.errors import BadInput, ContractError, PreparationWarning, UnknownName
from sween.models import create_model
from sween.sampling import CertifySettings
from sween.smoothing import SmoothedClassifier

CPU = torch.device("cpu")
SETTINGS = CertifySettings(n0=100, n=500)


def used(arch: str, shape: tuple[int, int, int], seed: int = 0) -> nn.Module:
    """A network whose batch norm has non-trivial statistics and parameters."""
    model = create_model(arch, num_classes=10, image_shape=shape, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    for part in model.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            for tensor, low in ((part.running_mean, -0.5), (part.running_var, 0.5)):
                assert tensor is not None
                tensor.copy_(torch.rand(tensor.shape, generator=generator) + low)
            with torch.no_grad():
                part.weight.copy_(torch.rand(part.weight.shape, generator=generator) + 0.5)
                part.bias.copy_(torch.rand(part.bias.shape, generator=generator) - 0.5)
    return model.eval()


def norms(module: nn.Module) -> int:
    return sum(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in module.modules())


@pytest.mark.parametrize(
    ("arch", "shape"),
    [
        ("digits-mlp", (1, 8, 8)),
        ("digits-conv", (1, 8, 8)),
        ("digits-resnet", (1, 8, 8)),
        ("resnet20", (3, 32, 32)),
        ("imagenet-resnet18", (3, 64, 64)),
        ("imagenet-resnet50", (3, 64, 64)),
    ],
)
@torch.no_grad()
def test_folding_leaves_no_batch_norm_and_the_same_outputs(
    arch: str, shape: tuple[int, int, int]
) -> None:
    model = used(arch, shape)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    images = torch.rand(4, *shape)
    folded = fold_batch_norm(model)
    wanted = model(images)
    assert norms(folded) == 0
    assert float((folded(images) - wanted).abs().max()) < 1e-4 * float(wanted.abs().max())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    if norms(model):
        assert folded is not model


class TwoNorms(nn.Module):
    """One convolution before two norms: folding either would break the other."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.one, self.two = nn.BatchNorm2d(4), nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.conv(x)
        both: torch.Tensor = self.one(out) * self.two(out)
        return both.mean(dim=(2, 3))


class CalledTwice(TwoNorms):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        both: torch.Tensor = self.one(self.conv(x)) + self.two(self.conv(x.flip(3)))
        return both.mean(dim=(2, 3))


class LooksAtValues(TwoNorms):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sign = 1 if float(x.sum()) > 0 else -1
        out: torch.Tensor = self.one(self.conv(x))
        return out.mean(dim=(2, 3)) * sign


class WithoutStatistics(nn.Module):
    """Batch norm that always uses the batch: not to be folded, and refused as a member."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, track_running_stats=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.norm(self.conv(x)).square().mean(dim=(2, 3))
        return out


@pytest.mark.parametrize("kind", [TwoNorms, CalledTwice, LooksAtValues, WithoutStatistics])
@torch.no_grad()
def test_a_module_that_cannot_be_folded_is_unchanged(kind: type[nn.Module]) -> None:
    model = kind().eval()
    for part in model.modules():
        if isinstance(part, nn.BatchNorm2d) and part.running_mean is not None:
            part.running_mean.uniform_(-1, 1)
    images = torch.rand(4, 1, 8, 8)
    assert torch.equal(fold_batch_norm(model)(images), model(images))


def test_a_module_that_uses_its_batch_is_still_refused() -> None:
    smoothed = SmoothedClassifier(WithoutStatistics(), sigma=0.5, num_classes=4)
    with pytest.raises(ContractError, match="rest of its batch"):
        smoothed.certify(torch.rand(1, 1, 8, 8), settings=SETTINGS)


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_reduced_precision_is_recorded_and_close(precision: str) -> None:
    images = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    model = used("digits-resnet", (1, 8, 8))
    plain, reduced = (
        SmoothedClassifier(model, sigma=0.5, num_classes=10, precision=name).certify(
            images, settings=SETTINGS
        )
        for name in ("float32", precision)
    )
    for one, other in zip(plain, reduced, strict=True):
        pairs = zip(one.estimation_counts, other.estimation_counts, strict=True)
        assert sum(abs(a - b) for a, b in pairs) <= 0.1 * SETTINGS.n
        assert (one.precision, other.precision) == ("float32", precision)
    member = Member(model, Preparation(precision))
    with torch.no_grad():
        difference = (member(images) - model(images)).abs().max()
    assert 0 < float(difference) < 0.05, "the arithmetic is the requested one"


class Overflows(nn.Module):
    """Fine in float32, infinite in float16."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 2)
        nn.init.constant_(self.layer.weight, 3e4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(x.flatten(1))
        return out


def test_a_model_that_needs_float32_is_refused_in_float16() -> None:
    images = torch.rand(1, 1, 8, 8)
    refused = SmoothedClassifier(Overflows(), sigma=0.5, num_classes=2, precision="float16")
    with pytest.raises(ContractError, match=r"in float16 .*--precision float32"):
        refused.certify(images, settings=SETTINGS)
    with pytest.raises(UnknownName, match="did you mean 'float16'"):
        SmoothedClassifier(Overflows(), sigma=0.5, num_classes=2, precision="flot16")


def test_a_member_follows_its_parameters_and_buffers() -> None:
    model = used("digits-conv", (1, 8, 8))
    member = Member(model, Preparation())
    images = torch.rand(8, 1, 8, 8)
    first = member(images).clone()
    member.refresh(images)
    assert torch.equal(member(images), first)
    with torch.no_grad():
        next(model.parameters()).mul_(2)
    member.refresh(images)
    second = member(images)
    assert torch.allclose(second, model(images), atol=1e-4)
    assert not torch.allclose(second, first, atol=1e-2)
    buffer = next(b for b in model.buffers() if b.ndim == 1)
    buffer.add_(1)
    member.refresh(images)
    assert torch.allclose(member(images), model(images), atol=1e-4)
    assert not torch.allclose(member(images), second, atol=1e-2)


def test_certificates_follow_a_model_that_changes_between_calls() -> None:
    """The prepared copy must not outlive the weights it was made from."""
    model, image = used("digits-resnet", (1, 8, 8)), torch.rand(1, 1, 8, 8)
    smoothed = SmoothedClassifier(WeightedEnsemble([model]), sigma=0.5, num_classes=10)
    before = smoothed.certify(image, settings=SETTINGS, indices=[0])[0]
    model.load_state_dict(used("digits-resnet", (1, 8, 8), seed=5).state_dict())
    after = smoothed.certify(image, settings=SETTINGS, indices=[0])[0]
    fresh = SmoothedClassifier(copy.deepcopy(model), sigma=0.5, num_classes=10)
    assert after.estimation_counts == fresh.certify(image, settings=SETTINGS)[0].estimation_counts
    assert after.estimation_counts != before.estimation_counts


def test_a_model_that_does_not_compile_is_used_uncompiled_with_one_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no compiler here\nand a long story")

    monkeypatch.setattr(torch, "compile", fail)
    model, images = used("digits-conv", (1, 8, 8)), torch.rand(8, 1, 8, 8)
    with pytest.warns(PreparationWarning, match="cannot be compiled, .*: no compiler here$"):
        prepared = prepare(model, Preparation(compile=True), images)
    assert not prepared.compiled
    assert torch.allclose(prepared.run(images), model(images), atol=1e-4)
    with pytest.warns(PreparationWarning):
        row = SmoothedClassifier(model, sigma=0.5, num_classes=10, compile=True).certify(
            images[:1], settings=SETTINGS
        )[0]
    assert row.precision == "float32", "the record must not claim what was not done"


def test_out_of_memory_while_compiling_is_not_a_failed_compilation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "compile", fail)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(torch.OutOfMemoryError):
            prepare(
                used("digits-conv", (1, 8, 8)), Preparation(compile=True), torch.rand(2, 1, 8, 8)
            )


def test_precision_reports_tf32_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device("cuda")
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    assert Preparation("float32").describe(gpu) == "tf32"
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    assert Preparation("float32").describe(gpu, "compiled") == "float32+compiled"
    assert Preparation().describe(gpu, "compiled") == "float16+compiled"
    assert Preparation().describe(CPU) == "float32"


@pytest.mark.parametrize("rows", [1, 7, 100])
@torch.inference_mode()
def test_rows_of_a_prepared_member_do_not_depend_on_their_batch(rows: int) -> None:
    """Bit for bit at one shape: the same noisy image at another position among other images."""
    model = used("resnet20", (3, 32, 32))
    images = torch.rand(rows, 3, 32, 32)
    member = Member(model, Preparation())
    wanted = member(images)
    moved = member(images.flip(0)).flip(0)
    assert torch.equal(moved, wanted)
    others = torch.rand(rows, 3, 32, 32)
    others[0] = images[0]
    assert torch.equal(member(others)[0], wanted[0])


def test_the_module_itself_is_not_changed_by_certifying(tmp_path: Path) -> None:
    model = used("digits-resnet", (1, 8, 8))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    SmoothedClassifier(model, sigma=0.5, num_classes=10, precision="bfloat16").certify(
        torch.rand(1, 1, 8, 8), settings=SETTINGS
    )
    after = model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert all(before[name].dtype == after[name].dtype for name in before)


class TwoInARow(nn.Module):
    """A convolution and two norms: the second must be folded into the result of the first."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.BatchNorm2d(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(x)
        return out.mean(dim=(2, 3))


@torch.no_grad()
def test_two_norms_in_a_row_are_both_folded() -> None:
    model = TwoInARow().eval()
    for part in model.modules():
        if isinstance(part, nn.BatchNorm2d):
            assert part.running_mean is not None
            part.running_mean.uniform_(-1, 1)
            part.weight.uniform_(0.5, 2)
    images, folded = torch.rand(4, 1, 8, 8), fold_batch_norm(model)
    assert norms(folded) == 0
    assert float((folded(images) - model(images)).abs().max()) < 1e-5


class Random(TwoInARow):
    """A random module: tracing would freeze its draw and make it look deterministic."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + torch.randn(4)


def test_a_random_module_is_refused() -> None:
    smoothed = SmoothedClassifier(Random(), sigma=0.5, num_classes=4)
    with pytest.raises(ContractError, match=r"the same outputs each time.* change by 0\.\d+ of"):
        smoothed.certify(torch.rand(1, 1, 8, 8), settings=SETTINGS)


def test_a_wrongly_compiled_model_is_used_uncompiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "sween.engine.prepare.compiled", lambda module, images: lambda x: module(x).flip(1)
    )
    model, images = used("digits-conv", (1, 8, 8)), torch.rand(8, 1, 8, 8)
    with pytest.warns(PreparationWarning, match=r"cannot be compiled, .* differ by 0\.\d+ of"):
        prepared = prepare(model, Preparation(compile=True), images)
    assert (prepared.compiled, prepared.arithmetic) == (False, "float32")


def test_a_precision_that_changes_during_a_run_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows of a run must have the arithmetic named in its config."""
    model, image = used("digits-conv", (1, 8, 8)), torch.rand(1, 8, 8)
    engine = SmoothedClassifier(model, sigma=0.5, num_classes=10).engine
    engine.prepare(image)
    monkeypatch.setattr(Preparation, "describe", lambda *_, **__: "float16")
    engine._voters.members[0].forget()
    with pytest.raises(BadInput, match=r"expected float32, as when .*got float16"):
        engine.prepare(image)
