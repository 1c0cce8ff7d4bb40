"""What only a GPU can show: compiled members, kernels and counting. Skipped where there is none."""

import contextlib
import copy
import functools
import importlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import sween
from sween.attack import gradients
from sween.attack.gradients import FastProbabilities, deterministic_convolutions, probabilities_of
from sween.bench import calibrate_batch_norm
from sween.engine import VoteRequest, forward
from sween.engine import added_convolutions as pair_module
from sween.engine import batch_norm_relu as norm_module
from sween.engine import normalized_convolution as pixels_module
from sween.engine import stem as stem_module
from sween.engine import votes as votes_module
from sween.engine.added_convolutions import AddedConvolutions
from sween.engine.after_images import AfterImages
from sween.engine.cublas_lt import matmul
from sween.engine.cudnn_convolution import FusedConvolution
from sween.engine.depthwise_convolution import DepthwiseConvolution
from sween.engine.exact_noise import ExactNoise, words_of_62_bits
from sween.engine.kernels import (
    FusedGradients,
    FusedQuantizedResNet,
    FusedResNet,
    GradientShape,
    IntegerShape,
    MaskShape,
    NoiseKernels,
    NoiseLauncher,
    QuantizedResNet,
    WideIntegerShape,
    WideQuantizedResNet,
    launcher,
    shape_for,
)
from sween.engine.kernels.shape import Shape
from sween.engine.linear_gelu import LinearGelu
from sween.engine.member import Member
from sween.engine.noise import NoiseKind
from sween.engine.preparation import Preparation
from sween.engine.prepared_members import PreparedModule
from sween.engine.stem import Stem
from sween.ensemble import ExitPolicy, WeightedEnsemble
from sween.interleave import Steps, to_host_async
from sween.models import create_model
from sween.philox import counters, normal_draws, stream_words
from sween.records import Certificate
from sween.sampling import CertifySettings
from sween.seeding import derive_key
from sween.smoothing import SmoothedClassifier
from tests.engine.kernels.networks import of_whole_numbers
from tests.engine.kernels.strangers import ALIKE, PublishedNormalize
from tests.stepping import finish

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
    # The compiler's own warnings are not ours to mend; a member that does not compile is.
    pytest.mark.filterwarnings(
        "ignore::DeprecationWarning",
        "ignore::FutureWarning",
        "ignore::UserWarning",
        "error::sween.errors.PreparationWarning",
    ),
]
SETTINGS = CertifySettings(n0=100, n=5_000)


def _ensemble() -> WeightedEnsemble:
    members = []
    for seed in range(2):
        model = create_model("resnet20", num_classes=10, image_shape=(3, 32, 32), seed=seed)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.3)
        members.append(model.eval())
    return WeightedEnsemble(members, [0.6, 0.4]).cuda()


def _images(count: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, 3, 32, 32), generator=generator).float() / 255


