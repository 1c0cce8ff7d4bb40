"""Members in 8-bit integers: prepared, refused, recorded, recounted."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import nn

from sween.cuda import Argument
from sween.data.dataset import Dataset, Split, StoredPixels
from sween.engine import in_integers, prepare, quantized_on_cpu
from sween.engine.kernels import FusedQuantizedResNet, QuantizedResNet
from sween.engine.kernels.cifar_resnet import Launch
from sween.engine.kernels.quantized import IntegerConvolution
from sween.engine.kernels.shape import IntegerShape, Shape
from sween.engine.member import Member
from sween.engine.preparation import Preparation
from sween.engine.prepared import Prepared
from sween.engine.quantized_on_cpu import CompiledQuantizedResNet, has_bytes
from sween.ensemble import load_ensemble, load_members
from sween.ensemble.folder import new_ensemble
from sween.ensemble.quantize import quantize, write_quantized
from sween.errors import BadInput, CheckpointError, ContractError, PreparationWarning
from sween.models import Manifest, create_model, save_checkpoint
from sween.models.activation_ranges import measure_ranges
from sween.models.cifar_resnet import CifarResNet
from sween.models.normalize import Normalize
from sween.smoothing import SmoothedClassifier
from tests.engine.kernels.emulation import Emulator
from tests.engine.kernels.networks import trained_looking, with_statistics

INT8 = Preparation("int8")


def _images(count: int) -> torch.Tensor:
    return torch.rand(count, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def _module(depth: int = 8, *, width: int = 1) -> nn.Sequential:
    torch.manual_seed(0)
    network = CifarResNet(depth, 10, width=width)
    module = nn.Sequential(Normalize([0.5] * 3, [0.25] * 3), network)
    with_statistics(module)
    measure_ranges(module, [_images(8)])
    return module


def test_a_cpu_computes_the_exact_simulation() -> None:
    module, images = _module(), _images(4)
    prepared = prepare.prepare(module, INT8, images)
    assert prepared.arithmetic == "int8"
    assert torch.equal(prepared.run(images), QuantizedResNet(module)(images))
    assert not torch.equal(prepared.run(images), module(images))


COMPILED = Preparation("int8", compile=True)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's compiler
@pytest.mark.parametrize("width", [1, 2])
def test_compiled_for_a_cpu_it_computes_the_same_bits(width: int) -> None:
    if not has_bytes(torch.device("cpu")):
        pytest.skip("no products of bytes")
    module, images = _module(width=width), _images(12)
    prepared = prepare.prepare(module, COMPILED, images)
    assert isinstance(prepared.run, CompiledQuantizedResNet)
    assert (prepared.compiled, prepared.arithmetic) == (True, "int8")
    for own in (images, images.flip(0)):
        assert torch.equal(prepared.run(own), QuantizedResNet(module)(own))


@pytest.mark.parametrize("fault", ["missing", "wrong"])
def test_a_cpu_that_cannot_compile_it_simulates_with_a_warning(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(
        run: CompiledQuantizedResNet, conv: IntegerConvolution, inputs: torch.Tensor
    ) -> torch.Tensor:
        return 1.01 * conv(inputs)

    monkeypatch.setattr(in_integers, "has_bytes", lambda device: fault != "missing")
    monkeypatch.setattr(CompiledQuantizedResNet, "_convolve", wrong)
    monkeypatch.setattr(quantized_on_cpu, "_Packed", lambda conv: conv)
    monkeypatch.setattr(quantized_on_cpu, "compile_locked", lambda function, options: function)
    module, images = _module(), _images(4)
    message = {"missing": "no fast products", "wrong": "exact simulation"}[fault]
    with pytest.warns(PreparationWarning, match=message):
        prepared = prepare.prepare(module, COMPILED, images)
    assert (prepared.compiled, prepared.arithmetic) == (False, "int8")
    assert torch.equal(prepared.run(images), QuantizedResNet(module)(images))


def test_records_name_the_arithmetic_and_are_read_back() -> None:
    cuda = torch.device("cuda")
    assert INT8.describe(cuda, "fused") == "int8+fused"
    for recorded in ("int8+fused", "int8", "int8+fused, int8+fused"):
        assert Preparation.recorded(recorded).precision == "int8"


def test_new_ranges_are_noticed() -> None:
    module, images = _module(), _images(2)
    member = Member(module, INT8)
    before = member(images)
    measure_ranges(module, [3 * images])
    assert not member.is_current(images.shape)
    member.refresh(images)
    assert not torch.equal(member(images), before)


def _digits() -> tuple[nn.Module, torch.Tensor]:
    return trained_looking("digits-conv", shape=(1, 8, 8)), torch.rand(2, 1, 8, 8)


def _without_ranges() -> tuple[nn.Module, torch.Tensor]:
    return trained_looking("resnet20"), _images(2)


def _with_ranges_of_zero() -> tuple[nn.Module, torch.Tensor]:
    module = _module()
    assert isinstance(module[1], CifarResNet)
    assert module[1].activation_ranges is not None
    module[1].activation_ranges[3] = 0
    return module, _images(2)


def _with_ranges_far_too_small() -> tuple[nn.Module, torch.Tensor]:
    module = _module()
    assert isinstance(module[1], CifarResNet)
    assert module[1].activation_ranges is not None
    module[1].activation_ranges.mul_(1e-3)
    return module, _images(8)


def _not_finite() -> tuple[nn.Module, torch.Tensor]:
    module = _module()
    assert isinstance(module[1], CifarResNet)
    module[1].conv1.weight.data[0] = float("nan")
    return module, _images(2)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (_digits, "CIFAR ResNet"),
        (_without_ranges, "sween quantize"),
        (_with_ranges_of_zero, "ranges 0 to"),
        (_with_ranges_far_too_small, "int8"),
        (_not_finite, "inf"),
    ],
)
def test_other_networks_are_refused(made: object, words: str) -> None:
    assert callable(made)
    module, images = made()
    with pytest.raises(ContractError, match=words) as caught:
        prepare.prepare(module, INT8, images)
    assert len(str(caught.value).splitlines()) == 1


class _Nonsense:
    """Writes sevens."""

    shape: Shape = IntegerShape()

    def __call__(self, stage: int, blocks: int, arguments: Sequence[Argument]) -> None:
        if stage == 3:
            assert isinstance(arguments[7], torch.Tensor)
            arguments[7].fill_(7)


def _prepare_with(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> tuple[Prepared, nn.Module, torch.Tensor]:
    monkeypatch.setattr(in_integers, "supports", lambda device, shape=None: True)
    monkeypatch.setattr(in_integers, "launcher", lambda device, shape: launch)
    module, images = _module(), _images(4)
    return prepare.prepare(module, INT8, images), module, images


def test_members_are_prepared_with_the_kernels(
    integer_emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared, module, images = _prepare_with(integer_emulator, monkeypatch)
    assert isinstance(prepared.run, FusedQuantizedResNet)
    assert (prepared.compiled, prepared.arithmetic) == (True, "int8+fused")
    assert torch.equal(prepared.run(images), QuantizedResNet(module)(images))


def test_faulty_kernels_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ContractError, match="exact simulation"):
        _prepare_with(_Nonsense(), monkeypatch)


def _dataset(size: int = 32) -> Dataset:
    def split(name: str, count: int) -> Split:
        generator = torch.Generator().manual_seed(count)
        pixels = torch.randint(0, 256, (count, 3, size, size), generator=generator)
        return Split(name, StoredPixels(pixels.to(torch.uint8)), torch.arange(count) % 10)

    return Dataset(
        name="cifar10",
        class_names=tuple(f"class {i}" for i in range(10)),
        image_shape=(3, size, size),
        mean=(0.5,) * 3,
        std=(0.25,) * 3,
        augmentation="none",
        train=split("train", 30),
        weights=split("weights", 4),
        test=split("test", 4),
    )


def _checkpoint(path: Path, arch: str, shape: tuple[int, int, int]) -> Path:
    manifest = Manifest(
        arch=arch,
        num_classes=10,
        image_shape=shape,
        dataset="cifar10",
        class_names=_dataset().class_names,
        sigma=0.25,
        training={"seed": 1},
    )
    model = with_statistics(create_model(arch, num_classes=10, image_shape=shape))
    save_checkpoint(model, path, manifest)
    return path


def test_measured_ranges_are_part_of_the_checkpoint(tmp_path: Path) -> None:
    file = _checkpoint(tmp_path / "resnet20.safetensors", "resnet20", (3, 32, 32))
    plain, folder = load_members([file]), tmp_path / "out"
    for _ in range(2):  # a second time gives the same
        loaded = load_members([file])
        quantize(loaded, _dataset(), images=20)
        with new_ensemble(folder) as building:
            write_quantized(loaded, building, images=20, seed=0)
    found = load_ensemble(folder)
    images = _images(2)
    outputs = [Member(each.members[0], INT8)(images) for each in (loaded, found)]
    assert torch.equal(*outputs)
    assert found.fingerprint != plain.fingerprint
    assert torch.equal(found.members[0](images), plain.members[0](images))


@pytest.mark.slow
def test_votes_in_integers_do_not_depend_on_the_batch() -> None:
    rows = [
        SmoothedClassifier(
            _module(), sigma=0.25, num_classes=10, precision="int8", forward_rows=forward_rows
        ).certify(_images(2), n0=50, n=150, seed=0)
        for forward_rows in (20, 60)
    ]
    assert {row.precision for row in rows[0]} == {"int8"}
    counts = [[row.estimation_counts for row in own] for own in rows]
    assert counts[0] == counts[1]


def test_ranges_of_another_network_are_refused(tmp_path: Path) -> None:
    file = _checkpoint(tmp_path / "a.safetensors", "resnet20", (3, 32, 32))
    loaded = load_members([file])
    network = loaded.members[0]
    assert isinstance(network, nn.Sequential)
    assert isinstance(network[1], CifarResNet)
    network[1].activation_ranges = torch.ones(7)
    save_checkpoint(network, file, loaded.manifests[0])
    with pytest.raises(CheckpointError, match="activation_ranges"):
        load_members([file])


def test_what_cannot_be_quantized_is_refused(tmp_path: Path) -> None:
    other = load_members(
        [_checkpoint(tmp_path / "a.safetensors", "imagenet-resnet18", (3, 32, 32))]
    )
    with pytest.raises(BadInput, match="CIFAR ResNet"):
        quantize(other, _dataset())
    loaded = load_members([_checkpoint(tmp_path / "b.safetensors", "resnet20", (3, 32, 32))])
    for images in (0, 31):
        with pytest.raises(BadInput, match="1 to 30"):
            quantize(loaded, _dataset(), images=images)
    with pytest.raises(BadInput, match="image shape"):
        quantize(loaded, _dataset(size=16))
