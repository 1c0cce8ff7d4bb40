"""Data sets of any kind certified into a folder: resumed, checked, recounted."""

import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import sween
from sween.data import as_image_set
from sween.errors import BadInput, CheckFailed, CheckpointError, RunMismatch
from sween.records import Certificate, read_certificates
from sween.runs import CertificationRun, verify_folder
from sween.sampling import CertifySettings
from sween.smoothing import SmoothedClassifier, iter_certificates, pipeline, recount_folder
from tests.smoothing import small
from tests.smoothing.small import ZOO, smoothed

SETTINGS = CertifySettings(n0=20, n=300)
IMAGES, LABELS = small.images(6), torch.arange(6)
DIGITS, LOADED = sween.load_dataset("digits"), SmoothedClassifier.load(ZOO)


def certify(
    out: Path, data: object = (IMAGES, LABELS), classifier: Any = None, **options: Any
) -> CertificationRun:
    return sween.certify_dataset(
        classifier or smoothed(), data, out=out, settings=SETTINGS, quiet=True, **options
    )


def begin(out: Path, classifier: SmoothedClassifier, settings: CertifySettings = SETTINGS) -> None:
    """Certify the first image, then stop."""
    data = (IMAGES, LABELS)
    rows = iter_certificates(classifier, data, out=out, settings=settings, quiet=True)
    next(rows)
    cast(Generator[Certificate, None, None], rows).close()


def start(out: Path, classifier: SmoothedClassifier) -> Iterator[Certificate]:
    return iter_certificates(classifier, (IMAGES, LABELS), out=out, settings=SETTINGS, quiet=True)


def linear(num_classes: int = 10, *more: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), *more, nn.Linear(64, num_classes)).eval()


def counts(rows: Iterable[Certificate]) -> list[tuple[int, tuple[int, ...]]]:
    return [(row.index, row.estimation_counts) for row in rows]


def test_every_form_of_the_same_data_gives_the_same_rows(tmp_path: Path) -> None:
    data = TensorDataset(IMAGES, LABELS)
    pairs = [*zip(IMAGES, LABELS, strict=True)]
    forms = ((IMAGES, LABELS), data, DataLoader(data, batch_size=4), pairs)
    wanted = counts(smoothed().certify(IMAGES, settings=SETTINGS, indices=range(6)))
    for place, form in enumerate(forms):
        assert counts(certify(tmp_path / str(place), form)) == wanted


def test_a_run_has_its_metrics(tmp_path: Path) -> None:
    run = certify(tmp_path)
    assert len(run) == 6
    assert run.average_certified_radius == sum(row.radius_if_correct for row in run) / 6
    correct = sum(row.correct for row in run) / 6
    assert run.certified_accuracy([0.0, 100.0]) == [correct, 0.0]
    assert [row.index for row in CertificationRun.read(tmp_path)] == list(range(6))


def test_certificates_come_one_by_one_and_the_rest_resumes(tmp_path: Path) -> None:
    whole, out = certify(tmp_path / "whole"), tmp_path / "out"
    classifier = smoothed(batch_size=100)  # one image at a time
    coming = start(out, classifier)
    first = [next(coming), next(coming)]
    assert classifier.predict(IMAGES[:1]), "the classifier is free meanwhile"
    assert [row.index for row in first] == [0, 1]
    assert len(read_certificates(out)) == 2, "a row is written before it is yielded"
    coming.close()  # type: ignore[attr-defined]
    with pytest.raises(CheckFailed, match="rows are missing"):
        verify_folder(out)
    with pytest.raises(CheckFailed, match="rows are missing"):
        recount_folder(out, classifier.model, (IMAGES, LABELS), quiet=True)
    assert counts(certify(out)) == counts(whole)
    assert verify_folder(out).images == 6


@pytest.mark.parametrize("indices", [[1, 4], torch.tensor([1, 4]), 4])
def test_some_images_keep_their_indices(indices: Any, tmp_path: Path) -> None:
    every = counts(certify(tmp_path / "all"))
    chosen = torch.as_tensor(indices).reshape(-1).tolist()
    some = certify(tmp_path / "some", indices=indices)
    assert counts(some) == [every[index] for index in chosen]


def test_without_labels_rows_have_none(tmp_path: Path) -> None:
    run = certify(tmp_path, IMAGES)
    assert {row.label for row in run} == {None}
    assert verify_folder(tmp_path).rows == 6