def _counts(rows: list[Certificate]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    return [(row.selection_counts, row.estimation_counts) for row in rows]


@contextlib.contextmanager
def _no_waits() -> Iterator[None]:
    """An error where the host waits for the device in passing."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_noise_is_that_of_the_reference_word_for_word() -> None:
    keys = [derive_key(0, "gpu", key) for key in range(8)]
    for device, other in itertools.pairwise((torch.device("cpu"), torch.device("cuda"))):
        for draw in (words_of_62_bits, normal_draws):
            here = draw(stream_words(keys, device), counters(4096, device)).cpu()
            there = draw(stream_words(keys, other), counters(4096, other)).cpu()
            compiled = torch.compile(draw, dynamic=False)(
                stream_words(keys, other), counters(4096, other)
            ).cpu()
            if draw is words_of_62_bits:
                assert torch.equal(here, there)
                assert torch.equal(here, compiled)
            else:
                assert float((here - there).abs().max()) < 1e-5
                assert float((here - compiled).abs().max()) < 1e-5


class Centred(torch.nn.Module):
    """A network whose structure the custom kernels do not know; its probabilities are the same."""

    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.network(images)
        return logits - logits.mean(dim=1, keepdim=True)


COMPILE = {
    "fused": None,
    "cudnn+compiled": "fast",
    "cudnn": "fast",
    "compiled": "max",
    "plain": False,
}


@pytest.fixture
def how(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A way to prepare members; for `cudnn` there is no compiler."""

    def missing(*_: Any, **__: Any) -> None:
        raise RuntimeError("no compiler here")

    if request.param == "cudnn":
        monkeypatch.setattr("sween.engine.backends.compiled", missing)
        monkeypatch.setattr("sween.engine.prepare.warn_fallback", lambda *_: None)
    return str(request.param)


@pytest.mark.parametrize("how", ["fused", "cudnn+compiled", "cudnn", "compiled"], indirect=True)
def test_rows_of_a_prepared_member_do_not_depend_on_their_batch(how: str) -> None:
    network = create_model("resnet20", num_classes=10, image_shape=(3, 32, 32))
    model = (network if how == "fused" else Centred(network)).eval().cuda()
    images = torch.rand(1000, 3, 32, 32, device="cuda")
    with torch.inference_mode():
        member = Member(model, Preparation(compile=COMPILE[how]))
        member.refresh(images)
        assert member.compiled
        assert member.arithmetic == f"float16+{how}"
        wanted = member(images)
        assert torch.equal(member(images), wanted)
        flipped = member(images.flip(0)).flip(0)
        if "cudnn" in how:  # which may round the rows at different places differently
            assert float((flipped - wanted).abs().max()) < 2.5e-3 * float(
                wanted.max() - wanted.min()
            )
        else:
            assert torch.equal(flipped, wanted)
        others = torch.rand_like(images)
        others[17] = images[17]
        assert torch.equal(member(others)[17], wanted[17])
        exact = model(images)
        spread = float(exact.max() - exact.min())
        assert float((wanted - exact).abs().max()) < 0.01 * spread


@torch.no_grad()
def test_a_photos_layers_of_whole_numbers_come_out_exactly() -> None:
    """Whole numbers are exact in float16: what differs is a fault, a race for instance."""
    conv = torch.nn.Conv2d(3, 64, 7, stride=2, padding=3).cuda()
    others = [torch.nn.Conv2d(64, 256, 1).cuda() for _ in range(2)]
    for own in (conv, *others):
        own.weight.copy_(torch.randint(-1, 2, own.weight.shape))
        assert own.bias is not None
        own.bias.copy_(torch.randint(-9, 9, own.bias.shape))
    images = torch.randint(-3, 4, (400, 3, 224, 224), device="cuda").float()
    stem = Stem(FusedConvolution(conv), torch.zeros(1).cuda(), torch.ones(1).cuda())
    stem.let_run(images, torch.float16)
    assert stem.size == (224, 224)
    pair = AddedConvolutions(*others)
    pair.let_run(images, torch.float16)
    assert pair.by_kernel
    conv, *others = (copy.deepcopy(own) for own in (conv, *others))
    wanted = torch.nn.functional.max_pool2d(conv.double()(images.double()).relu(), 3, 2, 1)
    x, y = (torch.randint(-2, 3, (400, 64, 56, 56), device="cuda").half() for _ in range(2))
    x, y = (own.contiguous(memory_format=torch.channels_last) for own in (x, y))
    shortcut = others[1].half()(y)
    sums = others[0].double()(x.double()) + shortcut.double()
    weight, bias = others[0].half().weight.flatten(1), others[0].bias
    assert bias is not None
    rows, added = (own.permute(0, 2, 3, 1).flatten(0, 2) for own in (x, shortcut))
    for _ in range(5):
        assert torch.equal(stem(images).double(), wanted)
        for relu, own in ((True, sums.relu()), (False, sums)):
            assert torch.equal(matmul(rows, weight, bias, added, relu=relu).double(),
                               own.permute(0, 2, 3, 1).flatten(0, 2))  # fmt: skip
        assert torch.equal(pair(x, y).double(), sums.relu())


@torch.inference_mode()
def test_a_resnet_for_photos_runs_by_its_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    launches = [Counted(module.launch) for module in (stem_module, pair_module)]
    for module, counted in zip((stem_module, pair_module), launches, strict=True):
        monkeypatch.setattr(module, "launch", counted)
    model = create_model("imagenet-resnet50", num_classes=10, image_shape=(3, 128, 128))
    _check_without_compiler(model, 128)
    assert all(counted.count > 1 for counted in launches)


@torch.inference_mode()
def test_wide_networks_run_without_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    launches = [Counted(module.launch) for module in (pixels_module, norm_module)]
    for module, counted in zip((pixels_module, norm_module), launches, strict=True):
        monkeypatch.setattr(module, "launch", counted)
    _check_without_compiler(create_model("resnet20x4", num_classes=10, image_shape=(3, 32, 32)), 32)
    _check_without_compiler(Preactivated(), 32)
    assert all(counted.count > 1 for counted in launches)


@pytest.mark.parametrize("name", ["vit_small", "convnext_tiny"])
@torch.inference_mode()
def test_transformers_run_without_the_compiler(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    torch.manual_seed(0)
    model = getattr(importlib.import_module("strangers"), name)(10)
    _check_without_compiler(model, 224)


@pytest.mark.parametrize("side", [3, 5, 7])
@pytest.mark.parametrize("size", [(56, 56), (14, 9)], ids=str)
@torch.no_grad()
def test_depthwise_convolutions_of_whole_numbers_come_out_exactly(
    side: int, size: tuple[int, int]
) -> None:
    conv = torch.nn.Conv2d(96, 96, side, padding=side // 2, groups=96).cuda()
    for own in conv.parameters():
        own.copy_(torch.randint(-3, 4, own.shape))
    x = torch.randint(-4, 5, (300, 96, *size), device="cuda").half()
    x = x.contiguous(memory_format=torch.channels_last)
    part = DepthwiseConvolution(conv)
    part.let_run(x, torch.float16)
    assert part.by_kernel
    wanted = conv.double()(x.double())
    for _ in range(3):
        assert torch.equal(part(x).double(), wanted)


class Preactivated(torch.nn.Module):
    """Blocks of a wide ResNet: batch norm comes before the convolutions."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        conv = functools.partial(torch.nn.Conv2d, kernel_size=3, padding=1, bias=False)
        self.first, self.fc = conv(3, 32), torch.nn.Linear(32, 10)
        self.convs = torch.nn.ModuleList(conv(32, 32) for _ in range(6))
        self.norms = torch.nn.ModuleList(torch.nn.BatchNorm2d(32) for _ in range(7))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x).relu()
        for i in range(0, 6, 2):
            out = self.convs[i](self.norms[i](x).relu())
            x = x + self.convs[i + 1](self.norms[i + 1](out).relu())
        logits: torch.Tensor = self.fc(self.norms[6](x).relu().mean(dim=(2, 3)))
        return logits


def _check_without_compiler(model: torch.nn.Module, size: int) -> None:
    model = calibrate_batch_norm(model, (3, size, size)).eval().cuda()
    images = torch.rand(100, 3, size, size, device="cuda")
    before = images.clone()
    member = Member(model, Preparation(compile="fast"))
    member.refresh(images)
    assert member.arithmetic == "float16+cudnn"
    assert isinstance(member._ready.run, AfterImages)
    outputs, wanted = member(images), model(images)
    assert torch.equal(images, before)
    spread = float(wanted.max() - wanted.min())
    assert float((outputs - wanted).abs().max()) < 0.02 * spread
    others = torch.rand_like(images)
    others[17] = images[17]
    assert torch.equal(member(others)[17], outputs[17])
    assert torch.equal(member(images), outputs)


class Counted:
    """Counts the launches of a kernel."""

    def __init__(self, launch: Any) -> None:
        self.launch, self.count = launch, 0

    def blocks(self, *arguments: Any) -> int:
        return int(self.launch.blocks(*arguments))

    def __call__(self, *arguments: Any) -> None:
        self.count += 1
        self.launch(*arguments)


@pytest.mark.parametrize("width", [1, 2, 3])
@pytest.mark.parametrize("depth", [8, 20])
@torch.no_grad()
def test_kernels_count_exactly(depth: int, width: int) -> None:
    """Whole numbers are exact in float16: what differs is a fault, a race for instance."""
    model = of_whole_numbers(depth, seed=depth, width=width).cuda()
    images = torch.randint(-3, 4, (4001, 3, 32, 32), device="cuda").float()
    fused = FusedResNet(model, launcher(images.device, shape_for(model)))
    for _ in range(10):
        assert torch.equal(fused(images), model.double()(images.double()).float())
        model.float()


@pytest.mark.parametrize(
    "shape",
    [
        IntegerShape(2, 2),
        IntegerShape(4, 4),
        *(WideIntegerShape(width=width) for width in (2, 3, 4)),
    ],
    ids=str,
)
@torch.no_grad()
def test_kernels_in_integers_give_the_bits_of_the_simulation(shape: Shape) -> None:
    arch, kind = "resnet20", FusedQuantizedResNet
    if isinstance(shape, WideIntegerShape):
        arch, kind = f"resnet20x{shape.width}", WideQuantizedResNet
    model = create_model(arch, num_classes=10, image_shape=(3, 32, 32), seed=1)
    images = _images(37) + 0.5 * torch.randn(
        37, 3, 32, 32, generator=torch.Generator().manual_seed(1)
    )
    network = QuantizedResNet(calibrate_batch_norm(model, (3, 32, 32)))
    device = torch.device("cuda")
    fused = kind(network, launcher(device, shape), device)
    assert torch.equal(fused(images.to(device)).cpu(), network(images))


def test_a_member_in_integers() -> None:
    model = create_model("resnet20", num_classes=10, image_shape=(3, 32, 32), seed=1)
    smoothed = SmoothedClassifier(
        calibrate_batch_norm(model, (3, 32, 32)).cuda(),
        sigma=0.5,
        num_classes=10,
        precision="int8",
    )
    (first,) = smoothed.certify(_images(1), n0=100, n=5_000, seed=0)
    (again,) = smoothed.certify(_images(1), n0=100, n=5_000, seed=0)
    assert first.precision == "int8+fused"
    assert _counts([first]) == _counts([again])


@pytest.mark.parametrize("compile", [False, True])
def test_counts_do_not_depend_on_batches_or_company(compile: bool) -> None:
    images, results = _images(), []
    for batch_size in (1000, 4000):
        smoothed = SmoothedClassifier(
            _ensemble(),
            sigma=0.5,
            num_classes=10,
            compile=compile,
            forward_rows=1000,
            batch_size=batch_size,
        )
        results.append(_counts(smoothed.certify(images, settings=SETTINGS)))
        results.append(
            _counts(
                [
                    smoothed.certify(images[i : i + 1], settings=SETTINGS, indices=[i])[0]
                    for i in range(3)
                ]
            )
        )
    assert all(result == results[0] for result in results)
    assert all(sum(estimation) == SETTINGS.n for _, estimation in results[0])


@pytest.mark.parametrize("name", ["exact", "paper"])
def test_exits_with_and_without_members_agree(name: str) -> None:
    images, policy = _images(), ExitPolicy(name, threshold=0.6)
    alone, panel = (
        SmoothedClassifier(
            _ensemble(),
            sigma=0.5,
            num_classes=10,
            exit=policy,
            forward_rows=1000,
            member_names=names,
        )
        for names in (None, ["a", "b"])
    )
    assert not panel.engine._voters.compacts
    assert alone.engine._voters.compacts
    groups = panel.certify_voters(images, SETTINGS)
    own = alone.certify(images, settings=SETTINGS)
    assert _counts([group["model"] for group in groups]) == _counts(own)
    assert [group["model"].member_evaluations for group in groups] == [
        row.member_evaluations for row in own
    ]


@pytest.mark.parametrize("name", ["exact", "paper"])
def test_an_exit_does_not_make_the_host_wait(name: str) -> None:
    ensemble = sween.load("cifar10-sween3-gaussian-sigma0.50").cuda()
    smoothed = SmoothedClassifier(
        ensemble, sigma=0.5, num_classes=10, exit=ExitPolicy(name), forward_rows=1000
    )
    image = _images(1).cuda()
    smoothed.engine.prepare(image[0])
    panel = smoothed.engine._voters
    noisy = image + 0.5 * torch.randn(4500, 3, 32, 32, device="cuda")
    with torch.inference_mode():
        finish(panel.vote(noisy))
        with _no_waits():
            votes = finish(panel.vote(noisy))
        assert votes.evaluations.min() < votes.evaluations.max()
        # Gathered for each member, as for networks without custom kernels.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Member, "fused", None)
            gathered = finish(panel.vote(noisy))
    assert torch.equal(votes.labels, gathered.labels)
    assert torch.equal(votes.evaluations, gathered.evaluations)


@pytest.mark.parametrize("how", COMPILE, indirect=True)
def test_the_device_never_waits_for_the_host(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an exit, of any members: a number on its way finds the device with work in its queue."""
    zoo = sween.load("cifar10-sween3-gaussian-sigma0.50").members[:2]
    members = zoo if how == "fused" else [Centred(own) for own in zoo]
    ensemble = WeightedEnsemble(list(members), [0.6, 0.4]).cuda()
    smoothed = SmoothedClassifier(
        ensemble, sigma=0.5, num_classes=10, exit="exact", compile=COMPILE[how]
    )
    engine, images = smoothed.engine, _images(2).cuda()
    engine.prepare(images[0])
    assert engine.precision == ("float16" if how == "plain" else f"float16+{how}")
    waits: list[bool] = []

    def watched(*tensors: torch.Tensor) -> Steps[list[torch.Tensor]]:
        got = yield from to_host_async(*tensors)
        waits.append(not torch.cuda.current_stream().query())
        return got

    for module in (forward, votes_module):
        monkeypatch.setattr(module, "to_host_async", watched)
    sets = [
        VoteRequest(images[i % 2 :][:1], [i], "estimation", [engine.batch_blocks * 100])
        for i in range(6)
    ]
    wanted = [votes for each in sets for votes in engine.count([each], seed=0)]
    waits.clear()
    with _no_waits():
        found = list(engine.count(sets, seed=0))
    for own, alone in zip(found, wanted, strict=True):
        assert torch.equal(own.counts, alone.counts)
        assert torch.equal(own.evaluations, alone.evaluations)
    assert 1 < int(found[0].evaluations) / found[0].drawn[0] < 2
    assert len(waits) == (6 if how == "fused" else 12)
    assert sum(waits) >= len(waits) - (1 if how == "fused" else 2), "but at the very end"


@pytest.mark.parametrize(
    ("options", "scored"),
    [
        ({}, None),
        ({}, [3]),
        ({"noise": "exact"}, None),
        ({"exit": "paper", "noise": "exact"}, None),
        ({"member_names": ["a", "b"], "exit": "exact"}, None),
        ({"compile": False}, None),
    ],
    ids=["plain", "soft", "exact noise", "paper exit", "members", "not compiled"],
)
def test_no_batch_makes_the_host_wait(options: dict[str, Any], scored: list[int] | None) -> None:
    smoothed = SmoothedClassifier(_ensemble(), sigma=0.5, num_classes=10, **options)
    engine, image = smoothed.engine, _images(1).cuda()
    engine.prepare(image[0])
    sizes = [3 * engine.batch_blocks * 100]
    sets = [VoteRequest(image, [i], "estimation", sizes, scored=scored) for i in range(3)]
    wanted = list(engine.count(sets, seed=0))
    with _no_waits():
        found = list(engine.count(sets, seed=0))
    for own, other in zip(found, wanted, strict=True):
        assert torch.equal(own.counts, other.counts)
        if own.scores is not None and other.scores is not None:
            assert torch.equal(own.scores, other.scores)
        assert (own.scores is None) == (scored is None)
        assert int(own.counts[-1].sum()) == sizes[0]


def test_exact_noise_and_sampling_modes_run() -> None:
    images = _images()
    for options in (
        {"sampling": "decide", "radii": (0.25, 0.5)},
        {"sampling": "tolerance", "tolerance": 0.1, "n0": 1000},
        {"sampling": "budget", "budget": 12_000, "n0": 1000},
    ):
        smoothed = SmoothedClassifier(
            _ensemble(), sigma=0.5, num_classes=10, forward_rows=1000, noise="exact"
        )
        rows = smoothed.certify(images, n=5_000, seed=0, indices=range(len(images)), **options)
        assert {row.noise for row in rows} == {"exact(levels=255)"}
        assert all(row.samples <= 6_000 for row in rows)


@pytest.mark.parametrize("name", ["float32", "exact"])
def test_noise_by_custom_kernels_matches_plain_noise(name: str) -> None:
    kind, images = NoiseKind(name), _images().cuda()
    keys = [derive_key(0, "kernel", k) for k in range(len(images))]
    fast = kind.make(0.5, kernels=NoiseKernels(NoiseLauncher()))
    (ours, valid), (theirs, counting) = (law.copies(images, keys) for law in (fast, kind.make(0.5)))
    assert float((ours - theirs).abs().max()) <= kind.tolerance
    if valid is not None:
        assert counting is not None
        assert torch.equal(valid, counting)
    assert torch.equal(fast.copies(images, keys)[0], ours)
    smoothed = SmoothedClassifier(_ensemble(), sigma=0.5, num_classes=10, noise=name)
    smoothed.engine.prepare(images[0])
    assert smoothed.engine.noise._kernels is not None  # type: ignore[attr-defined]


def test_exact_copies_are_on_the_grid() -> None:
    image = _images(1).cuda()
    for options in ({}, {"compile": True}, {"kernels": NoiseKernels(NoiseLauncher())}):
        noise = ExactNoise(sigma=0.5, levels=255, **options)
        copies, valid = noise.copies(image, [derive_key(0, "p")])
        assert valid is not None
        assert bool(valid.all())
        whole = (copies.double() * 255).round()
        assert torch.equal(copies.cpu(), whole.float().cpu() / 255)
        steps = (whole - (image.double() * 255).round()).float()
        assert abs(float(steps.std()) / (255 * 0.5) - 1) < 0.02


@pytest.mark.parametrize("depth", [8, 20])
def test_kernels_of_gradients_count_exactly(depth: int) -> None:
    model = of_whole_numbers(depth, seed=depth).cuda().requires_grad_(False)
    images = torch.randint(-3, 4, (2001, 3, 32, 32), device="cuda").float()
    # Multiples of 8: float16 holds every gradient on the way, which grow to about 100, exactly.
    vector = 8 * torch.randint(-1, 2, (2001, 10), device="cuda").float()
    vector[:, 0] = 16  # the largest, so that no scale rounds
    launchers = [launcher(images.device, shape) for shape in (MaskShape(), GradientShape())]
    fused = FusedGradients(model, *launchers)
    own = images.double().requires_grad_()
    (wanted,) = torch.autograd.grad(model.double()(own), own, vector.double())
    for _ in range(3):
        assert torch.equal(fused.pull(images, lambda logits: vector), wanted.float())


@pytest.mark.parametrize("how", ["fused", "compiled"])
def test_attackers_gradients_come_again(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if how == "compiled":
        monkeypatch.setattr(gradients, "supports", lambda device: False)
    ensemble, images = sween.load("cifar10-sween3-gaussian-sigma0.50").cuda(), _images(5).cuda()
    smoothed = SmoothedClassifier(ensemble, sigma=0.5, num_classes=10, forward_rows=1000)
    smoothed.engine.prepare(images[0])
    fast = probabilities_of(ensemble, smoothed.engine, images[0])
    assert isinstance(fast, FastProbabilities)
    assert fast.name == how
    found = []
    with deterministic_convolutions():
        for _ in range(2):
            own = images.clone().requires_grad_()
            (gradient,) = torch.autograd.grad(fast(own)[:, 3].log().sum(), own)
            found.append(gradient)
    assert bool(torch.isfinite(found[0]).all())
    assert torch.equal(*found)
    with torch.no_grad():
        without = fast(images)
    assert torch.allclose(fast(images.clone().requires_grad_()).detach(), without, atol=0.02)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@torch.no_grad()
def test_gelu_by_cublas_is_the_exact_one_to_rounding(dtype: torch.dtype) -> None:
    linear, x = torch.nn.Linear(384, 1536).cuda(), torch.randn(7, 197, 384, device="cuda")
    fused = LinearGelu(linear.to(dtype), "none")(x.to(dtype))
    exact = torch.nn.functional.gelu(linear.double()(x.to(dtype).double()))
    assert fused.shape == (7, 197, 1536)
    assert float((fused.double() - exact).abs().max()) < 8 * torch.finfo(dtype).eps


@pytest.mark.parametrize("name", ALIKE)
@torch.no_grad()
def test_strangers_resnets_run_by_the_kernels(name: str) -> None:
    torch.manual_seed(1)
    module = ALIKE[name]().eval().cuda()
    for part in module.modules():
        if isinstance(part, PublishedNormalize):  # its constants are no buffers, as published
            part.means, part.sds = part.means.cuda(), part.sds.cuda()
    if name == "option A by zeros":
        pytest.skip("its zeros are made on the CPU")
    member = Member(module, Preparation())
    noisy = torch.rand(64, 3, 32, 32, device="cuda")
    member.refresh(noisy)
    assert member.arithmetic == "float16+fused"
    wanted = module(noisy)
    difference = float((member(noisy) - wanted).abs().max())
    assert difference < 0.02 * float(wanted.max() - wanted.min())


def test_weights_are_solved_with_the_members_as_they_vote() -> None:
    """By the kernels, for any number of images, and near those of float32."""
    shape = (3, 32, 32)
    networks = [
        calibrate_batch_norm(create_model(arch, num_classes=10, image_shape=shape), shape).cuda()
        for arch in ("resnet20", "resnet26")
    ]
    images, labels = torch.rand(300, *shape, device="cuda"), torch.arange(300) % 10
    found = []
    for members in (networks, [PreparedModule(own, 10) for own in networks]):
        ensemble = WeightedEnsemble(members)
        options: dict[str, Any] = {"sigma": 0.25, "samples": 20, "epochs": 5}
        found.append(sween.solve_weights(ensemble, images, labels, **options))
    assert found[1].weights == pytest.approx(found[0].weights, abs=0.01)
    assert found[1].loss == pytest.approx(found[0].loss, abs=0.01)
