"""A network whose code asks what it was given is run as it is, not as torch.fx reads it."""

import contextlib
import copy
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.overrides import has_torch_function

import sween
from sween.bench import calibrate_batch_norm, reference_votes
from sween.engine.expressions import Expressions, Recorder
from sween.engine.preparation import Preparation
from sween.engine.prepare import prepare
from sween.engine.same_operations import is_read_rightly, is_same_in_any_layout
from sween.errors import ContractWarning
from sween.models import create_model
from tests.engine.kernels import strangers
from tests.engine.kernels.networks import norms_of

IMAGES = torch.rand(6, 3, 32, 32, generator=torch.Generator().manual_seed(1))
SIGMA = 0.15

BRIGHT = torch.ones(3, 32, 32)
BRIGHT[1] = 0
"""Under noise half of its values are outside [0, 1]."""


def small() -> nn.Sequential:
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, 2, 1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Dropout(0.5),
        nn.Flatten(),
        nn.Linear(32, 10),
    )
    calibrate_batch_norm(network, (3, 32, 32))
    return network.eval()


Before = Callable[[torch.Tensor], torch.Tensor]


@torch.no_grad()
def sensitive() -> nn.Sequential:
    """Takes noisy copies of BRIGHT for class 0 where they are clamped, for class 1 otherwise."""
    network, generator = small(), torch.Generator().manual_seed(5)
    noisy = BRIGHT + SIGMA * torch.randn(200, 3, 32, 32, generator=generator)
    clamped_ones, others = (network[:-1](images) for images in (noisy.clamp(0, 1), noisy))
    direction = clamped_ones.mean(dim=0) - others.mean(dim=0)
    heights = [float((part @ direction).mean()) for part in (clamped_ones, others)]
    head = network[-1]
    assert isinstance(head, nn.Linear)
    head.weight.zero_()
    head.bias.zero_()
    scale = 10 / abs(heights[0] - heights[1])
    head.weight[0], head.bias[0] = direction * scale, -scale * sum(heights) / 2
    return network


class Around(nn.Module):
    """A network with code before it."""

    def __init__(self, before: Before, network: nn.Module | None = None) -> None:
        super().__init__()
        self.network, self.before = network or small(), before

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.network(self.before(x))
        return logits


def clamped(x: torch.Tensor) -> torch.Tensor:
    return x.clamp(0, 1)


def asks_for_the_class(x: torch.Tensor) -> torch.Tensor:
    return clamped(x) if isinstance(x, torch.Tensor) else x


def asks_for_the_type(x: torch.Tensor) -> torch.Tensor:
    return clamped(x) if type(x) is torch.Tensor else x


def asks_torch(x: torch.Tensor) -> torch.Tensor:
    return clamped(x) if torch.is_tensor(x) else x


def asks_for_an_attribute(x: torch.Tensor) -> torch.Tensor:
    return x if hasattr(x, "images") else clamped(x)


def sets_its_data(x: torch.Tensor) -> torch.Tensor:
    x.data = clamped(x.data)
    return x


def takes_one_of_two(x: torch.Tensor) -> torch.Tensor:
    """The same operation in both cases, with another number."""
    return x.clamp(0, 1 if isinstance(x, torch.Tensor) else 1.5)


def takes_one_of_two_constants(x: torch.Tensor) -> torch.Tensor:
    return torch.minimum(x, torch.tensor(1.0 if isinstance(x, torch.Tensor) else 1.5))


def takes_one_of_two_inputs(x: torch.Tensor) -> torch.Tensor:
    low, high = x.clamp(min=0), x.clamp(max=1)
    return (low if isinstance(x, torch.Tensor) else high) + 0


def copies_a_sign(x: torch.Tensor) -> torch.Tensor:
    """0 and -0 are equal."""
    sign = torch.tensor(-0.0 if isinstance(x, torch.Tensor) else 0.0)
    return clamped(torch.copysign(x, sign).abs() * x.sign())


