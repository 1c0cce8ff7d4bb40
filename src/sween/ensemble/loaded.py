"""A weighted ensemble with the metadata of its checkpoints: data set, classes, noise level."""

import hashlib
from collections.abc import Iterable, Sequence

import torch
from torch import nn

from sween.data import DATASETS
from sween.ensemble.weighted import WeightedEnsemble
from sween.errors import UnknownName
from sween.models import Manifest


class LoadedEnsemble(WeightedEnsemble):
    """An ensemble of trained checkpoints that knows the data set and noise level of its members.

    A single run loads as an ensemble of one, so that all later code handles one type.

    Attributes:
        manifests: of the members' checkpoints.
        member_names: for records and tables.

    Example:
        >>> import sween
        >>> loaded = sween.load("digits-sween3-gaussian-sigma0.50")
        >>> loaded.name, loaded.sigma, loaded.member_names
        ('SWEEN-3', 0.5, ('digits-mlp', 'digits-conv', 'digits-resnet'))
        >>> loaded.alone("digits-mlp").name
        'digits-mlp'
    """

    def __init__(
        self,
        members: Iterable[nn.Module],
        manifests: Sequence[Manifest],
        member_names: Sequence[str],
        weights: Sequence[float] | torch.Tensor | None = None,
    ) -> None:
        super().__init__(members, weights)
        self.manifests = tuple(manifests)
        self.member_names = tuple(member_names)
        self._as_loaded = self._digest()

    def alone(self, name: str) -> "LoadedEnsemble":
        """One member as an ensemble of one."""
        if name not in self.member_names:
            raise UnknownName("member", name, self.member_names)
        place = self.member_names.index(name)
        member, manifest = self.members[place], self.manifests[place]
        return LoadedEnsemble([member], [manifest], [name]).train(self.training)

    @property
    def sigma(self) -> float:
        """The noise level of the members' training, which is also used to certify."""
        return self.manifests[0].sigma

    @property
    def dataset(self) -> str:
        return self.manifests[0].dataset

    @property
    def white(self) -> int:
        """The pixel value that maps to 1.0, which defines the grid for exact noise."""
        entry = DATASETS.get(self.dataset)
        return 255 if entry is None else entry.white

    @property
    def num_classes(self) -> int:
        return self.manifests[0].num_classes

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.manifests[0].class_names

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return self.manifests[0].image_shape

    @property
    def name(self) -> str:
        """The paper's name: SWEEN-K, or the member's own name for an ensemble of one."""
        count = len(self.member_names)
        return f"SWEEN-{count}" if count > 1 else self.member_names[0]

    def _digest(self) -> str:
        """Of the members' parameters and buffers as they are now."""
        hasher = hashlib.blake2b(digest_size=16)
        for tensor in (*self.members.parameters(), *self.members.buffers()):
            content = tensor.detach().cpu().contiguous().flatten()
            hasher.update(content.view(torch.uint8).numpy().data if content.numel() else b"")
        return hasher.hexdigest()

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the members' fingerprints and the exact weights.

        Members that were changed since they were loaded are no longer those of the checkpoints.
        """
        parts = [
            f"{manifest.fingerprint}:{weight!r}"
            for manifest, weight in zip(self.manifests, self.weights.tolist(), strict=True)
        ]
        if (now := self._digest()) != self._as_loaded:
            parts.append(f"changed:{now}")
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()
