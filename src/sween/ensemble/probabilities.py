"""Members' probabilities of the true class under noise, from which the weights are solved."""

import dataclasses
from collections.abc import Iterator

import numpy as np
import torch

from sween.data.dataset import ImageSet
from sween.ensemble.radius_weights import margins_of
from sween.ensemble.simplex import Matrix
from sween.ensemble.weighted import WeightedEnsemble, member_probabilities
from sween.errors import BadInput
from sween.models.device import device_of
from sween.progress import track
from sween.seeding import (
    NOISE_BLOCK,
    derive_key,
    noise_blocks,
    noisy_copies,
    numpy_generator,
    standard_normal,
)

CPU_BLOCKS, GPU_BLOCKS = 1, 40
"""Noise blocks per forward pass: small passes would leave a GPU idle."""


def pick(
    images: torch.Tensor | ImageSet, positions: torch.Tensor, device: torch.device
) -> torch.Tensor:
    """The images at some positions, on a device; no others of an `ImageSet` are read."""
    if isinstance(images, ImageSet):
        return images.images(positions.tolist()).to(device)
    return images[positions.to(images.device)].to(device)


def true_class(
    ensemble: WeightedEnsemble, member: int, noisy: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    probabilities = member_probabilities(ensemble.members[member], noisy)
    check_labels(labels, probabilities.shape[1], member=member)
    return probabilities.gather(1, labels[:, None])[:, 0].double()


def check_labels(labels: torch.Tensor, num_classes: int, *, member: int) -> None:
    """Refuse labels of classes that a member does not know."""
    if int(labels.max()) >= num_classes or int(labels.min()) < 0:
        raise BadInput(
            "labels",
            expected=f"classes 0 to {num_classes - 1}, those of member {member}",
            got=f"{int(labels.min())} to {int(labels.max())}",
            fix="use members trained on this data set",
        )


@torch.inference_mode()
def smoothed_probabilities(
    ensemble: WeightedEnsemble,
    images: torch.Tensor | ImageSet,
    labels: torch.Tensor,
    *,
    sigma: float,
    samples: int,
    seed: int,
    quiet: bool = True,
) -> Matrix:
    """(N, K): each member's softmax of the true class, averaged over noise draws.

    The draws are independent across images, samples and members, as delta_ijk in Definition 2.
    """
    members = len(ensemble.members)
    totals = torch.zeros(len(images), members, dtype=torch.float64)
    with track("smooth members", len(images) * members * samples, quiet=quiet) as advance:
        for k in range(members):
            purpose = f"weights of member {k}"
            for rows in _noisy_rows(ensemble, images, labels, sigma, samples, seed, purpose):
                column = true_class(ensemble, k, rows.noisy, rows.labels).cpu()
                totals[:, k].index_add_(0, rows.images, column)
                advance(len(column), "")
    return np.asarray((totals / samples).numpy())


@torch.inference_mode()
def noisy_probabilities(
    ensemble: WeightedEnsemble,
    images: torch.Tensor | ImageSet,
    labels: torch.Tensor,
    *,
    sigma: float,
    draws: int,
    seed: int,
) -> Matrix:
    """(N * draws, K): every member's softmax of the true class on the same noisy inputs."""
    parts = []
    for rows in _noisy_rows(ensemble, images, labels, sigma, draws, seed, "weights, loss of sgd"):
        columns = [
            true_class(ensemble, k, rows.noisy, rows.labels) for k in range(len(ensemble.members))
        ]
        parts.append(torch.stack(columns, dim=1).cpu())
    return np.asarray(torch.cat(parts).numpy())


@torch.inference_mode()
def noisy_batches(
    ensemble: WeightedEnsemble,
    images: torch.Tensor | ImageSet,
    labels: torch.Tensor,
    *,
    sigma: float,
    seed: int,
    epochs: int,
    batch_size: int,
) -> Iterator[torch.Tensor]:
    """(B, K), batch after batch: as `noisy_probabilities`, with one new noisy copy an epoch.

    On a GPU the members see many batches at once.
    """
    device, labels = device_of(ensemble), labels.cpu()
    steps = [
        (epoch, block, picks)
        for epoch in range(epochs)
        for block, picks in enumerate(torch.split(_order(len(images), seed, epoch), batch_size))
    ]
    together = max(1, _blocks(device) * NOISE_BLOCK // batch_size)
    for start in range(0, len(steps), together):
        noisy, truths = [], []
        for epoch, block, picks in steps[start : start + together]:
            own = pick(images, picks, device)
            noise = standard_normal(
                tuple(own.shape),
                seed=seed,
                purpose="weights, sgd",
                example=epoch,
                block=block,
                device=device,
            )
            noisy.append(own + sigma * noise)
            truths.append(labels[picks])
        copies, truth = torch.cat(noisy), torch.cat(truths).to(device)
        columns = [true_class(ensemble, k, copies, truth) for k in range(len(ensemble.members))]
        yield from torch.split(torch.stack(columns, dim=1).cpu(), [len(own) for own in truths])


def _blocks(device: torch.device) -> int:
    return CPU_BLOCKS if device.type == "cpu" else GPU_BLOCKS


def _order(count: int, seed: int, epoch: int) -> torch.Tensor:
    shuffle = numpy_generator(seed, "weights, order of sgd", block=epoch)
    return torch.from_numpy(shuffle.permutation(count))


@torch.inference_mode()
def noisy_margins(
    ensemble: WeightedEnsemble,
    images: torch.Tensor | ImageSet,
    labels: torch.Tensor,
    *,
    sigma: float,
    draws: int,
    seed: int,
    quiet: bool = True,
) -> tuple[torch.Tensor, Matrix]:
    """`margins_of` all members on the same noisy inputs, and their softmax of the true class.

    Returns:
        (N * draws, K, M) float32 on the members' device, and (N * draws, K).
    """
    margins, columns = [], []
    with track("votes of members", len(images) * draws, quiet=quiet) as advance:
        for rows in _noisy_rows(ensemble, images, labels, sigma, draws, seed, "weights, acr"):
            each = []
            for k, member in enumerate(ensemble.members):
                each.append(member_probabilities(member, rows.noisy))
                check_labels(rows.labels, each[-1].shape[1], member=k)
            probabilities = torch.stack(each, dim=1)
            margins.append(margins_of(probabilities, rows.labels))
            own = rows.labels.view(-1, 1, 1).expand(-1, len(each), 1)
            columns.append(probabilities.gather(2, own)[:, :, 0].double().cpu())
            advance(len(rows.labels), "")
    return torch.cat(margins), np.asarray(torch.cat(columns).numpy())


@dataclasses.dataclass(frozen=True)
class _Rows:
    """Noisy copies and their labels on the members' device, and the image each belongs to."""

    noisy: torch.Tensor
    labels: torch.Tensor
    images: torch.Tensor


def _noisy_rows(
    ensemble: WeightedEnsemble,
    images: torch.Tensor | ImageSet,
    labels: torch.Tensor,
    sigma: float,
    samples: int,
    seed: int,
    purpose: str,
) -> Iterator[_Rows]:
    """`samples` noisy copies of every image, several blocks at a time on a GPU."""
    device = device_of(ensemble)
    labels = labels.cpu()
    jobs = [(i, block, used) for i in range(len(images)) for block, used in noise_blocks(samples)]
    together = _blocks(device)
    for start in range(0, len(jobs), together):
        part = jobs[start : start + together]
        positions = torch.tensor([i for i, _, _ in part])
        keys = [derive_key(seed, purpose, i, block) for i, block, _ in part]
        limits = torch.tensor([used for _, _, used in part])
        used = (torch.arange(NOISE_BLOCK) < limits[:, None]).flatten()
        owners = positions.repeat_interleave(NOISE_BLOCK)[used]
        noisy = noisy_copies(pick(images, positions, device), keys, sigma=sigma)
        yield _Rows(noisy[used.to(device)], labels[owners].to(device), owners)
