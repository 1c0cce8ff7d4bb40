"""What only a GPU can show: compiled members, kernels, counting and threads."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import sween
from sween.attack.gradients import FastProbabilities, deterministic_convolutions, probabilities_of
from sween.engine import VoteRequest, forward
from sween.engine import votes as votes_module
from sween.engine.exact_noise import ExactNoise, words_of_62_bits
from sween.engine.kernels import FusedResNet, NoiseKernels, NoiseLauncher, launcher
from sween.engine.noise import NoiseKind
from sween.engine.prepare import Member, Preparation
from sween.ensemble import ExitPolicy, LoadedEnsemble, WeightedEnsemble
from sween.interleave import Steps, to_host_async
from sween.models import create_model
from sween.philox import counters, normal_draws, stream_words
from sween.sampling import CertifySettings
from sween.seeding import derive_key
from sween.smoothing import SmoothedClassifier
from tests.at_once import at_once
from tests.engine.kernels.networks import of_whole_numbers
from tests.smoothing.small import counts, smoothed
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


def _smoothed(model: torch.nn.Module | None = None, **options: Any) -> SmoothedClassifier:
    return smoothed(model or _ensemble(), **{"forward_rows": 1000} | options)


def _zoo() -> LoadedEnsemble:
    return sween.load("cifar10-sween3-gaussian-sigma0.50").cuda()


@contextlib.contextmanager
def _no_waits() -> Iterator[None]:
    """Raises an error if the host waits for the device."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize(("draw", "tolerance"), [(words_of_62_bits, 0), (normal_draws, 1e-5)])
def test_noise_is_that_of_the_reference_word_for_word(
    draw: Callable[..., torch.Tensor], tolerance: float
) -> None:
    keys = [derive_key(0, "gpu", key) for key in range(8)]
    cpu, gpu, compiled = (
        run(stream_words(keys, device), counters(4096, device)).cpu()
        for run, device in (
            (draw, torch.device("cpu")),
            (draw, torch.device("cuda")),
            (torch.compile(draw, dynamic=False), torch.device("cuda")),
        )
    )
    assert float((cpu - gpu).abs().max()) <= tolerance
    assert float((cpu - compiled).abs().max()) <= tolerance


@pytest.mark.parametrize("how", ["fused", "compiled"])
def test_rows_of_a_prepared_member_do_not_depend_on_their_batch(how: str) -> None:
    network = create_model("resnet20", num_classes=10, image_shape=(3, 32, 32))
    model = (network if how == "fused" else torch.nn.Sequential(network)).eval().cuda()
    images = torch.rand(1000, 3, 32, 32, device="cuda")
    with torch.inference_mode():
        member = Member(model, Preparation())
        member.refresh(images)
        assert member.compiled
        assert member.arithmetic == f"float16+{how}"
        wanted = member(images)
        assert torch.equal(member(images), wanted)
        assert torch.equal(member(images.flip(0)).flip(0), wanted)
        others = torch.rand_like(images)
        others[17] = images[17]
        assert torch.equal(member(others)[17], wanted[17])
        exact = model(images)
        spread = float(exact.max() - exact.min())
        assert float((wanted - exact).abs().max()) < 0.01 * spread


@pytest.mark.parametrize("depth", [8, 20])
@torch.no_grad()
def test_integer_weights_give_exact_outputs(depth: int) -> None:
    """Integers are exact in float16: any difference is a fault, such as a race."""
    model = of_whole_numbers(depth, seed=depth).cuda()
    images = torch.randint(-3, 4, (4001, 3, 32, 32), device="cuda").float()
    fused = FusedResNet(model, launcher(images.device))
    for _ in range(10):
        assert torch.equal(fused(images), model.double()(images.double()).float())
        model.float()


@pytest.mark.parametrize("compile", [False, True])
def test_counts_do_not_depend_on_the_batch(compile: bool) -> None:
    images, results = _images(), []
    for batch_size in (1000, 4000):
        classifier = _smoothed(compile=compile, batch_size=batch_size)
        results.append(counts(classifier.certify(images, settings=SETTINGS)))
        alone = [
            classifier.certify(image[None], settings=SETTINGS, indices=[key])[0]
            for key, image in enumerate(images)
        ]
        results.append(counts(alone))
    assert all(result == results[0] for result in results)
    assert all(sum(estimation) == SETTINGS.n for _, estimation, _ in results[0])