def changed_pixel() -> tuple[torch.Tensor, torch.Tensor]:
    images = IMAGES.clone()
    images[3, 0, 0, 0] = 1 - images[3, 0, 0, 0]
    return images, LABELS


def changed(classifier: SmoothedClassifier) -> SmoothedClassifier:
    with torch.no_grad():
        next(classifier.model.parameters()).mul_(1.3)
    return classifier


ZOO_RUN = {"data": DIGITS, "indices": range(2)}


@pytest.mark.parametrize(
    ("first", "then", "message"),
    [
        ({}, {"data": changed_pixel()}, "data "),
        ({}, {"data": (IMAGES, LABELS.flip(0))}, "labels "),
        ({}, {"indices": [0, 1]}, "images 6 -> 2"),
        ({}, {"classifier": changed(smoothed())}, "fingerprint "),
        (
            ZOO_RUN | {"classifier": LOADED},
            ZOO_RUN | {"classifier": changed(SmoothedClassifier.load(ZOO))},
            "fingerprint ",
        ),
        (
            {"classifier": smoothed(linear(10, nn.ReLU()))},
            {"classifier": smoothed(linear(10, nn.Tanh()))},
            "fingerprint ",
        ),
        (
            {"classifier": smoothed(linear(10, nn.LeakyReLU(0.1)))},
            {"classifier": smoothed(linear(10, nn.LeakyReLU(0.2)))},
            "fingerprint ",
        ),
        (
            {},
            {"classifier": smoothed(sween.WeightedEnsemble(small.members(), [0.3, 0.5, 0.2]))},
            "fingerprint ",
        ),
    ],
    ids=[
        "pixels",
        "labels",
        "images",
        "parameters",
        "parameters of a loaded model",
        "code",
        "settings of a layer",
        "weights",
    ],
)
def test_a_run_resumes_only_with_the_same_model_and_data(
    first: dict[str, Any], then: dict[str, Any], message: str, tmp_path: Path
) -> None:
    before = counts(certify(tmp_path, **first))
    with pytest.raises((CheckpointError, RunMismatch), match=message):
        certify(tmp_path, **then)
    assert counts(CertificationRun.read(tmp_path)) == before
    assert counts(certify(tmp_path, **first)) == before


def off_the_grid() -> tuple[torch.Tensor, torch.Tensor]:
    """The fifth image alone: a certificate for it could be false under exact noise."""
    images = (IMAGES * 255).round() / 255
    images[4] += 0.001
    return images.clamp(0, 1), LABELS


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": DataLoader(TensorDataset(IMAGES, LABELS), shuffle=True)}, "RandomSampler"),
        ({"data": (IMAGES, LABELS + 7)}, "below num_classes = 10"),
        ({"indices": [7]}, "positions below 6"),
        ({"indices": []}, "at least one image"),
        ({"name": "digits"}, "got digits"),
        ({"data": (IMAGES, LABELS + 5), "classifier": LOADED}, "below num_classes"),
        ({"data": DIGITS, "classifier": smoothed(linear(5), num_classes=5)}, "num_classes"),
        ({"data": (IMAGES * 2, LABELS)}, "expected pixels in"),
        ({"data": off_the_grid(), "classifier": smoothed(noise="exact")}, "multiples of 1/255"),
    ],
    ids=["shuffled", "label", "index", "no index", "name", "loaded", "classes", "range", "grid"],
)
def test_bad_data_is_refused_before_anything_is_written(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match=message):
        certify(tmp_path / "out", **change)
    assert not (tmp_path / "out").exists()


def test_a_users_own_model_is_recounted(tmp_path: Path) -> None:
    model = linear()
    certify(tmp_path, classifier=smoothed(model, name="mine"))
    assert recount_folder(tmp_path, model, (IMAGES, LABELS), quiet=True).rows == 6
    with torch.no_grad():
        next(model.parameters()).add_(0.1)
    with pytest.raises(BadInput, match="fingerprint"):
        recount_folder(tmp_path, model, (IMAGES, LABELS), quiet=True)


def test_members_and_exits_are_certified_in_the_same_pass(tmp_path: Path) -> None:
    classifier = smoothed(
        member_names=["a", "b", "c"], other_exits=[sween.ExitPolicy("exact")], name="three"
    )
    run = certify(tmp_path, classifier=classifier)
    assert run.config.voters == ("a", "b", "c", "three+exact", "three")
    assert len(run.rows) == 30
    assert counts(run.of("three+exact")) == counts(run)
    assert verify_folder(tmp_path).rows == 30
    assert recount_folder(tmp_path, small.ensemble(), (IMAGES, LABELS), quiet=True).rows == 30


