"""Prepared members: folded, in the right arithmetic, following their module."""

import copy
import itertools
import runpy
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import sween
from sween.data import load_dataset
from sween.engine import prepare as prepare_module
from sween.engine import same_outputs
from sween.engine.fold_batch_norm import fold_batch_norm
from sween.engine.forward import FixedShapeForward, check_row_independence
from sween.engine.member import Member
from sween.engine.preparation import Preparation
from sween.engine.prepare import prepare
from sween.ensemble import WeightedEnsemble
from sween.errors import BadInput, ContractError, PreparationWarning, UnknownName
from sween.run_folder import read_config
from sween.sampling import CertifySettings
from tests.certifying import certify_digits
from tests.engine.kernels.networks import norms_of, trained_looking, with_statistics
from tests.smoothing.small import SHAPE, ZOO, Computed, counts, images, smoothed

SETTINGS = CertifySettings(n0=100, n=500)


def _network(arch: str = "digits-conv", seed: int = 0) -> nn.Module:
    return trained_looking(arch, seed, SHAPE)


def _state(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def _is_in_state(model: nn.Module, state: dict[str, torch.Tensor]) -> bool:
    now = model.state_dict()
    return all(
        torch.equal(tensor, now[name]) and tensor.dtype == now[name].dtype
        for name, tensor in state.items()
    )


@pytest.mark.parametrize(
    ("arch", "shape"),
    [
        ("digits-mlp", SHAPE),
        ("digits-conv", SHAPE),
        ("digits-resnet", SHAPE),
        ("resnet20", (3, 32, 32)),
        ("imagenet-resnet18", (3, 64, 64)),
        ("imagenet-resnet50", (3, 64, 64)),
    ],
)
@torch.no_grad()
def test_folding_leaves_no_batch_norm_and_the_same_outputs(
    arch: str, shape: tuple[int, int, int]
) -> None:
    model, batch = trained_looking(arch, shape=shape), torch.rand(4, *shape)
    before = _state(model)
    folded, wanted = fold_batch_norm(model), model(batch)
    assert not norms_of(folded)
    assert float((folded(batch) - wanted).abs().max()) < 1e-4 * float(wanted.abs().max())
    assert _is_in_state(model, before)
    if norms_of(model):
        assert folded is not model


class Normalised(nn.Module):
    """A convolution and two batch norms, combined by a function of this module and the batch."""

    def __init__(self, combine: Callable[[Any, torch.Tensor], torch.Tensor], **options: Any):
        super().__init__()
        self.conv, self.combine = nn.Conv2d(1, 4, 3), combine
        self.one, self.two = nn.BatchNorm2d(4, **options), nn.BatchNorm2d(4, **options)
        with_statistics(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.combine(self, x).mean(dim=(2, 3))


def _in_a_row(net: Normalised, x: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = net.two(net.one(net.conv(x)))
    return out


@torch.no_grad()
def test_two_norms_in_a_row_are_both_folded() -> None:
    model = Normalised(_in_a_row)
    folded = fold_batch_norm(model)
    assert not norms_of(folded)
    assert float((folded(images()) - model(images())).abs().max()) < 1e-5


BATCH_STATISTICS = Normalised(
    lambda net, x: net.one(net.conv(x)).square(), track_running_stats=False
)
NOT_FOLDABLE = {
    "two norms after one convolution": Normalised(
        lambda net, x: net.one(out := net.conv(x)) * net.two(out)
    ),
    "convolution called twice": Normalised(
        lambda net, x: net.one(net.conv(x)) + net.two(net.conv(x.flip(3)))
    ),
    "depends on values": Normalised(
        lambda net, x: net.one(net.conv(x)) * (1 if float(x.sum()) > 0 else -1)
    ),
    "batch statistics": BATCH_STATISTICS,
}


@pytest.mark.parametrize("why", NOT_FOLDABLE)
@torch.no_grad()
def test_a_module_that_cannot_be_folded_is_unchanged(why: str) -> None:
    model = NOT_FOLDABLE[why]
    assert torch.equal(fold_batch_norm(model)(images()), model(images()))


RANDOM = Normalised(lambda net, x: _in_a_row(net, x) + torch.randn(4, 1, 1))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (BATCH_STATISTICS, "rest of its batch"),
        # Tracing would freeze its draw and make it look deterministic.
        (RANDOM, r"the same outputs each time.* change by \S+ of"),
    ],
    ids=["batch statistics", "random"],
)
def test_a_module_that_is_not_a_function_of_one_image_is_refused(
    model: nn.Module, message: str
) -> None:
    with pytest.raises(ContractError, match=message):
        smoothed(model, num_classes=4).certify(images(1), settings=SETTINGS)


def _by_place(outputs: torch.Tensor, size: float = 1e-3) -> torch.Tensor:
    return outputs * (1 + size * (torch.arange(len(outputs)) % 2)[:, None])


def _by_batch(outputs: torch.Tensor) -> torch.Tensor:
    return outputs + 1e-3 * outputs.mean(dim=0)


def _by_batch_slightly(outputs: torch.Tensor) -> torch.Tensor:
    return outputs + 3e-6 * outputs.mean()


def _less_the_largest(outputs: torch.Tensor) -> torch.Tensor:
    """Also of other images, as in a softmax written by hand."""
    return outputs - outputs.max()


@pytest.mark.parametrize(
    ("change", "precision", "refused"),
    [
        (_by_place, "float32", True),
        (_by_place, "bfloat16", False),
        (_by_batch, "float32", True),
        (_by_batch, "bfloat16", True),
        (_by_batch_slightly, "float32", True),
        (_by_batch_slightly, "bfloat16", True),
        (_less_the_largest, "float32", True),
    ],
)
def test_only_the_place_in_a_batch_may_change_the_last_bits(
    change: Callable[[torch.Tensor], torch.Tensor], precision: str, refused: bool
) -> None:
    """Libraries sum some rows in another order; batch-mates must not matter in any arithmetic."""
    torch.manual_seed(0)
    body = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
    model = smoothed(
        Computed(lambda x: change(body(x).float())), num_classes=4, precision=precision
    )
    with pytest.raises(ContractError, match="rest of its batch") if refused else nullcontext():
        model.certify(images(1), settings=SETTINGS)


HONEST: dict[str, Callable[[], tuple[nn.Module, tuple[int, int, int]]]] = {
    "digits-mlp": lambda: (trained_looking("digits-mlp", shape=SHAPE), SHAPE),
    "digits-resnet": lambda: (trained_looking("digits-resnet", shape=SHAPE), SHAPE),
    "resnet20": lambda: (trained_looking("resnet20"), (3, 32, 32)),
    "resnet20x2": lambda: (trained_looking("resnet20x2"), (3, 32, 32)),
    "imagenet-resnet18": lambda: (
        trained_looking("imagenet-resnet18", shape=(3, 64, 64)), (3, 64, 64)
    ),
    "transformer": lambda: (_stranger("vit_small", image_shape=(3, 32, 32)), (3, 32, 32)),
    "ConvNeXt": lambda: (_stranger("convnext_tiny"), (3, 64, 64)),
}  # fmt: skip


def _stranger(name: str, **options: Any) -> nn.Module:
    path = Path(__file__).parents[2] / "benchmarks" / "strangers.py"
    torch.manual_seed(0)
    network: nn.Module = runpy.run_path(str(path))[name](10, **options)
    return network.eval()


@pytest.mark.parametrize("rows", [7, 100])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", HONEST)
def test_honest_networks_are_not_refused_for_rounding(name: str, precision: str, rows: int) -> None:
    model, shape = HONEST[name]()
    rows = rows if name in ("digits-mlp", "digits-resnet", "resnet20") else min(rows, 20)
    preparation = Preparation(precision)
    member, image = Member(model, preparation), torch.rand(shape)
    probed = check_row_independence(
        member,
        FixedShapeForward(10, rows),
        image,
        0.5,
        elsewhere_allowed=preparation.change_with_place(image.device),
    )
    assert not probed.probabilities


def test_a_module_that_sums_in_another_order_each_time_is_told_so() -> None:
    calls = itertools.count()
    body = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
    model = smoothed(Computed(lambda x: body(x) * (1 + 1e-6 * next(calls))), num_classes=4)
    with pytest.raises(ContractError, match="use_deterministic_algorithms"):
        model.certify(images(1), settings=SETTINGS)


def test_small_changes_with_the_place_also_leave_rows_in_theirs() -> None:
    """Else the last bits of a gathered row would depend on which others go on."""
    body = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    probed = check_row_independence(
        lambda x: _by_place(body(x), size=1e-6), FixedShapeForward(10, 100), images(1)[0], 0.5
    )
    assert probed.by_place


def test_an_exit_leaves_rows_in_their_places_where_places_matter() -> None:
    """Gathered, a row's place would depend on which others go on, so votes on their batch-mates."""
    first, second, _ = sween.load("digits-sween3-gaussian-sigma0.50").members
    ensemble = WeightedEnsemble(
        [first, Computed(lambda x: _by_place(second(x).float(), size=1e-2))], [0.6, 0.4]
    )
    digits = load_dataset("digits").test.images([3, 4])
    found = [
        smoothed(
            ensemble, exit="exact", precision="bfloat16", forward_rows=100, batch_size=size
        ).certify(digits, n=10_000, seed=0, indices=[3, 4])
        for size in (500, 1_500)
    ]
    one, other = ([row.estimation_counts for row in rows] for rows in found)
    assert one == other


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_config_of_a_run_names_the_arithmetic_that_voted(
    precision: str, tmp_path: Path
) -> None:
    run = certify_digits(tmp_path, SETTINGS, 1, precision=precision)
    assert read_config(tmp_path)["precision"] == precision
    assert {row.precision for row in run} == {precision}


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_reduced_precision_is_recorded_and_close(precision: str) -> None:
    model = _network("digits-resnet")
    before = _state(model)
    plain, reduced = (
        smoothed(model, precision=name).certify(images(), settings=SETTINGS)
        for name in ("float32", precision)
    )
    for one, other in zip(plain, reduced, strict=True):
        pairs = zip(one.estimation_counts, other.estimation_counts, strict=True)
        assert sum(abs(a - b) for a, b in pairs) <= 0.1 * SETTINGS.n
        assert (one.precision, other.precision) == ("float32", precision)
    with torch.no_grad():
        difference = (Member(model, Preparation(precision))(images()) - model(images())).abs().max()
    assert 0 < float(difference) < 0.05, "the arithmetic is the requested one"
    assert _is_in_state(model, before), "the module itself is not changed"


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_fold_that_changes_the_network_is_not_used(
    precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change by a twentieth of the range, which could pass for rounding in bfloat16."""

    class Wrong(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 1.05 * self.module(x)  # type: ignore[no-any-return]

    network = sween.load(ZOO).members[0].eval()
    wanted = prepare(network, Preparation(precision), images(8)).run(images(8))
    monkeypatch.setattr("sween.engine.prepare.fold_batch_norm", Wrong)
    found = prepare(network, Preparation(precision), images(8)).run(images(8))
    torch.testing.assert_close(found, wanted, rtol=0.02, atol=0.02)


class _Counted(nn.Module):
    """Sums of pixels by class; notes how many images it gets, of which its code may fix a number.

    `at` is where sums are off.
    """

    def __init__(self, *, fixed: int | None = None, at: int | None = None) -> None:
        super().__init__()
        self.fixed, self.at, self.seen = fixed, at, list[int]()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(len(x))
        if self.fixed not in (None, len(x)):
            raise RuntimeError(f"expected {self.fixed} images")
        sums = x.flatten(1)[:, :10].clone()
        if self.at is not None and self.at < len(x):
            sums[self.at] += 1
        return sums


@pytest.mark.parametrize("fixed", [None, 40])
def test_forms_are_compared_on_few_images_unless_the_code_fixes_their_number(
    monkeypatch: pytest.MonkeyPatch, fixed: int | None
) -> None:
    monkeypatch.setattr(same_outputs, "ROWS_COMPARED", 6)
    module, batch = _Counted(fixed=fixed), torch.rand(40, *SHAPE)
    form = _Counted()
    assert same_outputs.computes_the_same(form, module, batch)
    assert form.seen == [fixed or 6]
    assert not same_outputs.computes_the_same(_Counted(at=5), module, batch)


def test_the_form_that_votes_is_compared_on_all_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(same_outputs, "ROWS_COMPARED", 6)
    monkeypatch.setattr(prepare_module, "fold_batch_norm", lambda module: _Counted(at=20))
    module, batch = _Counted(), torch.rand(40, *SHAPE)
    for precision in ("float32", "bfloat16"):
        found = prepare(module, Preparation(precision), batch).run(batch)
        torch.testing.assert_close(found, module(batch), rtol=0, atol=0.01)


def test_a_form_that_does_not_run_is_not_the_same() -> None:
    assert not same_outputs.computes_the_same(_Counted(fixed=1), _Counted(), torch.rand(4, *SHAPE))


def test_a_model_that_needs_float32_is_refused_in_float16() -> None:
    layer = nn.Linear(64, 10)
    nn.init.constant_(layer.weight, 3e4)
    model = nn.Sequential(nn.Flatten(), layer)
    with pytest.raises(ContractError, match=r"in float16 .*float32 precision"):
        smoothed(model, precision="float16").certify(images(1), settings=SETTINGS)
    with pytest.raises(UnknownName, match="did you mean 'float16'"):
        smoothed(model, precision="flot16")


@pytest.mark.parametrize("change", ["parameter", "buffer", "state dict", "member"])
@torch.no_grad()
def test_certificates_follow_a_model_that_changes_between_calls(change: str) -> None:
    """The prepared copy must not outlive the weights it was made from."""
    model = _network("digits-resnet")
    ensemble = WeightedEnsemble([model])
    classifier = smoothed(ensemble)
    before = classifier.certify(images(1), settings=SETTINGS, indices=[0])
    if change == "state dict":
        model.load_state_dict(_network("digits-resnet", seed=5).state_dict())
    elif change == "member":
        ensemble.members[0] = _network("digits-conv")
    else:
        tensors = model.parameters() if change == "parameter" else model.buffers()
        next(tensor for tensor in tensors if tensor.ndim in (1, 4)).mul_(2).add_(1)
    after = classifier.certify(images(1), settings=SETTINGS, indices=[0])
    fresh = smoothed(copy.deepcopy(ensemble)).certify(images(1), settings=SETTINGS)
    assert counts(after) == counts(fresh)
    assert counts(after) != counts(before)


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning",
    "ignore::FutureWarning",
    "ignore::UserWarning",
    "error::sween.errors.PreparationWarning",
)
def test_several_members_of_one_class_are_compiled() -> None:
    """torch counts each as a recompilation, of which it allows only a few by default."""
    classifier = smoothed(sween.load(ZOO), compile=True)
    digits = load_dataset("digits").test.images(range(2))
    rows = classifier.certify(digits, n=500)
    assert {row.precision for row in rows} == {"float32+compiled"}
    assert [sum(row.estimation_counts) for row in rows] == [500, 500]
    answers = classifier.predict(digits)
    assert [answer.prediction for answer in answers] == [row.prediction for row in rows]


@pytest.mark.parametrize(
    ("fault", "message"),
    [("fails", "cannot be compiled, .*: no compiler here$"), ("wrong", r"differ by 0\.\d+ of")],
)
def test_a_model_that_does_not_compile_is_used_uncompiled_with_one_warning(
    fault: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compiled(module: nn.Module, *_: object, **__: object) -> nn.Module:
        if fault == "fails":
            raise RuntimeError("no compiler here\nand a long story")
        return Computed(lambda x: module(x).flip(1))

    target = "torch.compile" if fault == "fails" else "sween.engine.backends.compiled"
    monkeypatch.setattr(target, compiled)
    model = _network()
    with pytest.warns(PreparationWarning, match=message):
        prepared = prepare(model, Preparation(compile=True), images())
    assert not prepared.compiled
    assert torch.allclose(prepared.run(images()), model(images()), atol=1e-4)
    with pytest.warns(PreparationWarning):
        row = smoothed(model, compile=True).certify(images(1), settings=SETTINGS)[0]
    assert row.precision == "float32", "the record must not claim what was not done"


def test_out_of_memory_while_compiling_is_not_a_failed_compilation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "compile", fail)
    with pytest.raises(torch.OutOfMemoryError):
        prepare(_network(), Preparation(compile=True), images())


def test_precision_reports_tf32_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device("cuda")
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    assert Preparation("float32").describe(gpu) == "tf32"
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    assert Preparation("float32").describe(gpu, "compiled") == "float32+compiled"
    assert Preparation().describe(gpu, "compiled") == "float16+compiled"
    assert Preparation().describe(torch.device("cpu")) == "float32"


@pytest.mark.parametrize("rows", [1, 7, 100])
@torch.inference_mode()
def test_rows_of_a_prepared_member_do_not_depend_on_their_batch(rows: int) -> None:
    """Bit for bit at one shape: the same noisy image at another position among other images."""
    batch, others = torch.rand(2, rows, 3, 32, 32)
    member = Member(trained_looking("resnet20"), Preparation())
    wanted = member(batch)
    member.refresh(batch)  # nothing changed
    assert torch.equal(member(batch.flip(0)).flip(0), wanted)
    others[0] = batch[0]
    assert torch.equal(member(others)[0], wanted[0])


def test_a_precision_that_changes_during_a_run_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows of a run must have the arithmetic named in its config."""
    engine = smoothed(_network()).engine
    engine.prepare(images(1)[0])
    monkeypatch.setattr(Preparation, "describe", lambda *_, **__: "float16")
    engine._voters.members[0].forget()
    with pytest.raises(BadInput, match=r"expected float32, as when .*got float16"):
        engine.prepare(images(1)[0])
