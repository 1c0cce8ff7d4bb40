"""What the page is told about a run, and the checks at its door."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from sween.attack import AttackOutcome
from sween.errors import BadInput, UnknownName
from sween.report.measured import MeasuredRun


@dataclasses.dataclass(frozen=True, kw_only=True)
class PageRun:
    """A measured run with what the page shows beside its numbers.

    Attributes:
        run: the certificates and the table's rows.
        images: test images by index, uint8 (C, H, W) with C 1 or 3. Where there are none, or an
            index is missing, the gallery has a tile that says so.
        white: the pixel value of white: 255 for photos, 16 for the digits.
        class_names: of all classes, in their order.
        attacks: outcomes of attacks on models of this run.
        config: the run's config.toml.
        attackers: by a title, how and where each attack was made.
    """

    run: MeasuredRun
    images: Mapping[int, torch.Tensor] | None
    white: int = 255
    class_names: Sequence[str]
    attacks: Sequence[AttackOutcome] = ()
    config: Mapping[str, Any]
    attackers: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        where = self.run.name
        classes = self._classes_used()
        if len(self.class_names) < classes:
            raise BadInput(
                f"class_names of {where}",
                expected=f"a name for each of {classes} classes",
                got=len(self.class_names),
                fix="pass the names of the data set that was certified",
            )
        if not 1 <= self.white <= 255:
            raise BadInput(
                f"white of {where}", expected="1 to 255", got=self.white, fix="try 255, or 16"
            )
        for index in self.run.indices:
            image = None if self.images is None else self.images.get(index)
            if image is not None:
                self._check_image(index, image)
        self._check_attacks()

    def _classes_used(self) -> int:
        rows = [row for rows in self.run.models.values() for row in rows]
        named = [row.label or 0 for row in rows] + [row.prediction for row in rows]
        return max(max(named) + 1, *(len(row.estimation_counts) for row in rows))

    def _check_image(self, index: int, image: torch.Tensor) -> None:
        shape = tuple(image.shape)
        fits = image.dtype == torch.uint8 and len(shape) == 3 and shape[0] in (1, 3)
        if not fits or 0 in shape or int(image.max()) > self.white:
            raise BadInput(
                f"image {index} of {self.run.name}",
                expected=f"uint8 (1 or 3, H, W), at most {self.white}",
                got=f"{image.dtype} {shape}" if not fits or 0 in shape else int(image.max()),
                fix="pass the stored pixels of the test split, and its white",
            )

    def _check_attacks(self) -> None:
        """Another data set's or another noise level's attacks would pass for this run's."""
        labels = {row.index: row.label for row in next(iter(self.run.models.values()))}
        seen = set()
        for outcome in self.attacks:
            if outcome.model not in self.run.models:
                raise UnknownName("attacked model", outcome.model, self.run.models)
            key = (outcome.model, outcome.attack, outcome.eps, outcome.index)
            for name, expected, got in (
                ("sigma", self.run.sample.sigma, outcome.sigma),
                ("label", labels.get(outcome.index, outcome.label), outcome.label),
                ("rows", 1, 1 + (key in seen)),
            ):
                if expected != got:
                    raise BadInput(
                        f"{name} of the {outcome.attack} attack on image {outcome.index} in "
                        f"{self.run.name}",
                        expected=f"{expected} at eps {outcome.eps:g}",
                        got=got,
                        fix="pass the attacks on this run's ensemble, each once",
                    )
            seen.add(key)
