"""The smoothed classifier: predict, with abstention, and certify."""

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import nn

from sween.data.validation import as_batch, check_images, check_indices, check_labels
from sween.ensemble.early_exit import ExitPolicy
from sween.ensemble.forward import FixedShapeForward, default_forward_rows
from sween.ensemble.panel import arithmetic_of, build_panel, check_panel
from sween.ensemble.prepare import Preparation
from sween.errors import BadInput
from sween.models.device import device_of, evaluating
from sween.records import Certificate
from sween.smoothing.decision import decide, decide_prediction
from sween.smoothing.noise import GaussianNoise
from sween.smoothing.radius import check_sigma
from sween.smoothing.settings import CertifySettings, Prediction, check_predict_settings
from sween.smoothing.votes import ImageVotes, VoteEngine


class SmoothedClassifier:
    """g(x) = the most likely class of model(x + N(0, sigma^2 I)).

    The model is used with the parameters it has at the time of the call, in evaluation mode, and
    left in the mode it was in. What answers is its prepared form (see `Preparation`): batch norm
    folded, in the arithmetic that the record names. Everything claimed assumes that it is a
    deterministic function of each input on its own (probed at every call), that pseudo-random
    float32 normals stand for Gaussian noise, and that the image was chosen without knowledge of
    that noise. The noise is a function of seed and index: where images come from strangers, keep
    the seed secret.

    Args:
        model: any module from [0,1] images (N, C, H, W) to logits or probabilities (N, M), for
            example a `WeightedEnsemble`.
        sigma: noise level in units of [0,1] pixels.
        num_classes: M.
        exit: early exit of an ensemble: none, paper or exact, or an `ExitPolicy`.
        name: of the model, for records.
        batch_size: noisy inputs held at once; never changes a result. One forward pass on a GPU,
            1,000 on a CPU by default.
        forward_rows: rows of one forward pass; the same for every result that is compared.
        member_names: names of the ensemble's members, whose votes `certify_panel` then counts too.
        weightings: other weights of the same members by name, counted by `certify_panel` too.
        precision: float32, float16 or bfloat16; auto is float16 on a GPU and float32 on a CPU.
        compile: whether to compile the model; on a GPU by default.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        sigma: float,
        num_classes: int,
        exit: str | ExitPolicy = "none",
        name: str = "model",
        batch_size: int | None = None,
        forward_rows: int | None = None,
        member_names: Sequence[str] | None = None,
        weightings: Mapping[str, Sequence[float]] | None = None,
        precision: str = "auto",
        compile: bool | None = None,
    ) -> None:
        check_sigma(sigma)
        if num_classes < 2:
            raise BadInput("num_classes", expected="at least 2", got=num_classes, fix="pass M")
        self.model = model
        self.sigma = float(sigma)
        self.num_classes = num_classes
        self.device = device_of(model)
        rows = default_forward_rows(self.device) if forward_rows is None else forward_rows
        self.batch_size = max(1000, rows) if batch_size is None else batch_size
        self.preparation = Preparation(precision, compile)
        self.panel = build_panel(
            model,
            name=name,
            forward=FixedShapeForward(rows, num_classes),
            policy=exit if isinstance(exit, ExitPolicy) else ExitPolicy(exit),
            preparation=self.preparation,
            member_names=member_names,
            weightings=weightings,
        )

    @property
    def precision(self) -> str:
        """The arithmetic that answers, for records; known after the first `probe`."""
        return arithmetic_of(self.panel)

    def predict(
        self,
        images: torch.Tensor,
        *,
        n: int = 100,
        alpha: float = 0.001,
        seed: int = 0,
        indices: Sequence[int] | int | None = None,
    ) -> Prediction | list[Prediction]:
        """The smoothed classifier's answer, or an abstention.

        Each answer that is not an abstention differs from g's with probability at most alpha over
        the noise (see `decide_prediction`).

        Args:
            images: one image (C, H, W), giving one result, or a batch, giving a list.
            n: votes an image.
            alpha: failure probability.
            seed: of the noise.
            indices: keys of the images' noise; their positions by default.
        """
        batch = as_batch(images)
        results = self.predict_batch(batch, n=n, alpha=alpha, seed=seed, indices=indices)
        return results[0] if images.ndim == 3 else results

    def predict_batch(
        self,
        images: torch.Tensor,
        *,
        n: int = 100,
        alpha: float = 0.001,
        seed: int = 0,
        indices: Sequence[int] | int | None = None,
    ) -> list[Prediction]:
        """`predict` for a batch (N, C, H, W), always a list."""
        check_predict_settings(n=n, alpha=alpha, sigma=self.sigma)
        batch, keys = self._prepare(images, indices)
        self.probe(batch[0])
        with evaluating(self.model):
            votes = self._engine(seed).count(batch, examples=keys, purpose="prediction", n=n)
        results = []
        for position, key in enumerate(keys):
            counts = tuple(votes.counts[-1, position].tolist())
            prediction, p_value = decide_prediction(counts, alpha=alpha)
            results.append(
                Prediction(
                    index=key,
                    prediction=prediction,
                    counts=counts,
                    p_value=p_value,
                    n=n,
                    alpha=alpha,
                    sigma=self.sigma,
                    seed=seed,
                )
            )
        return results

    def certify(
        self,
        images: torch.Tensor,
        *,
        n0: int = 100,
        n: int = 100_000,
        alpha: float = 0.001,
        seed: int = 0,
        bound: str = "cohen",
        labels: Sequence[int] | torch.Tensor | int | None = None,
        indices: Sequence[int] | int | None = None,
    ) -> Certificate | list[Certificate]:
        """Certificates by fixed-size sampling (Cohen et al.'s CERTIFY; see `decide`).

        For each image on its own, with probability at least 1 - alpha over the noise: it abstains,
        or g answers `prediction` everywhere closer than `radius`.

        Args:
            images: one image (C, H, W), giving one result, or a batch, giving a list.
            n0: votes that select the class.
            n: fresh votes that bound its probability.
            alpha: failure probability of one certificate.
            seed: of the noise.
            bound: `cohen` or `two-class`; both radii are in the record, `radius` is this one's.
            labels: true classes, kept in the records.
            indices: the images' indices in their data set; also the keys of their noise.
        """
        settings = CertifySettings(n0=n0, n=n, alpha=alpha, seed=seed, bound=bound)
        batch = as_batch(images)
        results = self.certify_batch(batch, settings, labels=labels, indices=indices)
        return results[0] if images.ndim == 3 else results

    def certify_batch(
        self,
        images: torch.Tensor,
        settings: CertifySettings,
        *,
        labels: Sequence[int] | torch.Tensor | int | None = None,
        indices: Sequence[int] | int | None = None,
    ) -> list[Certificate]:
        """`certify` for a batch (N, C, H, W), always a list."""
        batch, keys = self._prepare(images, indices)
        truth = check_labels(labels, len(keys), self.num_classes)
        self.probe(batch[0])
        return [group[-1] for group in self.certify_panel(batch, keys, truth, settings)]

    def certify_panel(
        self,
        images: torch.Tensor,
        indices: Sequence[int],
        labels: Sequence[int | None],
        settings: CertifySettings,
        *,
        on_progress: Callable[[int], None] | None = None,
    ) -> Iterator[list[Certificate]]:
        """For each image in turn, the certificates of every classifier of the panel.

        The ensemble comes last, after its members where these were asked for. Images are counted
        together as far as the batch size reaches. Images and model are trusted: `certify` and
        `probe` check them.
        """
        engine = self._engine(settings.seed)
        queue = list(range(len(indices)))
        for group in _parts(queue, self.images_at_once(settings)):
            began = time.perf_counter()
            with evaluating(self.model):
                selection = engine.count(
                    images[group],
                    examples=[indices[i] for i in group],
                    purpose="selection",
                    n=settings.n0,
                    on_progress=on_progress,
                )
            selecting = (time.perf_counter() - began) / len(group)
            for part in _parts(group, max(1, self.batch_size // settings.n)):
                began = time.perf_counter()
                with evaluating(self.model):
                    estimation = engine.count(
                        images[part],
                        examples=[indices[i] for i in part],
                        purpose="estimation",
                        n=settings.n,
                        on_progress=on_progress,
                    )
                seconds = selecting + (time.perf_counter() - began) / len(part)
                for offset, i in enumerate(part):
                    yield [
                        dataclasses.replace(
                            self._certificate(
                                voter,
                                selection.of(voter, i - group[0]),
                                estimation.of(voter, offset),
                                settings,
                            ),
                            index=indices[i],
                            label=labels[i],
                            seconds=round(seconds, 6),
                        )
                        for voter in range(len(self.panel.names))
                    ]

    def images_at_once(self, settings: CertifySettings) -> int:
        """How many images fill a batch with their selection votes, which are few."""
        return max(1, self.batch_size // settings.n0)

    def _certificate(
        self,
        voter: int,
        selection: ImageVotes,
        estimation: ImageVotes,
        settings: CertifySettings,
    ) -> Certificate:
        decision = decide(
            selection.counts,
            estimation.counts,
            alpha=settings.alpha,
            sigma=self.sigma,
            bound=settings.bound,
        )
        return Certificate(
            index=0,
            label=None,
            selection_counts=selection.counts,
            estimation_counts=estimation.counts,
            sigma=self.sigma,
            samples=settings.n0 + settings.n,
            decisions=None,
            exit=self.panel.exits[voter],
            votes="hard",
            noise="float32",
            precision=self.precision,
            forward_rows=self.panel.forward.rows,
            member_evaluations=selection.evaluations + estimation.evaluations,
            seconds=0.0,
            model=self.panel.names[voter],
            **dataclasses.asdict(settings),
            **dataclasses.asdict(decision),
        )

    def probe(self, image: torch.Tensor) -> None:
        """Refuse a model that breaks the contract of a member; done before the first vote."""
        with evaluating(self.model):
            check_panel(self.panel, image, self.sigma)

    def _engine(self, seed: int) -> VoteEngine:
        compile = self.device.type == "cuda" and all(m.compiled for m in self.panel.members)
        return VoteEngine(
            self.panel,
            noise=GaussianNoise(sigma=self.sigma, seed=seed, compile=compile),
            num_classes=self.num_classes,
            batch_size=self.batch_size,
        )

    def _prepare(
        self, images: torch.Tensor, indices: Sequence[int] | int | None
    ) -> tuple[torch.Tensor, list[int]]:
        check_images(images)
        if images.ndim != 4:
            raise BadInput(
                "images",
                expected="a batch (N, C, H, W)",
                got=f"shape {tuple(images.shape)}",
                fix="pass a batch",
            )
        return images.to(self.device), check_indices(indices, len(images))


def _parts(items: list[int], size: int) -> Iterator[list[int]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