def asks_for_the_layout(x: torch.Tensor) -> torch.Tensor:
    return clamped(x) if x.is_contiguous() else x


def writes_to_what_may_be_a_copy(x: torch.Tensor) -> torch.Tensor:
    """Contiguous images are changed, and others are not."""
    x.contiguous().clamp_(0, 1)
    return x


def writes_to_a_view(x: torch.Tensor) -> torch.Tensor:
    x.view(x.shape[0], -1).clamp_(0, 1)
    return x


def reads_values_if_it_can(x: torch.Tensor) -> torch.Tensor:
    try:
        bright = bool(x.amax() > 1)
    except Exception:
        bright = False
    return clamped(x) if bright else x


def reads_an_array_if_it_can(x: torch.Tensor) -> torch.Tensor:
    try:
        bright = x.detach().numpy().max() > 1
    except Exception:
        bright = False
    return clamped(x) if bright else x


def reads_text_if_it_can(x: torch.Tensor) -> torch.Tensor:
    try:
        bright = float(f"{x.amax()}") > 1
    except Exception:
        bright = False
    return clamped(x) if bright else x


def reads_memory_if_it_can(x: torch.Tensor) -> torch.Tensor:
    try:
        bright = x.untyped_storage()[3] > 0  # the exponent of the first value
    except Exception:
        bright = False
    return clamped(x) if bright else x


def counts_values_if_it_can(x: torch.Tensor) -> torch.Tensor:
    """Where the number of bright pixels is the size of a tensor."""
    try:
        bright = len(x[x > 1]) > 0
    except Exception:
        bright = False
    return clamped(x) if bright else x


LIMIT = torch.tensor(1.0)


def changes_a_constant(x: torch.Tensor) -> torch.Tensor:
    x = torch.minimum(x, LIMIT.fill_(1.0)).clamp(min=0)
    return torch.minimum(x, LIMIT.fill_(6.0))


