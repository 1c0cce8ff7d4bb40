"""On a GPU ordinary networks are copied, and others vote themselves or are refused, as on a CPU."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from sween.engine.inspection import Inspection, inspect_module
from sween.errors import ContractError
from sween.smoothing import SmoothedClassifier
from tests.engine.test_inspection import BRIGHT, DARK, DayNight, Features
from tests.engine.test_same_operations import small

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
    pytest.mark.filterwarnings(
        "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"
    ),
]


class Attention(nn.Module):
    """Its kernel returns numbers besides tensors, which are of shapes alone."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.tokens, self.head, self.dtype = nn.Conv2d(3, 192, 8, 8), nn.Linear(64, 10), dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", dtype=self.dtype):
            queries, keys, values = self.tokens(x).flatten(2).mT.chunk(3, dim=-1)
            mixed = functional.scaled_dot_product_attention(
                *(own[:, None] for own in (queries, keys, values))
            )
            logits: torch.Tensor = self.head(mixed[:, 0].mean(dim=1))
        return logits.float()


@torch.no_grad()
def test_ordinary_networks_are_copied() -> None:
    images = torch.rand(4, 3, 32, 32, device="cuda")
    networks = (small(), Attention(torch.float16), Attention(torch.bfloat16))
    for network in (own.eval().cuda() for own in networks):
        network(images)
        assert inspect_module(network, images) == Inspection(), type(network).__name__


@pytest.mark.parametrize("how", ["hook", "weak reference", "closure"])
def test_what_a_copy_cannot_see(how: str) -> None:
    module = DayNight(how).eval().cuda()
    smoothed = SmoothedClassifier(module, sigma=0.25, num_classes=2, precision="float32")
    assert [smoothed.certify_one(own, n=200).prediction for own in (DARK, BRIGHT)] == [0, 1]
    with pytest.raises(ContractError, match=r"closure or a weak reference.*float32 precision"):
        SmoothedClassifier(Features().eval().cuda(), sigma=0.25, num_classes=10).certify_one(DARK)