@pytest.mark.parametrize("change", ["mode", "parameters", "weights", "member"])
def test_a_model_that_changes_between_two_certificates_is_refused(
    change: str, tmp_path: Path
) -> None:
    model = linear(10, nn.Dropout(0.5))
    ensemble = sween.WeightedEnsemble([model, linear()])
    coming = start(tmp_path, smoothed(ensemble, batch_size=100))
    next(coming)
    if change == "mode":
        model.train()
    elif change == "weights":
        ensemble.weights = torch.tensor([0.9, 0.1])
    elif change == "member":
        ensemble.members[1] = linear()
    else:
        with torch.no_grad():
            next(model.parameters()).mul_(1.1)
    with pytest.raises(BadInput, match="changed between two certificates"):
        list(coming)
    assert len(read_certificates(tmp_path)) == 1


def test_a_run_at_another_sigma_and_name_is_recounted(tmp_path: Path) -> None:
    classifier = smoothed(sween.load(ZOO), sigma=0.25, name="mine")
    certify(tmp_path, DIGITS, classifier, indices=range(2))
    assert recount_folder(tmp_path, sween.load(ZOO), DIGITS, quiet=True).rows == 2


def test_smoothed_logits_leave_the_model_as_it_is() -> None:
    torch.manual_seed(0)
    layers = (nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 10))
    model = nn.Sequential(*layers).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    classifier = smoothed(model)
    first = classifier.certify_one(IMAGES[0], n=300, seed=1, indices=0)
    logits = classifier.smoothed_logits(samples=8, seed=0, fresh=False)
    images = IMAGES[:2].clone().requires_grad_()
    together = logits(images)
    together.logsumexp(dim=1).sum().backward()
    assert images.grad is not None
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(before[name], now) for name, now in model.state_dict().items())
    assert model.training
    assert torch.allclose(together[:1], logits(IMAGES[:1]), atol=1e-5), "no batch-mates"
    assert next(logits.parameters()).device == IMAGES.device
    again = classifier.certify_one(IMAGES[0], n=300, seed=1, indices=0)
    assert again.estimation_counts == first.estimation_counts


class Shifted(nn.Module):
    """A network that reads a plain attribute, which no fingerprint of tensors covers."""

    def __init__(self) -> None:
        super().__init__()
        self.network, self.shift = linear(), 0

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.network(images)
        return outputs.roll(self.shift, dims=1)


def _shift(model: Shifted) -> None:
    model.shift = 1


def _hook(model: Shifted) -> None:
    model.register_forward_hook(lambda _module, _inputs, outputs: outputs.roll(1, dims=1))


def _patch(model: Shifted) -> None:
    model.forward = lambda images: model.network(images).roll(1, dims=1)  # type: ignore[method-assign]


@pytest.mark.parametrize("change", [_shift, _hook, _patch])
def test_a_run_does_not_resume_if_a_certified_image_gets_other_votes(
    change: Callable[[Shifted], None], tmp_path: Path
) -> None:
    model = Shifted()
    begin(tmp_path, smoothed(model))
    rows = (tmp_path / "certificates.jsonl").read_bytes()
    change(model)
    with pytest.raises(BadInput, match="votes of model on image 0"):
        certify(tmp_path, classifier=smoothed(model))
    assert (tmp_path / "certificates.jsonl").read_bytes() == rows


@pytest.mark.parametrize("sampling", ["fixed", "decide", "tolerance", "budget"])
def test_every_kind_of_run_resumes_after_its_votes_were_compared(
    sampling: str, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"decide": {"radii": [0.1]}, "tolerance": {"tolerance": 0.5}}
    options["budget"] = {"budget": 9000}
    settings = CertifySettings(n0=20, n=3000, sampling=sampling, **options.get(sampling, {}))
    data = (IMAGES, LABELS)
    begin(tmp_path / "a", smoothed(), settings)
    runs = [
        sween.certify_dataset(smoothed(), data, out=tmp_path / name, settings=settings, quiet=True)
        for name in ("a", "b")
    ]
    assert counts(runs[0]) == counts(runs[1])


def weight_of(model: nn.Sequential) -> torch.Tensor:
    return cast(nn.Linear, model[1]).weight