def draws_by_a_seed(x: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(0)
    return clamped(x) + 1e-3 * torch.rand_like(x)


def in_lower_precision(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return (x.flatten(2) @ torch.eye(1024)).view_as(x).float()


def adds_to_what_a_view_shows(x: torch.Tensor) -> torch.Tensor:
    """torch.fx reads an addition in place as one that leaves the view alone."""
    y = x * 1
    first = y[:, :1]
    y += 1
    return torch.cat([first, y[:, 1:]], dim=1)


def adds_by_a_view(x: torch.Tensor) -> torch.Tensor:
    y = x * 1
    first = y[:, :1]
    first += 1
    return y


def adds_to_what_shares_its_data(x: torch.Tensor) -> torch.Tensor:
    y = x * 1
    same = y.data
    y += 1
    return same


def adds_to_what_was_detached(x: torch.Tensor) -> torch.Tensor:
    y = x * 1
    same = y.detach()
    y += 1
    return same


def adds_to_another_name(x: torch.Tensor) -> torch.Tensor:
    y = x * 1
    same = y
    y += 1
    return same


def asks_who_watches(x: torch.Tensor) -> torch.Tensor:
    """As fast paths do; a proxy of torch.fx is a watcher too."""
    return x if has_torch_function((x,)) else clamped(x)


def writes_to_a_parameter_of_it(x: torch.Tensor) -> torch.Tensor:
    """Such parameters share its memory, and no operation shows that they are made."""
    y = x * 1
    parameter = nn.Parameter(y, requires_grad=False)
    parameter %= 2.0  # type: ignore[misc]
    return y


def writes_to_a_parameter_of_the_images(x: torch.Tensor) -> torch.Tensor:
    if isinstance(x, torch.Tensor):
        nn.Parameter(x, requires_grad=False).clamp_(0, 1)
    return x


def writes_from_a_thread(x: torch.Tensor) -> torch.Tensor:
    y = x * 1
    if isinstance(y, torch.Tensor):
        writer = threading.Thread(target=lambda: y.clamp_(0, 1))
        writer.start()
        writer.join()
    return y


def sets_its_data_unseen(x: torch.Tensor) -> torch.Tensor:
    y = x * 1
    if isinstance(y, torch.Tensor):
        with torch._C.DisableTorchFunction():
            y.data = clamped(y.data)
    return y


def multiplies_by_its_own_channel(x: torch.Tensor) -> torch.Tensor:
    """Which the product overwrites before it has read all of it."""
    y = x.clamp(min=1)  # the same where the first pixels are 1
    y *= y[:, :1]
    return y


def squares_an_unsafe_part(x: torch.Tensor) -> torch.Tensor:
    """A view that torch denies."""
    y = x.clamp(min=1)
    first, _, _ = y.unsafe_chunk(3, 1)
    first *= first
    return y


@torch.fx.wrap
def sparse(y: torch.Tensor) -> torch.Tensor:
    rows = torch.arange(y.shape[0])[None]
    return torch.sparse_coo_tensor(rows, y, y.shape, check_invariants=False)


def adds_to_the_values_of_a_sparse_tensor(x: torch.Tensor) -> torch.Tensor:
    y = x * 1
    shown = sparse(y)
    y += functional.relu(x - 1)
    return shown.to_dense()


MISREAD = [
    asks_who_watches,
    writes_to_a_parameter_of_it,
    writes_to_a_parameter_of_the_images,
    writes_from_a_thread,
    sets_its_data_unseen,
    multiplies_by_its_own_channel,
    squares_an_unsafe_part,
    adds_to_the_values_of_a_sparse_tensor,
    asks_for_the_class,
    asks_for_the_type,
    asks_torch,
    asks_for_an_attribute,
    sets_its_data,
    takes_one_of_two,
    takes_one_of_two_constants,
    takes_one_of_two_inputs,
    copies_a_sign,
    asks_for_the_layout,
    writes_to_what_may_be_a_copy,
    writes_to_a_view,
    reads_values_if_it_can,
    reads_an_array_if_it_can,
    reads_text_if_it_can,
    reads_memory_if_it_can,
    counts_values_if_it_can,
    changes_a_constant,
    draws_by_a_seed,
    in_lower_precision,
    adds_to_what_a_view_shows,
    adds_by_a_view,
    adds_to_what_shares_its_data,
    adds_to_what_was_detached,
    adds_to_another_name,
]


def with_constants(x: torch.Tensor) -> torch.Tensor:
    mean = torch.tensor([0.5, 0.4, 0.3]).view(1, 3, 1, 1).to(x.device)
    columns = torch.arange(32, dtype=torch.float32) / 32
    return (x - mean) * (1 + columns)


def in_place(x: torch.Tensor) -> torch.Tensor:
    x = x * 2
    x -= 0.5
    x[:, 0].mul_(0.5)
    return x.clamp_(-1, 1)


def by_sizes(x: torch.Tensor) -> torch.Tensor:
    batch, channels, height, width = x.size()
    x = x.permute(0, 2, 3, 1).reshape(batch, height * width, channels)
    return x.transpose(1, 2).view(batch, channels, height, width)


def in_parts(x: torch.Tensor) -> torch.Tensor:
    red, rest = x[:, :1], x[:, 1:]
    return torch.cat([rest, functional.dropout(red, training=False)], dim=1)


class Swish(torch.autograd.Function):
    """As networks write it to save memory in training."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * torch.sigmoid(x)


def by_autograd(x: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = Swish.apply(x)  # type: ignore[no-untyped-call]
    return found


def flattened(x: torch.Tensor) -> torch.Tensor:
    """By `view`, which channels-last images do without."""
    return functional.avg_pool2d(x, 2).view(x.shape[0], 768).view(-1, 3, 16, 16)


def rectified(x: torch.Tensor) -> torch.Tensor:
    return functional.relu(x - 0.5, inplace=True)


def masked(x: torch.Tensor) -> torch.Tensor:
    return torch.nan_to_num(x.masked_fill(x > 1, float("nan")), nan=1.0)


def to_bits_and_back(x: torch.Tensor) -> torch.Tensor:
    return x.view(torch.int32).view(torch.float32)


@pytest.mark.parametrize("before", MISREAD, ids=lambda own: own.__name__)
def test_code_that_asks_what_it_was_given_is_not_read_rightly(before: Before) -> None:
    assert not is_read_rightly(Around(before), IMAGES)


READ = [
    with_constants,
    in_place,
    by_sizes,
    in_parts,
    by_autograd,
    rectified,
    masked,
]
READ += [to_bits_and_back, flattened]


@pytest.mark.parametrize("before", READ, ids=lambda own: own.__name__)
@torch.no_grad()
def test_other_code_is(before: Before) -> None:
    network = Around(before).eval()
    assert is_read_rightly(network, IMAGES)
    prepared = prepare(network, Preparation(), IMAGES)
    assert isinstance(prepared.run, nn.Module)
    assert norms_of(prepared.run) == []
    torch.testing.assert_close(prepared.run(IMAGES), network(IMAGES), rtol=1e-4, atol=1e-4)


class Remembers(Around):
    """Clamps once it has seen anything but a tensor, as while it is traced."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.traced = getattr(self, "traced", False) or not isinstance(x, torch.Tensor)
        return super().forward(clamped(x) if self.traced else x)


class Centred(Around):
    """Keeps the mean of its images in a buffer, and subtracts it."""

    def __init__(self, before: Before) -> None:
        super().__init__(before)
        self.register_buffer("mean", torch.zeros(1, 3, 32, 32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = self.get_buffer("mean")
        mean.copy_(x.mean(dim=0, keepdim=True))
        return super().forward(x - mean)


class Scaled(Around):
    """Takes parts of a parameter, and a table that it makes when it runs first."""

    def __init__(self, before: Before) -> None:
        super().__init__(before)
        self.scale = nn.Parameter(torch.rand(2, 3, 1, 1))
        self.columns: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.columns is None:
            self.columns = torch.linspace(0.5, 1, 32)
        return super().forward(x * self.columns * self.scale[0] + self.scale[1:])


@pytest.mark.parametrize("make", [Remembers, Centred])
def test_what_a_run_leaves_behind_does_not_hide_what_it_does(make: type[Around]) -> None:
    network = make(lambda x: x).eval()
    assert not is_read_rightly(network, IMAGES)
    assert not is_read_rightly(network, IMAGES)


class Changing(Around):
    """Changes a parameter between two uses."""

    def __init__(self, before: Before, *, by_arrays: bool) -> None:
        super().__init__(before)
        self.scale, self.by_arrays = nn.Parameter(torch.ones(())), by_arrays

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * self.scale
        if self.by_arrays:
            self.scale.detach().numpy()[...] = 2
        else:
            self.scale.fill_(2)
        return super().forward(x * self.scale)


@pytest.mark.parametrize("by_arrays", [False, True])
@torch.no_grad()
def test_a_parameter_counts_as_itself_until_something_changes_it(by_arrays: bool) -> None:
    network = Changing(lambda x: x, by_arrays=by_arrays).eval()
    with Recorder(copied := copy.deepcopy(network), IMAGES, Expressions(network)) as recorder:
        copied(IMAGES)
    assert recorder.saw_all_changes() is not by_arrays
    assert is_read_rightly(network, IMAGES) is not by_arrays


class Restored(Around):
    """Changes a buffer by means that no operation shows, and changes it back."""

    def __init__(self, *, by_arrays: bool) -> None:
        super().__init__(lambda x: x)
        self.by_arrays = by_arrays
        self.register_buffer("limit", torch.full((1,), 6.0))

    def fill(self, value: float) -> None:
        limit = self.get_buffer("limit")
        if self.by_arrays:
            limit.numpy()[...] = value
        else:
            writer = threading.Thread(target=lambda: limit.fill_(value))
            writer.start()
            writer.join()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.fill(1.0)
        x = torch.minimum(x, self.get_buffer("limit"))
        self.fill(6.0)
        return super().forward(x)


@pytest.mark.parametrize("by_arrays", [False, True])
def test_a_buffer_that_is_changed_and_restored_unseen_is_noticed(by_arrays: bool) -> None:
    assert not is_read_rightly(Restored(by_arrays=by_arrays).eval(), IMAGES)


class Attending(nn.Module):
    """Torch's attention, which takes a fast path where nobody watches and no gradients are kept."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, 16, 8, 8)
        self.encoder = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.head = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.encoder(self.embed(x).flatten(2).transpose(1, 2))
        tokens, _ = self.attention(tokens, tokens, tokens, need_weights=False)
        logits: torch.Tensor = self.head(tokens.mean(1))
        return logits


@pytest.mark.parametrize("gradients", [False, True])
def test_torchs_attention_is_read_rightly(gradients: bool) -> None:
    network = Attending().eval()
    with torch.set_grad_enabled(gradients):
        assert is_read_rightly(network, IMAGES)


class Recurrent(nn.Module):
    """Torch's cells write to parts of `unsafe_chunk` that nothing else reads."""

    def __init__(self, kind: type[nn.GRU | nn.GRUCell | nn.LSTMCell]) -> None:
        super().__init__()
        self.embed, self.cell, self.head = nn.Conv2d(3, 16, 8, 8), kind(16, 16), nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.embed(x).flatten(2).permute(2, 0, 1)
        found = self.cell(tokens if isinstance(self.cell, nn.GRU) else tokens[0])
        if not isinstance(self.cell, nn.GRUCell):
            found = found[0]
        logits: torch.Tensor = self.head(found[-1] if isinstance(self.cell, nn.GRU) else found)
        return logits


@pytest.mark.parametrize("kind", [nn.GRU, nn.GRUCell, nn.LSTMCell])
@torch.no_grad()
def test_recurrent_cells_are_read_rightly(kind: type[nn.GRU | nn.GRUCell | nn.LSTMCell]) -> None:
    assert is_read_rightly(Recurrent(kind).eval(), IMAGES)


def adds_one_part_to_another(x: torch.Tensor) -> torch.Tensor:
    first, second = (x * 1).flatten(2).chunk(2, 2)
    first.add_(second)
    return torch.cat([first, second], dim=2).view(x.shape)


def gates_softly(x: torch.Tensor) -> torch.Tensor:
    return x * functional.relu6(x + 3, inplace=True) / 6


def roots(x: torch.Tensor) -> torch.Tensor:
    """Of dark pixels no number."""
    return (x - 0.5).sqrt().nan_to_num().flatten(1).view(x.shape)


def refuses_bright_images(x: torch.Tensor) -> torch.Tensor:
    torch._assert_async(x.amax() <= 2)
    return x


WITHOUT_FUNCTIONALISING = [gates_softly, roots, refuses_bright_images]


@pytest.mark.parametrize("before", WITHOUT_FUNCTIONALISING, ids=lambda own: own.__name__)
@torch.no_grad()
def test_ordinary_writes_need_no_functionalising(
    before: Before, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes several times as long."""
    convolutions = nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 10),
    )
    network = Around(before, convolutions).eval()
    monkeypatch.setattr(torch.func, "functionalize", None)
    assert is_read_rightly(network, IMAGES)


@torch.no_grad()
def test_parts_of_one_tensor_may_be_added() -> None:
    network = Around(adds_one_part_to_another).eval()
    assert is_read_rightly(network, IMAGES)
    assert is_same_in_any_layout(network, IMAGES)


@pytest.mark.parametrize("make", [Around, Scaled])
def test_parts_of_weights_and_tables_are_read_rightly(make: type[Around]) -> None:
    network = make(lambda x: x).eval()
    assert is_read_rightly(network, IMAGES)
    assert is_same_in_any_layout(network, IMAGES)


@pytest.mark.parametrize("before", [writes_to_what_may_be_a_copy, counts_values_if_it_can])
def test_the_layout_of_images_is_left_where_it_or_values_matter(before: Before) -> None:
    assert not is_same_in_any_layout(Around(before).eval(), IMAGES)


def test_hooks_and_computed_weights_are_read_rightly() -> None:
    hooked, computed = small(), small()
    hooked.register_forward_hook(lambda module, given, found: found * 1.5)
    hooked[0].register_forward_pre_hook(lambda module, given: (given[0] + 1,))
    nn.utils.parametrizations.weight_norm(computed[3])
    assert is_read_rightly(hooked, IMAGES)
    assert is_read_rightly(computed, IMAGES)


REGISTERED = ["resnet20", "resnet20x2", "resnet110", "imagenet-resnet18", "digits-resnet"]


@pytest.mark.parametrize("arch", REGISTERED)
def test_registered_networks_are_read_rightly(arch: str) -> None:
    shape = (1, 8, 8) if arch.startswith("digits") else (3, 32, 32)
    network = create_model(arch, num_classes=10, image_shape=shape).eval()
    assert is_read_rightly(network, torch.rand(2, *shape))


@pytest.mark.parametrize("make", [strangers.ResNet])
def test_networks_by_other_code_are_read_rightly(make: Callable[[], nn.Module]) -> None:
    assert is_read_rightly(make().eval(), IMAGES)


def test_code_that_cannot_be_traced_or_copied_is_not() -> None:
    assert not is_read_rightly(Around(lambda x: clamped(x) if x.max() > 1 else x), IMAGES)
    uncopyable = small()
    uncopyable.handle = (each for each in "generators cannot be copied")  # type: ignore[assignment]
    assert not is_read_rightly(uncopyable, IMAGES)


def test_a_network_for_one_number_of_images_is_read_with_all_of_them() -> None:
    assert is_read_rightly(Around(lambda x: x.reshape(6, 3, 32, 32)), IMAGES)


def test_the_module_is_left_as_it_was() -> None:
    network = small()
    before = copy.deepcopy(network.state_dict())
    images = IMAGES.clone()
    assert is_read_rightly(network, images)
    assert torch.equal(images, IMAGES)
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name])


@pytest.mark.parametrize(
    "before",
    [*[own for own in MISREAD if own is not writes_from_a_thread], clamped],
    ids=lambda own: own.__name__,
)
def test_votes_are_those_of_the_module(before: Before) -> None:
    """On an image where a lost clamp shows, after a grey one, where it does not."""
    network = Around(before, sensitive()).eval()
    smoothed = sween.SmoothedClassifier(network, sigma=SIGMA, num_classes=10)
    reads = before.__name__.startswith(("reads_", "counts_"))
    said = pytest.warns(ContractWarning, match="one at a time")
    with said if reads else contextlib.nullcontext():
        smoothed.certify(torch.full((1, 3, 32, 32), 0.5), n=100)
    found = torch.tensor(smoothed.certify(BRIGHT[None], n=1000)[0].estimation_counts)
    wanted = reference_votes(network, BRIGHT, sigma=SIGMA, num_classes=10, batches=1)
    apart = (found / found.sum() - torch.from_numpy(wanted) / wanted.sum()).abs().max()
    assert float(apart) < 0.1


def test_a_prepared_network_that_is_misread_is_the_module_itself() -> None:
    network = Around(asks_for_the_class).eval()
    images = 3 * torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(2))
    prepared = prepare(network, Preparation(), IMAGES)
    torch.testing.assert_close(prepared.run(images), network(images), rtol=1e-4, atol=1e-5)


def test_it_does_without_the_compiler() -> None:
    """Importing it takes seconds, and many networks never need it."""
    script = """
import sys, torch
from sween.engine.same_operations import is_read_rightly
from sween.models import create_model

network = create_model("resnet20", num_classes=10, image_shape=(3, 32, 32)).eval()
print(is_read_rightly(network, torch.rand(2, 3, 32, 32)), "torch._dynamo" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert done.stdout == b"True False\n"
