"""The paper's counts of parameters and multiply-adds, exactly."""

import pytest
import torch
from torch import nn

from sween.models import count_flops, count_parameters, create_model

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