class Negating(Dataset[tuple[torch.Tensor, int]]):
    """Data whose `at`-th reading changes the model in the middle of a run."""

    def __init__(self, model: nn.Sequential, at: int | None = None) -> None:
        self.weight, self.at, self.reads = weight_of(model), at, 0

    def __len__(self) -> int:
        return len(IMAGES)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        self.reads += 1
        if self.reads == self.at:
            self.weight.data.neg_()
        return IMAGES[index], int(LABELS[index])


def test_changing_the_model_during_a_run_does_not_change_its_votes(tmp_path: Path) -> None:
    data, model = Negating(linear()), linear()
    wanted = counts(certify(tmp_path / "a", data, smoothed(linear())))
    before = weight_of(model).clone()
    found = counts(certify(tmp_path / "b", Negating(model, data.reads), smoothed(model)))
    assert torch.equal(weight_of(model), -before)
    assert found == wanted


class Uncopied(nn.Module):
    """A network that cannot be copied, so that it votes itself."""

    def __init__(self, network: nn.Sequential) -> None:
        super().__init__()
        self.network, self.lock = network, threading.Lock()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.network(images)
        return outputs


def test_a_model_that_cannot_be_copied_must_not_change(tmp_path: Path) -> None:
    data, model = Negating(linear()), linear()
    wanted = counts(certify(tmp_path / "a", data, smoothed(linear())))
    assert counts(certify(tmp_path / "b", classifier=smoothed(Uncopied(linear())))) == wanted
    with pytest.raises(BadInput, match="changed between two certificates"):
        certify(tmp_path / "c", Negating(model, data.reads), smoothed(Uncopied(model)))
    assert not (tmp_path / "c" / "certificates.jsonl").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"smoothed": linear()}, "expected a SmoothedClassifier, got a Sequential"),
        ({"out": None}, "out: expected a path, got None"),
        ({"out": __file__}, "out: expected a folder, got the file"),
        ({"n": 300, "settings": SETTINGS}, "n: expected no separate options"),
    ],
)
def test_bad_arguments_are_one_line(arguments: dict[str, Any], said: str, tmp_path: Path) -> None:
    usual: dict[str, Any] = {"smoothed": smoothed(), "data": (IMAGES, LABELS)}
    usual["out"] = tmp_path / "out"
    with pytest.raises(sween.SweenError, match=said):
        sween.certify_dataset(**usual | arguments, quiet=True)
    assert not (tmp_path / "out").exists()


def test_runs_and_classifiers_print_in_one_short_line(tmp_path: Path) -> None:
    run = certify(tmp_path / "run")
    assert repr(run).endswith("run', model='model', 6 of 6 images)")
    assert "sigma=0.5" in repr(smoothed())
    assert run.certified_accuracy(0.1) == run.certified_accuracy([0.1])


@pytest.mark.parametrize("votes", ["hard", "soft"])
def test_progress_ends_at_the_number_of_votes_that_was_announced(votes: str) -> None:
    settings, counted = CertifySettings(n0=130, n=750, votes=votes), list[int]()
    classifier = smoothed()
    classifier.engine.prepare(IMAGES[0])
    source = as_image_set((IMAGES, LABELS))
    certified = pipeline.certify(
        [classifier.engine], source, range(6), settings, on_progress=counted.append
    )
    assert len(list(certified)) == 6
    assert sum(counted) == 6 * (settings.strategy.votes_per_image(settings) or 0)


@pytest.mark.parametrize("exit_name", ["none", "exact"])
def test_progress_comes_with_every_forward_pass_on_a_cpu(exit_name: str) -> None:
    """A batch of photos takes minutes there."""
    counted = list[int]()
    classifier = SmoothedClassifier(
        sween.load(ZOO),
        sigma=0.5,
        num_classes=10,
        exit=exit_name,
        forward_rows=100,
        batch_size=1000,
    )
    classifier.certify(DIGITS.test.images([0]), n0=100, n=1000, seed=0, on_progress=counted.append)
    assert sum(counted) == 1100
    assert len([copies for copies in counted if copies]) >= 11
    assert max(counted) < 1000


def test_members_of_a_loaded_ensemble_may_have_other_names(tmp_path: Path) -> None:
    names = ["one", "two", "three"]
    classifier = SmoothedClassifier(sween.load(ZOO), sigma=0.5, num_classes=10, member_names=names)
    run = certify(tmp_path, DIGITS.test.images([0]), classifier)
    assert {row.model for row in run.rows} >= set(names)
    assert verify_folder(tmp_path).rows == len(run.rows)
