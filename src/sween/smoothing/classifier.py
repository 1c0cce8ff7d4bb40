"""The smoothed classifier: predict, with abstention, and certify."""

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from sween.arguments import whole_number
from sween.bounds.decision import decide_prediction
from sween.bounds.radius import check_sigma
from sween.data.conversion import Images, as_batch, is_single
from sween.data.validation import check_labels
from sween.engine.engine import VoteEngine
from sween.engine.forward import FixedShapeForward
from sween.engine.noise import PIXEL_LEVELS, NoiseKind
from sween.engine.prepare import Preparation
from sween.engine.tally import Votes
from sween.engine.voters import build_panel
from sween.ensemble.early_exit import ExitPolicy
from sween.ensemble.loaded import LoadedEnsemble
from sween.errors import BadInput, ContractError
from sween.models.device import is_out_of_memory
from sween.records import Certificate
from sween.seeding import fresh_seed
from sween.smoothing.certify import certify_each, check_sampling, plan_budget
from sween.smoothing.numbering import ImageNumbering
from sween.smoothing.settings import (
    CertifySettings,
    Prediction,
    check_predict_settings,
)


class SmoothedClassifier:
    """g(x) = the most likely class of model(x + N(0, sigma^2 I)).

    The model is used with the parameters it has at the time of the call, in evaluation mode, and
    left in the mode it was in. What answers is its prepared form (see `Preparation`): batch norm
    folded, in the arithmetic that the record names. Everything claimed assumes that it is a
    deterministic function of each input on its own, that pseudo-random float32 normals stand for
    Gaussian noise, and that the image was chosen without knowledge of that noise. The first of
    these is probed once for each state of the model (its parts, their parameters, buffers, modes
    and hooks) and for each shape of a batch that votes; other changes, such as a flag that its code
    reads, are not seen.

    The noise is a function of seed, purpose and index. By default every call takes a fresh seed
    from the operating system, which is never used again and is recorded in the answer, so that
    nobody could have made an image for it. A seed that is given is used as given: keep it secret
    where images come from strangers. Images without indices are numbered consecutively across
    calls, so that no two of them share their noise; to repeat an answer, pass its seed and index.

    One classifier may be called from several threads, which take turns. Several classifiers over
    one model may be used at once.

    Args:
        model: any module from [0,1] images (N, C, H, W) to logits or probabilities (N, M), for
            example a `WeightedEnsemble`.
        sigma: noise level in units of [0,1] pixels.
        num_classes: M.
        exit: early exit of an ensemble: none, paper or exact, or an `ExitPolicy`.
        name: of the model, for records.
        batch_size: noisy inputs of one batch; never changes a result. One forward pass on a GPU,
            ten on a CPU and with an early exit by default. On a GPU two batches may be held at
            once, where an exit is not taken inside kernels of our own.
        forward_rows: rows of one forward pass; the same for every result that is compared. When
            None, `certify` takes what suits the device and the images, and `predict` what suits n
            too, where the model is not compiled.
        member_names: names of the ensemble's members, whose votes `certify_panel` then counts too.
        weightings: other weights of the same members by name, counted by `certify_panel` too.
        other_exits: of the same ensemble, counted by `certify_panel` too.
        precision: float32, float16 or bfloat16; auto is float16 on a GPU and float32 on a CPU.
        compile: whether to compile the model; on a GPU by default.
        noise: `float32`, or `exact`, whose certificates hold in floating point too: then what is
            certified, and answers, is the model on images rounded to multiples of 1/levels, and the
            images must lie on that grid.
        levels: of exact noise; when None those of the images that a loaded ensemble was trained
            on, 255 for another model.
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
        other_exits: Sequence[ExitPolicy] = (),
        precision: str = "auto",
        compile: bool | None = None,
        noise: str = "float32",
        levels: int | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise ContractError(
                "model",
                expected="a torch.nn.Module from images to logits",
                got=f"a {type(model).__name__}",
                fix="call it in the forward method of a module",
            )
        check_sigma(sigma)
        num_classes = whole_number("num_classes", num_classes)
        if forward_rows is not None:
            forward_rows = whole_number("forward_rows", forward_rows)
        if num_classes < 2:
            raise BadInput("num_classes", expected="at least 2", got=num_classes, fix="pass M")
        if levels is None:
            levels = model.white if isinstance(model, LoadedEnsemble) else PIXEL_LEVELS
        self.sigma = float(sigma)
        self.num_classes = num_classes
        panel = build_panel(
            model,
            name=name,
            forward=FixedShapeForward(num_classes),
            policy=exit if isinstance(exit, ExitPolicy) else ExitPolicy(exit),
            preparation=Preparation(precision, compile),
            member_names=member_names,
            weightings=weightings,
            exits=other_exits,
        )
        self.engine = VoteEngine(
            model,
            panel,
            sigma=self.sigma,
            num_classes=num_classes,
            forward_rows=forward_rows,
            batch_size=batch_size,
            noise=NoiseKind(noise, levels),
        )
        self._turn = threading.RLock()
        self._numbering = ImageNumbering()

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the lock: a copy, or one sent to another process, has its own."""
        return {name: value for name, value in vars(self).items() if name != "_turn"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._turn = threading.RLock()

    def predict(
        self,
        images: Images,
        *,
        n: int = 100,
        alpha: float = 0.001,
        seed: int | None = None,
        indices: Sequence[int] | int | None = None,
    ) -> Prediction | list[Prediction]:
        """The smoothed classifier's answer, or an abstention.

        Each answer that is not an abstention differs from g's with probability at most alpha over
        the noise (see `decide_prediction`).

        Args:
            images: one image, giving one result, or a batch, giving a list; see `Images`.
            n: votes per image.
            alpha: failure probability.
            seed: of the noise; a fresh one when None.
            indices: keys of the images' noise; numbered consecutively across calls when None.
        """
        check_predict_settings(n=n, alpha=alpha, sigma=self.sigma)
        batch = as_batch(images)
        given = None if seed is None else whole_number("seed", seed)
        with self._turn:
            keys = self._keyed(batch, "prediction", given, indices)
            own = fresh_seed() if given is None else given
            results = self._predict(batch, keys, n, alpha, own, fitted=True)
        return results[0] if is_single(images) else results

    def predict_batch(
        self,
        images: Images,
        *,
        n: int = 100,
        alpha: float = 0.001,
        seed: int,
        indices: Sequence[int] | int,
    ) -> list[Prediction]:
        """The answers of a batch under given noise, in the forward passes of `certify`.

        For whoever compares or replays: always a list, in the shape of forward pass that certifies,
        and images may share their noise.
        """
        check_predict_settings(n=n, alpha=alpha, sigma=self.sigma)
        batch = as_batch(images)
        with self._turn:
            self._check_batch(batch)
            keys = self._numbering.number("prediction", indices, len(batch))
            return self._predict(batch, keys, n, alpha, whole_number("seed", seed), fitted=False)

    def certify(
        self,
        images: Images,
        *,
        n0: int = 100,
        n: int = 100_000,
        alpha: float = 0.001,
        seed: int | None = None,
        bound: str = "cohen",
        sampling: str = "fixed",
        radii: float | Sequence[float] = (),
        tolerance: float | None = None,
        budget: int | None = None,
        votes: str = "hard",
        labels: Sequence[int] | torch.Tensor | int | None = None,
        indices: Sequence[int] | int | None = None,
    ) -> Certificate | list[Certificate]:
        """Certificates by Cohen et al.'s CERTIFY, with the votes fixed or chosen as they come.

        For each image on its own, with probability at least 1 - alpha over the noise: it abstains,
        or g answers `prediction` everywhere closer than `radius`.

        Args:
            images: one image, giving one result, or a batch, giving a list; see `Images`.
            n0: votes that select the class.
            n: fresh votes that bound its probability.
            alpha: failure probability of one certificate.
            seed: of the noise; a fresh one when None.
            bound: `cohen` or `two-class`; both radii are in the record, `radius` is this one's.
            sampling: `fixed`, `decide`, `tolerance` or `budget`; see `CertifySettings`.
            radii: to decide, with `decide`.
            tolerance: share of the radius that may be lost, with `tolerance`; give it n0 = 1000.
            budget: noisy images in all, with `budget`; give it n0 = 1000.
            votes: `hard` or `soft`; see `CertifySettings`.
            labels: true classes, kept in the records.
            indices: the images' indices in their data set, also the keys of their noise; numbered
                consecutively across calls when None.
        """
        settings = CertifySettings(
            n0=n0,
            n=n,
            alpha=alpha,
            seed=fresh_seed() if seed is None else seed,
            bound=bound,
            sampling=sampling,
            radii=tuple(radii) if isinstance(radii, Iterable) else (radii,),
            tolerance=tolerance,
            budget=budget,
            votes=votes,
        )
        with self._turn:
            groups = self._certify(images, settings, labels, indices, watched=seed is not None)
        results = [group[-1] for group in groups]
        return results[0] if is_single(images) else results

    def certify_batch(
        self,
        images: Images,
        settings: CertifySettings,
        *,
        labels: Sequence[int] | torch.Tensor | int | None = None,
        indices: Sequence[int] | int | None = None,
    ) -> list[Certificate]:
        """`certify` with given settings, always a list; the seed is theirs, 0 unless it is set."""
        groups = self.certify_panel(images, settings, labels=labels, indices=indices)
        return [group[-1] for group in groups]

    def certify_panel(
        self,
        images: Images,
        settings: CertifySettings,
        *,
        labels: Sequence[int] | torch.Tensor | int | None = None,
        indices: Sequence[int] | int | None = None,
    ) -> list[list[Certificate]]:
        """For each image the certificates of members, other variants and, last, the model.

        Members, weightings and exits are those named when the classifier was made; all see the same
        noise. The seed is that of the settings, 0 unless it is set.
        """
        with self._turn:
            return self._certify(images, settings, labels, indices, watched=True)

    def _certify(
        self,
        images: Images,
        settings: CertifySettings,
        labels: Sequence[int] | torch.Tensor | int | None,
        indices: Sequence[int] | int | None,
        *,
        watched: bool,
    ) -> list[list[Certificate]]:
        batch = as_batch(images)
        truth = check_labels(labels, len(batch), self.num_classes)
        check_sampling(self.engine, settings, numbers=batch[0].numel())
        seed = settings.seed if watched else None
        keys = self._keyed(batch, "certification", seed, indices)
        batch = batch.to(self.engine.device)
        self.engine.prepare(batch[0])
        plans = None
        if settings.sampling == "budget":
            plans = plan_budget(self.engine, lambda: [(batch, keys)], settings)
        return list(certify_each(self.engine, batch, keys, truth, settings, plans=plans))

    def _predict(
        self,
        batch: torch.Tensor,
        keys: Sequence[int],
        n: int,
        alpha: float,
        seed: int,
        *,
        fitted: bool,
    ) -> list[Prediction]:
        votes = self._count(batch.to(self.engine.device), keys, n, seed, fitted)
        results = []
        for position, key in enumerate(keys):
            counts = tuple(votes.counts[-1, position].tolist())
            prediction, p_value = decide_prediction(counts, alpha=alpha, n=n)
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

    def _count(
        self, images: torch.Tensor, keys: Sequence[int], n: int, seed: int, fitted: bool
    ) -> Votes:
        """Votes for predictions; in forward passes fitted to n where that is asked and possible."""
        rows = self.engine.fitted_rows(images[0], n) if fitted else None
        while True:
            try:
                if rows is None:
                    self.engine.prepare(images[0])
                return self.engine.count(
                    images, examples=keys, purpose="prediction", n=n, seed=seed, rows=rows
                )
            except (RuntimeError, MemoryError) as error:
                failure = error.with_traceback(None)  # which would keep batches in memory
            if rows is None:
                self.engine.shrink(failure)
            elif not is_out_of_memory(failure):
                raise failure
            rows = None  # from here on as `certify` does, which shrinks its passes

    def _keyed(
        self,
        batch: torch.Tensor,
        purpose: str,
        seed: int | None,
        indices: Sequence[int] | int | None,
    ) -> list[int]:
        """The keys of a batch; warns where a given seed has met other images under them."""
        self._check_batch(batch)
        keys = self._numbering.number(purpose, indices, len(batch))
        if seed is not None:
            self._numbering.watch(seed, purpose, keys, batch)
        return keys

    def _check_batch(self, batch: torch.Tensor) -> None:
        wanted = getattr(self.engine.model, "image_shape", None)  # a loaded ensemble knows it
        if wanted is not None and tuple(batch.shape[1:]) != tuple(wanted):
            raise BadInput(
                "images",
                expected=f"shape {tuple(wanted)}, for which the ensemble was trained",
                got=tuple(batch.shape[1:]),
                fix="bring them to that shape first",
            )
        self.engine.noise.check(batch)
