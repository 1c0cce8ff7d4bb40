"""Data sets of any kind, certified into a folder: resumed, checked, counted again."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import sween
from sween.errors import BadInput, CheckFailed, CheckpointError, RunMismatch
from sween.records import read_certificates
from sween.runs import CertificationRun, verify_folder
from sween.sampling import CertifySettings
from sween.smoothing import SmoothedClassifier, iter_certificates, recount_folder
from tests.smoothing import small

SETTINGS = CertifySettings(n0=20, n=300)
ZOO = "digits-sween3-gaussian-sigma0.50"
IMAGES, LABELS = small.images(6), torch.tensor([0, 1, 2, 3, 4, 5])


def smoothed(model: nn.Module | None = None, **options: Any) -> SmoothedClassifier:
    return SmoothedClassifier(model or small.ensemble(), sigma=0.5, num_classes=10, **options)


def certify(out: Path, data: object, **options: Any) -> CertificationRun:
    classifier = options.pop("classifier", None) or smoothed()
    return sween.certify_dataset(
        classifier, data, out=out, settings=SETTINGS, quiet=True, **options
    )


def counts(run: CertificationRun) -> list[tuple[int, tuple[int, ...]]]:
    return [(row.index, row.estimation_counts) for row in run]


def test_every_form_of_the_same_data_gives_the_same_rows(tmp_path: Path) -> None:
    data = TensorDataset(IMAGES, LABELS)
    forms = (
        (IMAGES, LABELS),
        data,
        DataLoader(data, batch_size=4),
        [*zip(IMAGES, LABELS, strict=True)],
    )
    runs = [certify(tmp_path / str(place), form) for place, form in enumerate(forms)]
    assert all(counts(run) == counts(runs[0]) for run in runs)
    batch = smoothed().certify(IMAGES, settings=SETTINGS, indices=range(6))
    assert counts(runs[0]) == [(row.index, row.estimation_counts) for row in batch]


def test_a_run_has_its_metrics(tmp_path: Path) -> None:
    run = certify(tmp_path, (IMAGES, LABELS))
    assert len(run) == 6
    assert run.average_certified_radius == sum(row.radius_if_correct for row in run) / 6
    correct = sum(row.correct for row in run) / 6
    assert run.certified_accuracy([0.0, 100.0]) == [correct, 0.0]
    assert [row.index for row in CertificationRun.read(tmp_path)] == list(range(6))


def test_certificates_come_one_by_one_and_the_rest_resumes(tmp_path: Path) -> None:
    whole = certify(tmp_path / "whole", (IMAGES, LABELS))
    classifier = smoothed(batch_size=100)  # one image at a time
    coming = iter_certificates(
        classifier, (IMAGES, LABELS), out=tmp_path / "out", settings=SETTINGS, quiet=True
    )
    first = [next(coming), next(coming)]
    assert classifier.predict(IMAGES[:1]), "the classifier is free meanwhile"
    assert [row.index for row in first] == [0, 1]
    assert len(read_certificates(tmp_path / "out")) == 2, "a row is written before it is given"
    coming.close()  # type: ignore[attr-defined]
    with pytest.raises(CheckFailed, match="rows are missing"):
        verify_folder(tmp_path / "out")
    assert counts(certify(tmp_path / "out", (IMAGES, LABELS))) == counts(whole)
    assert verify_folder(tmp_path / "out").images == 6


def test_some_images_keep_their_indices(tmp_path: Path) -> None:
    every = certify(tmp_path / "all", (IMAGES, LABELS))
    some = certify(tmp_path / "some", (IMAGES, LABELS), indices=[1, 4])
    assert counts(some) == [counts(every)[1], counts(every)[4]]


def test_without_labels_rows_have_none(tmp_path: Path) -> None:
    run = certify(tmp_path, IMAGES)
    assert {row.label for row in run} == {None}
    assert verify_folder(tmp_path).rows == 6


def five_classes() -> SmoothedClassifier:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 5))
    return SmoothedClassifier(model, sigma=0.5, num_classes=5)


def changed_pixel() -> tuple[torch.Tensor, torch.Tensor]:
    images = IMAGES.clone()
    images[3, 0, 0, 0] = 1 - images[3, 0, 0, 0]
    return images, LABELS


def changed_weights() -> SmoothedClassifier:
    ensemble = small.ensemble()
    with torch.no_grad():
        next(ensemble.parameters()).add_(0.01)
    return smoothed(ensemble)


@pytest.mark.parametrize(
    ("data", "options", "said"),
    [
        (changed_pixel(), {}, "data "),
        ((IMAGES, LABELS.flip(0)), {}, "labels "),
        ((IMAGES, LABELS), {"classifier": changed_weights()}, "fingerprint "),
        ((IMAGES, LABELS), {"indices": [0, 1]}, "images 6 -> 2"),
    ],
    ids=["pixels", "labels", "model", "images"],
)
def test_what_changed_is_not_resumed(
    data: object, options: dict[str, Any], said: str, tmp_path: Path
) -> None:
    before = counts(certify(tmp_path, (IMAGES, LABELS)))
    with pytest.raises((CheckpointError, RunMismatch), match=said):
        certify(tmp_path, data, **options)
    assert counts(CertificationRun.read(tmp_path)) == before


@pytest.mark.parametrize(
    ("data", "options", "said"),
    [
        (DataLoader(TensorDataset(IMAGES, LABELS), shuffle=True), {}, "RandomSampler"),
        ((IMAGES, LABELS + 7), {}, "below num_classes = 10"),
        ((IMAGES, LABELS), {"indices": [7]}, "positions below 6"),
        ((IMAGES, LABELS), {"indices": []}, "at least one image"),
        ((IMAGES, LABELS), {"name": "digits"}, "got digits"),
        ((IMAGES, LABELS + 5), {"classifier": SmoothedClassifier.load(ZOO)}, "below num_classes"),
        (sween.load_dataset("digits"), {"classifier": five_classes()}, "num_classes"),
        ((IMAGES * 2, LABELS), {}, "expected pixels in"),
    ],
    ids=["shuffled", "label", "index", "no index", "name", "loaded", "classes", "range"],
)
def test_bad_data_is_refused_before_anything_is_written(
    data: object, options: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match=said):
        certify(tmp_path / "out", data, **options)
    assert not (tmp_path / "out").exists()


def test_a_model_of_ones_own_is_recounted(tmp_path: Path) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(64, 10)
    model = nn.Sequential(nn.Flatten(), layer)
    certify(tmp_path, (IMAGES, LABELS), classifier=smoothed(model, name="mine"))
    assert recount_folder(tmp_path, model, (IMAGES, LABELS), quiet=True).rows == 6
    with torch.no_grad():
        layer.weight.add_(0.1)
    with pytest.raises(BadInput, match="fingerprint"):
        recount_folder(tmp_path, model, (IMAGES, LABELS), quiet=True)


def test_members_and_exits_are_certified_in_the_same_pass(tmp_path: Path) -> None:
    classifier = smoothed(
        member_names=["a", "b", "c"], other_exits=[sween.ExitPolicy("exact")], name="three"
    )
    run = certify(tmp_path, (IMAGES, LABELS), classifier=classifier)
    assert run.config.voters == ("a", "b", "c", "three+exact", "three")
    assert len(run.rows) == 30
    assert [row.estimation_counts for row in run.of("three+exact")] == [
        row.estimation_counts for row in run
    ]
    assert verify_folder(tmp_path).rows == 30
    assert recount_folder(tmp_path, small.ensemble(), (IMAGES, LABELS), quiet=True).rows == 30


def test_exact_noise_refuses_every_image_off_its_grid(tmp_path: Path) -> None:
    """Not the first alone: a certificate for an image off the grid could be false."""
    images = (IMAGES * 255).round() / 255
    images[4] += 0.001
    with pytest.raises(BadInput, match="multiples of 1/255"):
        certify(tmp_path / "out", (images.clamp(0, 1), LABELS), classifier=smoothed(noise="exact"))
    assert not (tmp_path / "out").exists()
    assert len(certify(tmp_path / "whole", (images[:4], LABELS[:4]))) == 4


def test_indices_may_be_a_tensor_or_a_number(tmp_path: Path) -> None:
    three = certify(tmp_path / "three", (IMAGES, LABELS), indices=torch.tensor([0, 2, 3]))
    assert [row.index for row in three] == [0, 2, 3]
    assert [row.index for row in certify(tmp_path / "one", (IMAGES, LABELS), indices=3)] == [3]


@pytest.mark.parametrize("change", ["mode", "parameters", "weights", "member"])
def test_a_model_that_changes_between_two_certificates_is_refused(
    change: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(64, 10)
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), layer).eval()
    other = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).eval()
    ensemble = sween.WeightedEnsemble([model, other])
    coming = iter_certificates(
        smoothed(ensemble, batch_size=100),
        (IMAGES, LABELS),
        out=tmp_path,
        settings=SETTINGS,
        quiet=True,
    )
    next(coming)
    if change == "mode":
        model.train()
    elif change == "weights":
        ensemble.weights = torch.tensor([0.9, 0.1])
    elif change == "member":
        ensemble.members[1] = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).eval()
    else:
        with torch.no_grad():
            layer.weight.mul_(1.1)
    with pytest.raises(BadInput, match="changed between two certificates"):
        list(coming)
    assert len(read_certificates(tmp_path)) == 1


def test_networks_that_differ_in_code_alone_do_not_share_a_folder(tmp_path: Path) -> None:
    def network(activation: nn.Module) -> SmoothedClassifier:
        torch.manual_seed(0)
        layers = (nn.Flatten(), nn.Linear(64, 16), activation, nn.Linear(16, 10))
        return smoothed(nn.Sequential(*layers))

    certify(tmp_path, (IMAGES, LABELS), classifier=network(nn.ReLU()))
    with pytest.raises(CheckpointError, match="fingerprint"):
        certify(tmp_path, (IMAGES, LABELS), classifier=network(nn.Tanh()))


def test_a_loaded_ensemble_that_was_changed_is_no_longer_the_zoos(tmp_path: Path) -> None:
    digits, classifier = sween.load_dataset("digits"), SmoothedClassifier.load(ZOO)
    certify(tmp_path, digits, classifier=classifier, indices=range(2))
    assert certify(tmp_path, digits, classifier=SmoothedClassifier.load(ZOO), indices=range(2))
    with torch.no_grad():
        next(classifier.model.parameters()).mul_(1.3)
    with pytest.raises(CheckpointError, match="fingerprint"):
        certify(tmp_path, digits, classifier=classifier, indices=range(2))


def test_a_run_at_another_sigma_and_name_is_recounted(tmp_path: Path) -> None:
    loaded, digits = sween.load(ZOO), sween.load_dataset("digits")
    classifier = SmoothedClassifier(loaded, sigma=0.25, num_classes=10, name="mine")
    certify(tmp_path, digits, classifier=classifier, indices=range(2))
    assert recount_folder(tmp_path, sween.load(ZOO), digits, quiet=True).rows == 2


def test_smoothed_logits_leave_the_model_as_it_is() -> None:
    torch.manual_seed(0)
    layers = (nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 10))
    model = nn.Sequential(*layers).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    classifier = smoothed(model)
    counts_before = classifier.certify_one(IMAGES[0], n=300, seed=1, indices=0).estimation_counts
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
    again = classifier.certify_one(IMAGES[0], n=300, seed=1, indices=0).estimation_counts
    assert again == counts_before
