"""The paper's counts of parameters and multiply-adds, exactly."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from sween.models import count_flops, count_matrix_flops, count_parameters, create_model

CIFAR = (3, 32, 32)


@pytest.mark.parametrize(
    ("name", "parameters", "flops"),
    [
        ("resnet20", 272_474, 41_214_592),
        ("resnet26", 369_690, 55_485_056),
        ("resnet32", 466_906, 69_755_520),
        ("resnet110", 1_730_714, 255_271_552),
    ],
)
def test_cifar_resnets_cost_what_the_papers_table_says(
    name: str, parameters: int, flops: int
) -> None:
    model = create_model(name, num_classes=10, image_shape=CIFAR)
    assert (count_parameters(model), count_flops(model, CIFAR)) == (parameters, flops)


@pytest.mark.parametrize("width", [2, 3, 4])
def test_wide_resnets_cost_the_square_of_their_width(width: int) -> None:
    """But for the first convolution; one with four times the channels does 1.3 GFLOP."""
    narrow, wide = (
        count_flops(create_model(name, num_classes=10, image_shape=CIFAR), CIFAR)
        for name in ("resnet20", f"resnet20x{width}")
    )
    assert wide == pytest.approx(width**2 * narrow, rel=0.02)
    if width == 4:
        assert 2 * wide == pytest.approx(1.3e9, rel=0.002)


def test_imagenet_resnets_have_the_published_number_of_parameters() -> None:
    published = {18: 11_689_512, 34: 21_797_672, 50: 25_557_032}
    for depth, parameters in published.items():
        name, shape = f"imagenet-resnet{depth}", (3, 224, 224)
        with torch.device("meta"):  # where weights take neither memory nor time
            model = create_model(name, num_classes=1000, image_shape=shape)
        assert count_parameters(model) == parameters


def test_counting_by_hand() -> None:
    model = nn.Sequential(
        nn.Conv2d(4, 6, 3, padding=1, groups=2, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(6 * 25, 7),
    )
    assert count_parameters(model) == 6 * 2 * 9 + 12 + 6 * 25 * 7 + 7
    assert count_flops(model, (4, 5, 5)) == 6 * 25 * 2 * 9 + 2 * 6 * 25 + 7 * 6 * 25


class Attention(nn.Module):
    """Self-attention over 16 pixels of 8 channels, four ways."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.both = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.flatten(2).transpose(1, 2)
        if self.way == "module":
            out, _ = self.both(tokens, tokens, tokens, need_weights=False)
        else:
            mixed = functional.linear(tokens, self.both.in_proj_weight, self.both.in_proj_bias)
            q, k, v = mixed.view(len(x), 16, 3, 2, 4).permute(2, 0, 3, 1, 4)
            if self.way == "fused":
                heads = functional.scaled_dot_product_attention(q, k, v)
            else:
                heads = torch.softmax(q @ k.transpose(2, 3) / 2, dim=3) @ v
            out = self.both.out_proj(heads.transpose(1, 2).flatten(2))
        return out.mean(1)  # type: ignore[no-any-return]


@pytest.mark.parametrize("way", ["module", "fused", "by hand"])
def test_the_products_of_attention_are_counted(way: str) -> None:
    projections = 16 * 8 * 24 + 16 * 8 * 8
    products = 2 * (2 * 16 * 16 * 4)  # heads, queries and keys, keys and values
    assert count_matrix_flops(Attention(way), (8, 4, 4)) == 2 * (projections + products)


def test_matrix_products_are_those_of_the_paper_without_batch_norm() -> None:
    model = create_model("resnet20", num_classes=10, image_shape=CIFAR)
    norms = 2 * sum(16 * 32 * 32 * scale * count for scale, count in ((1, 7), (0.5, 7), (0.25, 7)))
    assert count_matrix_flops(model, CIFAR) == 2 * (count_flops(model, CIFAR) - norms)


def test_counting_leaves_the_model_as_it_was() -> None:
    model = create_model("digits-conv", num_classes=10, image_shape=(1, 8, 8))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for training in (True, False):
        model.train(training)
        first = count_flops(model, (1, 8, 8))
        assert count_flops(model, (1, 8, 8)) == first, "hooks of the first count remain"
        assert model.training is training
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    model.train()
    with pytest.raises(RuntimeError):
        count_flops(model, (3, 8, 8))
    assert model.training
    assert not any(module._forward_hooks for module in model.modules())
