"""Networks whose code reaches outside of a copy, or decides by a whole batch, vote as they are."""

import copy
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import sween
from sween.engine.differences import relative_change
from sween.engine.fold_batch_norm import fold_batch_norm
from sween.engine.inspection import Inspection, inspect_module
from sween.engine.module_state import same_tensors
from sween.engine.preparation import Preparation
from sween.engine.prepare import prepare
from sween.errors import ContractError, ContractWarning
from tests.engine.test_same_operations import IMAGES, small

DARK, BRIGHT = torch.full((3, 32, 32), 0.2), torch.full((3, 32, 32), 0.4)


class Gain(nn.Module):
    """Multiplies by what the forward pass of its parent has found."""

    def __init__(self, parent: nn.Module) -> None:
        super().__init__()
        self.parent = weakref.ref(parent)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parent: Any = self.parent()
        return x * parent.gain  # type: ignore[no-any-return]


class Lambda(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


class DayNight(nn.Module):
    """Makes dark images brighter than bright ones, and sees in that way which they are."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.gain, self.brightness = torch.ones(()), nn.Identity()
        if how == "hook":
            self.brightness.register_forward_hook(lambda module, given, out: out * self.gain)
        self.layer: nn.Module = nn.Identity()
        if how == "weak reference":
            self.layer = Gain(self)
        if how == "closure":
            self.layer = Lambda(lambda x: x * self.gain)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = x.mean(dim=(1, 2, 3), keepdim=True)
        self.gain = torch.where(mean < 0.3, 4.0, 1.0)
        score = self.layer(self.brightness(mean)).flatten() - 0.6
        return torch.stack([score, -score], dim=1)


class Features(nn.Module):
    """Takes its features from where a hook has put them."""

    def __init__(self) -> None:
        super().__init__()
        layers = list(small().children())[:-1]
        self.body = nn.Sequential(*layers)
        self.features = torch.zeros(())
        self.head = nn.Linear(32, 10)
        layers[5].register_forward_hook(lambda module, given, out: self._keep(out))

    def _keep(self, features: torch.Tensor) -> None:
        self.features = features.mean(dim=(2, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.body(x)
        return self.head(self.features)  # type: ignore[no-any-return]


@pytest.mark.parametrize("how", ["hook", "weak reference", "closure"])
@pytest.mark.parametrize("images", [(DARK, BRIGHT), (BRIGHT, DARK)], ids=["dark", "bright"])
@torch.no_grad()
def test_what_a_copy_cannot_see_is_not_left_from_another_image(
    how: str, images: tuple[torch.Tensor, torch.Tensor]
) -> None:
    module = DayNight(how).eval()
    module(torch.stack(images))
    assert inspect_module(module, torch.stack(images)) == Inspection(copies=False)
    smoothed = sween.SmoothedClassifier(module, sigma=0.25, num_classes=2)
    for image in images:
        assert smoothed.certify_one(image, n=200).prediction == (0 if image is DARK else 1)


@pytest.mark.parametrize("rows", [1, 2, 100])
@torch.no_grad()
def test_features_that_a_hook_keeps_are_those_of_the_images(rows: int) -> None:
    module = Features().eval()
    assert not inspect_module(module, IMAGES).copies
    batch = IMAGES[:1].expand(rows, -1, -1, -1).contiguous()
    prepared = prepare(module, Preparation(), batch)
    assert prepared.shared
    module(IMAGES)
    other = IMAGES[1:2].expand(rows, -1, -1, -1).contiguous()
    torch.testing.assert_close(prepared.run(other), module(other))


def test_a_copy_in_another_arithmetic_is_refused_where_it_computes_something_else() -> None:
    with pytest.raises(ContractError, match=r"closure or a weak reference.*float32 precision"):
        prepare(Features().eval(), Preparation("bfloat16"), IMAGES)


class Table(nn.Module):
    """Code that reaches beyond the module, for numbers that no image changes."""

    def __init__(self) -> None:
        super().__init__()
        self.network, self.scale = small(), nn.Parameter(torch.full((3, 1, 1), 0.9))
        self.mean, self.columns = torch.tensor(0.5), torch.zeros(0)
        self.last: torch.Tensor | None = None
        self.network.register_forward_pre_hook(lambda module, given: (given[0] * self.scale,))
        self.network.register_forward_hook(lambda module, given, out: self._keep(out))

    def _keep(self, out: torch.Tensor) -> None:
        self.last = out  # which nothing reads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not len(self.columns):
            self.columns = torch.linspace(0.5, 1, 32)
        return self.network((x - self.mean) * self.columns)  # type: ignore[no-any-return]


@torch.no_grad()
def test_closures_over_weights_and_constants_are_copied() -> None:
    module = Table().eval()
    module(IMAGES)
    assert inspect_module(module, IMAGES) == Inspection()
    prepared = prepare(module, Preparation(), IMAGES)
    assert not prepared.shared
    torch.testing.assert_close(prepared.run(IMAGES), module(IMAGES), rtol=1e-4, atol=1e-4)
    assert type(module.last) is torch.Tensor  # not what torch.fx put there
    copy.deepcopy(module)


class Rescales(nn.Module):
    """For whoever passes uint8 pixels; decides for the whole batch."""

    def __init__(self) -> None:
        super().__init__()
        self.network = small()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x / 255 if x.max() > 1.5 else x
        return self.network(x)  # type: ignore[no-any-return]


def test_code_that_reads_pixels_is_given_one_image_at_a_time() -> None:
    """The first image tells nothing: no noisy copy of it is bright enough."""
    module = Rescales().eval()
    white = torch.full((3, 32, 32), 0.3)
    white[:, :8] = 1
    counts = []
    for rows in (50, 200):
        smoothed = sween.SmoothedClassifier(module, sigma=0.12, num_classes=10, forward_rows=rows)
        with pytest.warns(ContractWarning, match=r"reads the values of pixels.*one at a time"):
            smoothed.certify(DARK[None], n=200)
        (row,) = smoothed.certify(white[None], n=400, seed=0)
        counts.append(row.estimation_counts)
    assert counts[0] == counts[1]


class Calibrated(nn.Module):
    """Counts its passes in a buffer, and computes something else after some of them."""

    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.network = small()
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        logits: torch.Tensor = self.network(x)
        return torch.where(self.calls > 60, -logits, logits)


def test_a_network_that_changes_its_buffers_is_refused() -> None:
    smoothed = sween.SmoothedClassifier(Calibrated(), sigma=0.25, num_classes=10)
    with pytest.raises(ContractError, match="buffers that a forward pass changes"):
        smoothed.certify(DARK[None], n=200)


class Global(nn.Module):
    """Keeps something of its images outside of itself, where nothing shows what it is."""

    kept: list[float]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shift = Global.kept[0]
        Global.kept = [float(len(x))]
        return x.flatten(1)[:, :10] * shift


def test_what_a_module_keeps_elsewhere_must_not_show() -> None:
    Global.kept = [1.0]
    with pytest.raises(ContractError, match=r"not depend on earlier calls|same outputs each"):
        prepare(Global().eval(), Preparation(), IMAGES)


class Padded(nn.Module):
    """Another network for odd sizes, where these are numbers of Python."""

    def __init__(self) -> None:
        super().__init__()
        self.network = small()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size = x.shape[-1]
        if isinstance(size, int) and size % 2:
            x = nn.functional.pad(x, (0, 1, 0, 1), value=5.0)
        return self.network(x)  # type: ignore[no-any-return]


def test_images_of_another_size_are_prepared_for_anew() -> None:
    odd, module = torch.full((1, 3, 33, 33), 0.5), Padded().eval()
    alone = sween.SmoothedClassifier(module, sigma=0.25, num_classes=10)
    after = sween.SmoothedClassifier(module, sigma=0.25, num_classes=10)
    after.certify(torch.full((1, 3, 32, 32), 0.5), n=100)
    wanted = alone.certify(odd, n=300, seed=0)[0].estimation_counts
    assert after.certify(odd, n=300, seed=0)[0].estimation_counts == wanted


class Twice(nn.Module):
    """Calls its first layers by themselves too; torch.fx does not look into DataParallel."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.DataParallel(small())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        network = self.encoder.module
        low = network[1](network[0](x)).mean(dim=(1, 2, 3))
        return self.encoder(x) + low[:, None] * torch.arange(10)  # type: ignore[no-any-return]


@torch.no_grad()
def test_layers_that_are_used_twice_are_not_folded() -> None:
    module = Twice().eval()
    torch.testing.assert_close(fold_batch_norm(module)(IMAGES), module(IMAGES))


class Redefined(sween.WeightedEnsemble):
    def __call__(self, *given: Any) -> Any:
        return super().__call__(*given).flip(1)


def test_an_ensemble_with_a_call_of_its_own_is_refused() -> None:
    with pytest.raises(ContractError, match="a forward or __call__ of its own"):
        sween.SmoothedClassifier(Redefined([small()]), sigma=0.25, num_classes=10)


@pytest.mark.parametrize("classes", [1, 9])
def test_a_masked_class_does_not_hide_a_change(classes: int) -> None:
    wanted = torch.rand(50, 20, generator=torch.Generator().manual_seed(0))
    wanted[:, -classes:] = -1e4
    other = wanted.clone()
    other[7, 3] += 0.5
    assert relative_change(other, wanted) == pytest.approx(0.5, abs=0.02)
    rounded = wanted.half().float()
    assert relative_change(rounded, wanted) < 1e-3
    other = wanted.clone()
    other[:, -1] = 1.0
    assert relative_change(other, wanted) > 0.9


def test_without_masked_classes_the_range_is_that_of_all() -> None:
    wanted = torch.tensor([[0.0, 1.0, 5.0], [2.0, -3.0, 4.0]])
    assert relative_change(wanted + 0.8, wanted) == pytest.approx(0.1)


class Unnormalised(nn.Module):
    """Overflows in float16, with a class that is masked."""

    def __init__(self) -> None:
        super().__init__()
        self.network, self.head = small()[:-1], nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = self.network(x) * 300
        features = features / features.square().sum(dim=1, keepdim=True).sqrt()
        logits: torch.Tensor = self.head(features)
        return logits.masked_fill(torch.arange(10) == 9, -1e4)


def test_a_network_that_overflows_is_refused_although_a_class_is_masked() -> None:
    with pytest.raises(ContractError, match=r"differ from those .* use float32 precision"):
        prepare(Unnormalised().eval(), Preparation("float16"), IMAGES)


class ByNumbers(DayNight):
    """Keeps its gain as a number of Python, which stands in no expression."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = x.mean(dim=(1, 2, 3), keepdim=True)
        self.gain = torch.tensor(4.0 if float(mean.mean()) < 0.3 else 1.0)
        score = self.layer(self.brightness(mean)).flatten() - 0.6
        return torch.stack([score, -score], dim=1)


@pytest.mark.parametrize("how", ["hook", "weak reference", "closure"])
@pytest.mark.parametrize("images", [(DARK, BRIGHT), (BRIGHT, DARK)], ids=["dark", "bright"])
def test_numbers_that_a_copy_cannot_see_are_not_left_either(
    how: str, images: tuple[torch.Tensor, torch.Tensor]
) -> None:
    smoothed = sween.SmoothedClassifier(ByNumbers(how).eval(), sigma=0.25, num_classes=2)
    with pytest.warns(ContractWarning, match="one at a time"):
        found = [smoothed.certify_one(image, n=200).prediction for image in images]
    assert found == [0 if image is DARK else 1 for image in images]


def test_models_that_cannot_be_copied_are_not_copied_to_devices(tmp_path: Path) -> None:
    model, labels = DayNight("closure").eval(), torch.tensor([0, 1])
    smoothed = sween.SmoothedClassifier(model, sigma=0.25, num_classes=2)
    data = (torch.stack([DARK, BRIGHT]), labels)
    run = sween.certify_dataset(smoothed, data, out=tmp_path / "own", n=100, quiet=True)
    assert [row.prediction for row in run.certificates] == [0, 1]
    with pytest.raises(ContractError, match=r"copied to other devices.*leave out `devices`"):
        sween.certify_dataset(
            smoothed, data, out=tmp_path / "copies", n=100, devices=[torch.device("cpu")]
        )
    assert not (tmp_path / "copies").exists()


@torch.no_grad()
def test_threads_take_turns_where_a_module_votes_itself() -> None:
    """It keeps the features of one pass until its head has read them."""
    module = Features().eval()
    members = [prepare(module, Preparation(), IMAGES).run for _ in range(2)]
    wanted = [module(IMAGES), module(IMAGES.flip(0))]
    failed = list[int]()

    def evaluate(which: int) -> None:
        for _ in range(60):
            if not torch.equal(members[which](IMAGES.flip(0) if which else IMAGES), wanted[which]):
                failed.append(which)

    threads = [threading.Thread(target=evaluate, args=(which,)) for which in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


class Replaced(Calibrated):
    """Puts another tensor in the place of its buffer, in code that torch.fx cannot read."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls = self.calls + 1
        logits: torch.Tensor = self.network(x)
        return torch.where(self.calls > 60, -logits, logits) * len([*range(len(x))]) / len(x)


class Counts(nn.Module):
    """Counts its passes in a number."""

    def __init__(self) -> None:
        super().__init__()
        self.network, self.calls, self.size = small(), 0, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls, self.size = self.calls + 1, x.shape[-1]
        logits: torch.Tensor = self.network(x)
        return -logits if self.calls > 1000 else logits


def test_buffers_that_are_replaced_and_numbers_that_change_are_seen() -> None:
    with pytest.raises(ContractError, match="buffers that a forward pass changes"):
        prepare(Replaced().eval(), Preparation(), IMAGES)
    with pytest.warns(ContractWarning, match="got calls, which each pass changes"):
        prepare(Counts().eval(), Preparation(), IMAGES)


class First(nn.Module):
    """Takes its scale from the first images that it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.network = small()
        self.scale: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.scale is None:
            self.scale = 0.5 / x.mean()
        return self.network(x * self.scale)  # type: ignore[no-any-return]


@torch.no_grad()
def test_what_is_taken_over_from_the_first_images_is_refused() -> None:
    module = First().eval()
    with pytest.raises(ContractError, match="whatever images it has seen first"):
        prepare(module, Preparation(), IMAGES)
    assert prepare(module, Preparation(), IMAGES)  # which it has seen by now


class Unlike(nn.Module):
    """Has a buffer that nothing uses and is not a number."""

    def __init__(self) -> None:
        super().__init__()
        self.network = small()
        self.register_buffer("last", torch.full((2,), float("nan")))
        self.register_buffer("spectrum", torch.full((2,), complex(1, float("nan"))))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.network(x)  # type: ignore[no-any-return]


class Tied(nn.Module):
    """Has weights that are parts of one tensor, and scores in memory that nobody has set."""

    def __init__(self) -> None:
        super().__init__()
        self.network, self.other = small(), small()
        weights = torch.cat([own.flatten() for own in self.network.parameters()])
        nn.utils.vector_to_parameters(weights, self.network.parameters())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = self.network(x)[:, :, None]
        return torch.baddbmm(torch.empty(len(x), 10, 10), z, z.mT, beta=0).mean(dim=2)


def scripted() -> nn.Module:
    network = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.ReLU(inplace=True), nn.Flatten(2))
    return torch.jit.script(nn.Sequential(network, nn.Linear(225, 4), nn.Flatten()).eval())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("make", [Unlike, Tied, scripted])
@torch.no_grad()
def test_ordinary_networks_are_copied(make: Callable[[], nn.Module]) -> None:
    module = make().eval()
    module(IMAGES)
    assert inspect_module(module, IMAGES) == Inspection()
    assert same_tensors(*([*map(torch.clone, module.buffers())] for _ in range(2)))
    prepared = prepare(module, Preparation(), IMAGES)
    assert not prepared.shared
    torch.testing.assert_close(prepared.run(IMAGES), module(IMAGES), rtol=1e-4, atol=1e-4)


class Frozen(nn.Module):
    """One object for all, as its copies are the same."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Flatten(), nn.Linear(3072, 10))

    def __deepcopy__(self, memo: dict[int, Any]) -> "Frozen":
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.network(x)  # type: ignore[no-any-return]


def test_a_module_whose_copy_is_itself_keeps_its_weights() -> None:
    module = Frozen().eval()
    with pytest.raises(ContractError, match=r"shares parts with it.*float32 precision"):
        prepare(module, Preparation("bfloat16"), IMAGES)
    assert {own.dtype for own in module.parameters()} == {torch.float32}
    assert prepare(module, Preparation(), IMAGES).shared


def test_a_warning_of_ours_is_no_error_of_the_module() -> None:
    """Where warnings are errors, as in these tests."""
    with pytest.raises(ContractWarning, match="got calls, which each pass changes"):
        prepare(Counts().eval(), Preparation(), IMAGES)


def _derivative(x: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = torch.func.jvp(lambda own: own * 1.0, (x,), (x,))[0]
    return found  # which cannot be followed


def _inverse(x: torch.Tensor) -> torch.Tensor:
    try:
        torch.linalg.inv((x.mean((1, 2, 3)) <= 2).float()[:, None, None] * torch.eye(2))
    except RuntimeError:  # of one image
        return -x
    return x


def _split(x: torch.Tensor) -> torch.Tensor:
    first, _ = torch.tensor_split(x.flatten(), (x.mean((1, 2, 3)) > 2).sum()[None])
    return x if len(first) == 0 else -x


def _packed(x: torch.Tensor) -> torch.Tensor:
    lengths = (x.mean((1, 2, 3)) > 2).long() + 1
    rows = x.flatten(2).transpose(1, 2)[:, :2]
    found = nn.utils.rnn.pack_padded_sequence(rows, lengths, batch_first=True, enforce_sorted=False)
    return x if len(found.batch_sizes) == 1 else -x


@pytest.mark.parametrize("way", [_derivative, _inverse, _split, _packed])
@torch.no_grad()
def test_values_that_no_python_number_shows_are_read_too(
    way: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    module = nn.Sequential(Lambda(way), small()).eval()
    assert inspect_module(module, IMAGES).reads_values


def _chosen(x: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = torch.cond(
        x.mean() < 2, lambda own: own * 1.0, lambda own: own * 2.0, (x,)
    )
    return found


@pytest.mark.filterwarnings("ignore:.*reads the values of pixels")
@torch.no_grad()
def test_operators_that_torch_compiles_work_after_they_could_not_be_watched() -> None:
    module = nn.Sequential(Lambda(_chosen), small()).eval()
    prepared = prepare(module, Preparation("float32", compile=False), IMAGES)
    assert prepared.one_at_a_time
    assert torch.allclose(prepared.run(IMAGES[:1]), module(IMAGES[:1]), atol=1e-5)


class Sparse(nn.Module):
    """Has a sparse buffer, and one on no device."""

    def __init__(self) -> None:
        super().__init__()
        self.network = small()
        self.register_buffer("mask", torch.eye(32).to_sparse())
        self.register_buffer("shape", torch.empty(3, device="meta"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        masked = torch.sparse.mm(self.mask, x.flatten(0, 2).mT).mT
        logits: torch.Tensor = self.network(masked.reshape(x.shape))
        return logits


def _frozen() -> nn.Module:
    layers = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(3600, 10)]
    frozen: nn.Module = torch.jit.freeze(torch.jit.script(nn.Sequential(*layers).eval()))
    return frozen


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("make", [Sparse, _frozen])
def test_buffers_and_scripts_of_other_kinds_are_certified(make: Callable[[], nn.Module]) -> None:
    smoothed = sween.SmoothedClassifier(make(), sigma=0.5, num_classes=10)
    assert smoothed.certify_one(IMAGES[0], n=200, seed=0).n == 200
