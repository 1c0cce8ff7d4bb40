"""Models that break the contract of a member: one line with what was found and the fix."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from sween.ensemble import WeightedEnsemble
from sween.errors import ContractError
from sween.records import Certificate
from sween.sampling import CertifySettings
from sween.smoothing import SmoothedClassifier
from tests.smoothing import small


def linear() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def wrapped(pack: Callable[[torch.Tensor], Any]) -> small.Computed:
    """Returns something other than logits."""
    body = linear()
    return small.Computed(lambda images: pack(body(images)))


def broken(_: torch.Tensor) -> torch.Tensor:
    raise KeyError("no such layer")


def function(images: torch.Tensor) -> torch.Tensor:
    return images.flatten(1)[:, :10]


@pytest.mark.parametrize(
    ("model", "parts"),
    [
        (wrapped(lambda y: (y, y)), ("a tuple", "returns its logits")),
        (wrapped(lambda y: {"logits": y}), ("a dict", "returns its logits")),
        (wrapped(lambda y: y[:, :7]), ("(", "7)", "num_classes=7")),
        (wrapped(lambda y: y.sum()), ("()", "one row of logits")),
        (linear().double(), ("float64", "model.float()")),
        (linear().half(), ("float16", "model.float()")),
        (nn.Linear(3, 10), ("RuntimeError", "(N, 1, 8, 8)")),
        (small.Computed(broken), ("KeyError", "no such layer")),
        (function, ("a function", "module")),
        (linear().forward, ("a method", "torch.nn.Module")),
        (None, ("got None",)),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("verb", ["predict", "certify"])
def test_a_model_that_breaks_the_contract_is_refused_in_one_line(
    model: Any, parts: tuple[str, ...], verb: str
) -> None:
    with pytest.raises(ContractError) as caught:
        getattr(SmoothedClassifier(model, sigma=0.5, num_classes=10), verb)(small.images(1), n=200)
    message = str(caught.value)
    assert "\n" not in message
    assert all(part in message for part in parts), message


def test_a_model_that_casts_its_input_may_have_parameters_of_any_type() -> None:
    body = linear().double()
    casting = small.Computed(lambda images: body(images.double()).float())
    casting.body = body
    assert small.smoothed(casting).certify(small.images(1), n=200)


def test_an_image_of_another_size_is_refused_in_one_line() -> None:
    """Also by a model that has already predicted."""
    classifier = small.smoothed(linear())
    assert classifier.predict(small.images(1), n=100)
    for verb in (classifier.predict, classifier.certify):
        with pytest.raises(ContractError, match=r"\(N, 3, 8, 8\), got RuntimeError"):
            verb(torch.rand(1, 3, 8, 8), n=100)


class InPlace(nn.Module):
    """A network behind a layer that works on the images themselves, or on a copy."""

    def __init__(self, network: nn.Module, layer: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.network, self.layer = network, layer

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.network(self.layer(images))  # type: ignore[no-any-return]


LAYERS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], ...]] = {
    "clamp": (lambda x: x.clamp_(0, 1), lambda x: x.clamp(0, 1)),
    "normalise": (lambda x: x.sub_(0.5).div_(0.3), lambda x: (x - 0.5) / 0.3),
}


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("batch_size", [None, 100])
@pytest.mark.parametrize("several", [True, False])
def test_a_layer_that_works_in_place_changes_no_other_vote(
    layer: str, batch_size: int | None, several: bool
) -> None:
    """Of other members, other images of the batch, or passes that are padded."""
    found = []
    for own in LAYERS[layer]:
        first, second, _ = small.members()
        model: nn.Module = InPlace(second, own)
        options: dict[str, Any] = {"batch_size": batch_size}
        if several:
            model = WeightedEnsemble([model, first])
            options["member_names"] = ["in place", "other"]
        settings = CertifySettings(n=1_130, seed=1)
        smoothed, images = small.smoothed(model, **options), small.images(2)
        together = [*smoothed.certify_voters(images, settings=settings, indices=[0, 1])]
        alone = [
            one
            for k in range(2)
            for one in smoothed.certify_voters(images[k : k + 1], settings=settings, indices=[k])
        ]
        assert _counts(together) == _counts(alone)
        found.append(_counts(together))
    assert found[0] == found[1]


def _counts(rows: list[dict[str, Certificate]]) -> list[dict[str, tuple[int, ...]]]:
    return [{name: row.estimation_counts for name, row in own.items()} for own in rows]


def test_an_ensemble_leaves_its_input_as_it_is() -> None:
    images = small.images(2) + 0.5
    before = images.clone()
    WeightedEnsemble([InPlace(one, LAYERS["clamp"][0]) for one in small.members()])(images)
    assert torch.equal(images, before)


def test_what_torch_export_made_is_refused_in_one_line() -> None:
    exported = torch.export.export(small.members()[0].eval(), (small.images(),)).module()
    with pytest.raises(ContractError, match="evaluation mode") as caught:
        small.smoothed(exported).certify_one(small.images(1)[0], n=200)
    assert len(str(caught.value).splitlines()) == 1


def test_networks_are_float32_whatever_torch_s_default_is() -> None:
    (image,) = small.images(1)
    torch.set_default_dtype(torch.float64)
    try:
        smoothed = SmoothedClassifier.load(small.ZOO)
        answer = smoothed.certify_one(image, n=200, seed=1, indices=[0])
    finally:
        torch.set_default_dtype(torch.float32)
    again = SmoothedClassifier.load(small.ZOO)
    assert small.counts([answer]) == small.counts(
        [again.certify_one(image, n=200, seed=1, indices=[0])]
    )
