"""What the weights are solved from: members' probabilities of the true class under noise."""

import numpy as np
import torch

from sween.ensemble.simplex import Matrix
from sween.ensemble.weighted import WeightedEnsemble, member_probabilities
from sween.errors import BadInput
from sween.models.device import device_of
from sween.progress import track
from sween.seeding import noise_blocks, noisy_copies


def true_class(
    ensemble: WeightedEnsemble, member: int, noisy: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    probabilities = member_probabilities(ensemble.members[member], noisy)
    if int(labels.max()) >= probabilities.shape[1] or int(labels.min()) < 0:
        raise BadInput(
            "labels",
            expected=f"classes 0 to {probabilities.shape[1] - 1}, as member {member} has them",
            got=f"{int(labels.min())} to {int(labels.max())}",
            fix="use members of this data set",
        )
    return probabilities.gather(1, labels[:, None])[:, 0].double()


@torch.inference_mode()
def smoothed_probabilities(
    ensemble: WeightedEnsemble,
    images: torch.Tensor,
    labels: torch.Tensor,
    *,
    sigma: float,
    samples: int,
    seed: int,
    quiet: bool = True,
) -> Matrix:
    """(N, K): each member's softmax of the true class averaged over its own noise draws.

    The draws are independent over images, samples and members, as delta_ijk in Definition 2.
    """
    device, members = device_of(ensemble), len(ensemble.members)
    totals = torch.zeros(len(images), members, dtype=torch.float64)
    with track("smooth members", len(images), quiet=quiet) as advance:
        for i, image in enumerate(images.to(device)):
            for k in range(members):
                for block, count in noise_blocks(samples):
                    noisy = noisy_copies(
                        image,
                        sigma=sigma,
                        seed=seed,
                        purpose=f"weights of member {k}",
                        example=i,
                        block=block,
                    )[:count]
                    label = labels[i].expand(count).to(device)
                    totals[i, k] += true_class(ensemble, k, noisy, label).sum().cpu()
            advance(1, "")
    return np.asarray((totals / samples).numpy())


@torch.inference_mode()
def noisy_probabilities(
    ensemble: WeightedEnsemble,
    images: torch.Tensor,
    labels: torch.Tensor,
    *,
    sigma: float,
    draws: int,
    seed: int,
) -> Matrix:
    """(N * draws, K): every member's softmax of the true class at the same single noisy inputs."""
    device = device_of(ensemble)
    rows = []
    for i, image in enumerate(images.to(device)):
        for block, count in noise_blocks(draws):
            noisy = noisy_copies(
                image,
                sigma=sigma,
                seed=seed,
                purpose="weights, loss of sgd",
                example=i,
                block=block,
            )[:count]
            label = labels[i].expand(count).to(device)
            columns = [true_class(ensemble, k, noisy, label) for k in range(len(ensemble.members))]
            rows.append(torch.stack(columns, dim=1).cpu())
    return np.asarray(torch.cat(rows).numpy())