@pytest.mark.parametrize("name", ["exact", "paper"])
def test_exits_with_and_without_members_agree(name: str) -> None:
    policy = ExitPolicy(name, threshold=0.6)
    alone, panel = _smoothed(exit=policy), _smoothed(exit=policy, member_names=["a", "b"])
    assert not panel.engine._voters.compacts
    assert alone.engine._voters.compacts
    groups = panel.certify_voters(_images(), SETTINGS)
    own = alone.certify(_images(), settings=SETTINGS)
    assert counts([group["model"] for group in groups]) == counts(own)


@pytest.mark.parametrize("name", ["exact", "paper"])
def test_an_exit_does_not_make_the_host_wait(name: str) -> None:
    engine, image = _smoothed(_zoo(), exit=name).engine, _images(1).cuda()
    engine.prepare(image[0])
    panel = engine._voters
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


@pytest.mark.parametrize("how", ["fused", "compiled", "plain"])
def test_the_device_never_waits_for_the_host(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an exit, for any members: the device has work queued whenever a copy is pending."""
    zoo = _zoo().members[:2]
    members = zoo if how == "fused" else [torch.nn.Sequential(own) for own in zoo]
    ensemble = WeightedEnsemble(list(members), [0.6, 0.4]).cuda()
    engine = smoothed(ensemble, exit="exact", compile=how != "plain").engine
    images = _images(2).cuda()
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
    engine, image = smoothed(_ensemble(), **options).engine, _images(1).cuda()
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


@pytest.mark.parametrize(
    "options",
    [
        {"sampling": "decide", "radii": (0.25, 0.5)},
        {"sampling": "tolerance", "tolerance": 0.1, "n0": 1000},
        {"sampling": "budget", "budget": 12_000, "n0": 1000},
    ],
)
def test_exact_noise_and_sampling_modes_run(options: dict[str, Any]) -> None:
    rows = _smoothed(noise="exact").certify(_images(), n=5_000, **options)
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
    engine = smoothed(_ensemble(), noise=name).engine
    engine.prepare(images[0])
    assert engine.noise._kernels is not None  # type: ignore[attr-defined]


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


def test_attackers_gradients_are_compiled_and_deterministic() -> None:
    ensemble, images = _zoo(), _images(5).cuda()
    engine = _smoothed(ensemble).engine
    engine.prepare(images[0])
    fast = probabilities_of(ensemble, engine, images[0])
    assert isinstance(fast, FastProbabilities)
    gradients = []
    with deterministic_convolutions():
        for _ in range(2):
            own = images.clone().requires_grad_()
            (gradient,) = torch.autograd.grad(fast(own)[:, 3].log().sum(), own)
            gradients.append(gradient)
    assert bool(torch.isfinite(gradients[0]).all())
    assert torch.equal(*gradients)
    with torch.no_grad():
        without = fast(images)
    assert torch.allclose(fast(images.clone().requires_grad_()).detach(), without, atol=0.02)


def _ask(classifier: SmoothedClassifier, seed: int) -> list[tuple[int, ...]]:
    rows = classifier.certify(_images(2), n=5_000, seed=seed, indices=[0, 1])
    answers = classifier.predict(_images(2), n=200, seed=seed, indices=[0, 1])
    return [*(row.estimation_counts for row in rows), *(answer.counts for answer in answers)]


@pytest.mark.parametrize("compile", [None, False])
def test_four_threads_get_the_answers_of_one(compile: bool | None) -> None:
    ensemble = _ensemble().train()
    alone = [_ask(_smoothed(ensemble, compile=compile), seed) for seed in range(4)]
    shared = _smoothed(ensemble, compile=compile)
    for _ in range(3):
        works = [functools.partial(_ask, shared, seed) for seed in range(4)]
        assert at_once(works) == alone
        works = [
            functools.partial(_ask, _smoothed(ensemble, compile=compile), seed) for seed in range(4)
        ]
        assert at_once(works) == alone
    assert all(part.training for part in ensemble.modules())


def test_a_prediction_of_an_uncompiled_model_evaluates_what_it_counts() -> None:
    body, seen = torch.nn.Linear(3 * 32 * 32, 10), list[int]()
    model = torch.nn.Sequential(torch.nn.Flatten(), body).cuda()
    model.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    classifier, image = smoothed(model, compile=False), torch.rand(3, 32, 32)
    classifier.predict(image, n=130)
    seen.clear()
    answer = classifier.predict_one(image, n=130)
    assert seen == [130]
    assert sum(answer.counts) == 130
