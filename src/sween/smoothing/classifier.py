"""The smoothed classifier: predict, with abstention, and certify."""

import copy
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self, TypedDict, Unpack

import torch
from torch import nn

from sween.arguments import text, whole_number
from sween.bounds.decision import decide_prediction
from sween.bounds.radius import check_sigma
from sween.data.conversion import Images, as_batch, is_single
from sween.data.validation import check_labels
from sween.engine import (
    PIXEL_LEVELS,
    NoiseKind,
    Preparation,
    VoteEngine,
    VoteRequest,
    Voters,
)
from sween.engine.forward import FixedShapeForward
from sween.ensemble import ExitPolicy, LoadedEnsemble
from sween.ensemble.early_exit import as_exit
from sween.errors import BadInput, ContractError, describe_type
from sween.models.device import as_device, device_of
from sween.paths import AnyPath
from sween.records import Certificate
from sween.sampling import CertifySettings
from sween.sampling.settings import ALPHA, N, settings_of
from sween.seeding import fresh_seed
from sween.smoothing import pipeline
from sween.smoothing.numbering import ImageNumbering
from sween.smoothing.prediction import Prediction, check_predict_settings
from sween.smoothing.smoothed_logits import FrozenProbabilities, SmoothedLogits
from sween.zoo import load

Labels = Sequence[int] | torch.Tensor | int | None
"""True classes, one per image; None where they are not known."""

Indices = Sequence[int] | int | None
"""Numbers of the images, each once; None to number them consecutively across calls."""


class PredictOptions(TypedDict, total=False):
    """Keywords of `SmoothedClassifier.predict`, for type checkers."""

    n: int
    alpha: float
    seed: int | None
    indices: Indices


class CertifyOptions(TypedDict, total=False):
    """Keywords of `SmoothedClassifier.certify`, for type checkers."""

    n0: int | None
    n: int
    alpha: float
    seed: int | None
    bound: str
    sampling: str
    radii: float | Sequence[float]
    tolerance: float | None
    budget: int | None
    votes: str
    settings: CertifySettings | None
    labels: Labels
    indices: Indices
    on_progress: Callable[[int], None] | None


class SmoothedClassifier:
    """g(x) = the most likely class of model(x + N(0, sigma^2 I)).

    The model is used with its current parameters, on its current device, in evaluation mode, and
    its mode is restored afterwards. Votes are cast by its prepared form (see `Preparation`): batch
    norm folded, in the arithmetic that the record names. Certificates assume that this is a
    deterministic function of each single input, that float32 noise is exactly Gaussian, and that
    the image was chosen without knowledge of the noise. The first assumption is probed once per
    state of the model (submodules, parameters, buffers, modes and hooks) and batch shape; other
    changes, such as a flag that its code reads, go unnoticed.

    The noise is a function of seed, purpose and index. By default every call draws a fresh seed
    from the operating system, never uses it again and records it in the result, so that no image
    can have been crafted for it. If you pass a seed (that of `settings` is 0 unless set), keep it
    secret where images come from untrusted sources. Images without indices are numbered
    consecutively across calls, so that no two of them share noise; to repeat a result, pass its
    seed and index.

    A classifier can be shared by several threads, which take turns. Several classifiers can use one
    model at the same time.

    Args:
        model: any module from [0,1] images (N, C, H, W) to logits or probabilities (N, M), for
            example a `WeightedEnsemble`.
        sigma: noise level in units of [0,1] pixels.
        num_classes: M.
        exit: early exit of an ensemble: none, paper, exact or mixed, where wanted with parameters
            as in `mixed(threshold=0.99,share=0.7)`, or an `ExitPolicy`.
        name: of the model in records; by default the loaded ensemble's name, or `model`.
        batch_size: noisy inputs per batch; never changes a result. By default one forward pass on a
            GPU, ten on a CPU or with an early exit. A GPU may hold two batches at a time.
        forward_rows: rows per forward pass; results are reproducible only with the same number. By
            default chosen for the device and the image size, and in `predict` also for n unless the
            model is compiled.
        member_names: names of the ensemble's members, to certify each of them as well; see
            `certify_voters`.
        weightings: other weights of the same members by name, to certify as well.
        other_exits: other exits of the same ensemble, to certify as well.
        precision: float32, float16 or bfloat16; auto is float16 on a GPU and float32 on a CPU.
            int8 is for CIFAR ResNets that `sween quantize` has prepared.
        compile: whether to compile the model, on a GPU by default; or how: `fast`, the default on
            a GPU, starts in seconds and changes nothing on a CPU; `max` searches for the fastest
            kernels for minutes.
        noise: `float32`, or `exact`, whose certificates hold in floating-point arithmetic too. With
            `exact` the certified classifier is the model on images rounded to multiples of
            1/levels, and images must lie on that grid.
        levels: of exact noise; by default those of a loaded ensemble's training images, otherwise
            255.

    Example:
        >>> import sween, torch
        >>> network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
        >>> smoothed = sween.SmoothedClassifier(network, sigma=0.5, num_classes=10)
        >>> certificate = smoothed.certify_one(torch.zeros(1, 8, 8), n=1000)
        >>> sum(certificate.estimation_counts)
        1000
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        sigma: float,
        num_classes: int,
        exit: str | ExitPolicy = "none",
        name: str | None = None,
        batch_size: int | None = None,
        forward_rows: int | None = None,
        member_names: Sequence[str] | None = None,
        weightings: Mapping[str, Sequence[float]] | None = None,
        other_exits: Sequence[str | ExitPolicy] = (),
        precision: str = "auto",
        compile: bool | str | None = None,
        noise: str = "float32",
        levels: int | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise ContractError(
                "model",
                expected="a torch.nn.Module from images to logits",
                got=describe_type(model),
                fix="wrap it in a module",
            )
        check_sigma(sigma)
        num_classes = whole_number("num_classes", num_classes)
        if forward_rows is not None:
            forward_rows = whole_number("forward_rows", forward_rows)
        if num_classes < 2:
            raise BadInput(
                "num_classes",
                expected="at least 2",
                got=num_classes,
                fix="pass the number of classes",
            )
        loaded = model if isinstance(model, LoadedEnsemble) else None
        if levels is None:
            levels = PIXEL_LEVELS if loaded is None else loaded.white
        if name is None:
            name = "model" if loaded is None else loaded.name
        text("name", name)
        if batch_size is not None:
            batch_size = whole_number("batch_size", batch_size)
        member_names = None if member_names is None else _names("member_names", member_names)
        if weightings is not None and not isinstance(weightings, Mapping):
            raise BadInput(
                "weightings",
                expected="weights by name",
                got=describe_type(weightings),
                fix='pass {"equal": [0.5, 0.5]}',
            )
        _names("weightings", weightings or {})
        if isinstance(other_exits, str) or not isinstance(other_exits, Iterable):
            raise BadInput(
                "other_exits", expected="a list", got=describe_type(other_exits), fix="list them"
            )
        exits = [as_exit(own) for own in other_exits]
        self.model = model
        self.name: str = name
        self._options: dict[str, Any] = {
            "sigma": sigma,
            "num_classes": num_classes,
            "exit": exit,
            "name": name,
            "batch_size": batch_size,
            "forward_rows": forward_rows,
            "member_names": member_names,
            "weightings": weightings,
            "other_exits": exits,
            "precision": precision,
            "compile": compile,
            "noise": noise,
            "levels": levels,
        }
        self.sigma, self.num_classes = float(sigma), num_classes
        voters = Voters(
            model,
            name=name,
            forward=FixedShapeForward(num_classes),
            policy=as_exit(exit),
            preparation=Preparation(precision, compile),
            member_names=member_names,
            weightings=weightings,
            exits=exits,
        )
        self.engine = VoteEngine(
            model,
            voters,
            sigma=self.sigma,
            num_classes=num_classes,
            forward_rows=forward_rows,
            batch_size=batch_size,
            noise=NoiseKind(noise, levels),
        )
        self._turn = threading.RLock()
        self._numbering = ImageNumbering()

    @classmethod
    def load(
        cls,
        source: AnyPath,
        *,
        device: str | torch.device | None = None,
        archs: Sequence[str] = (),
        **options: Any,
    ) -> Self:
        """A smoothed classifier from the model zoo or from a folder that sween wrote.

        Args:
            source: a name from `sween zoo`, a training run or an ensemble folder, which define the
                noise level and the classes.
            device: where to put the model; the CPU by default.
            archs: custom architectures that the checkpoints may name; see `sween.load`.
            options: of the constructor.

        Example:
            >>> import sween
            >>> smoothed = sween.SmoothedClassifier.load("digits-sween3-gaussian-sigma0.50")
            >>> smoothed.sigma, smoothed.num_classes
            (0.5, 10)
        """
        model = load(source, archs=archs)
        if device is not None:
            model.to(as_device("device", device))
        return cls(model, sigma=model.sigma, num_classes=model.num_classes, **options)

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the lock: a copy, or one in another process, has its own."""
        return {name: value for name, value in vars(self).items() if name != "_turn"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._turn = threading.RLock()

    def __repr__(self) -> str:
        model = type(self.model).__name__
        return (
            f"SmoothedClassifier({model}, sigma={self.sigma:g}, num_classes={self.num_classes}, "
            f"name={self.name!r})"
        )

    def twin(self, device: torch.device | None = None) -> "SmoothedClassifier":
        """A classifier with the same options and its own engine.

        Args:
            device: where to put a copy of the model; by default the model itself is shared. A copy
                computes something else if a hook or a layer of the model reaches the model itself,
                by a closure or a weak reference; `certify_dataset` refuses such a model.

        Example:
            >>> import sween
            >>> smoothed = sween.SmoothedClassifier.load("digits-sween3-gaussian-sigma0.50")
            >>> other = smoothed.twin()
            >>> other.model is smoothed.model, other.engine is smoothed.engine
            (True, False)
        """
        model = self.model if device is None else copy.deepcopy(self.model).to(device)
        return SmoothedClassifier(model, **self._options)

    @property
    def device(self) -> torch.device:
        """The model's device."""
        return device_of(self.model)

    def predict(
        self,
        images: Images,
        *,
        n: int = 100,
        alpha: float = ALPHA,
        seed: int | None = None,
        indices: Indices = None,
    ) -> list[Prediction]:
        """The smoothed classifier's prediction for each image, or an abstention.

        For each image, a class other than g's is returned with probability at most alpha over the
        noise (see `decide_prediction`).

        Args:
            images: a batch or one image; see `Images`.
            n: votes per image.
            alpha: failure probability.
            seed: of the noise; a fresh one by default.
            indices: keys of the images' noise; by default numbered consecutively across calls.

        Example:
            >>> import sween
            >>> digits = sween.load_dataset("digits").test
            >>> smoothed = sween.SmoothedClassifier.load("digits-sween3-gaussian-sigma0.50")
            >>> predictions = smoothed.predict(digits.images([1, 2, 6]), n=1000)
            >>> [one.prediction for one in predictions] == digits.labels[[1, 2, 6]].tolist()
            True
        """
        check_predict_settings(n=n, alpha=alpha, sigma=self.sigma)
        batch = as_batch(images)
        given = None if seed is None else whole_number("seed", seed)
        with self._turn:
            keys = self._keyed(batch, "prediction", given, indices)
            own = fresh_seed() if given is None else given
            return self._predict(batch, keys, n, alpha, own, fitted=True)

    def predict_one(self, image: Images, **options: Unpack[PredictOptions]) -> Prediction:
        """`predict` for one image.

        Example:
            >>> import sween
            >>> digits = sween.load_dataset("digits").test
            >>> smoothed = sween.SmoothedClassifier.load("digits-sween3-gaussian-sigma0.50")
            >>> prediction = smoothed.predict_one(digits.images([6])[0], n=1000)
            >>> prediction.prediction == int(digits.labels[6]), sum(prediction.counts)
            (True, 1000)
        """
        (answer,) = self.predict(_one(image), **options)
        return answer

    def predict_batch(
        self, images: Images, *, n: int = 100, alpha: float = ALPHA, seed: int, indices: Indices
    ) -> list[Prediction]:
        """`predict` with the forward passes of `certify`, and with noise that images may share.

        For comparing or replaying predictions.

        Example:
            >>> import sween
            >>> images = sween.load_dataset("digits").test.images(range(2))
            >>> smoothed = sween.SmoothedClassifier.load("digits-sween3-gaussian-sigma0.50")
            >>> first = smoothed.predict_batch(images, n=100, seed=7, indices=[0, 1])
            >>> smoothed.predict_batch(images, n=100, seed=7, indices=[0, 1]) == first
            True
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
        n0: int | None = None,
        n: int = N,
        alpha: float = ALPHA,
        seed: int | None = None,
        bound: str = "cohen",
        sampling: str = "fixed",
        radii: float | Sequence[float] = (),
        tolerance: float | None = None,
        budget: int | None = None,
        votes: str = "hard",
        settings: CertifySettings | None = None,
        labels: Labels = None,
        indices: Indices = None,
        on_progress: Callable[[int], None] | None = None,
    ) -> list[Certificate]:
        """Certificates by Cohen et al.'s CERTIFY, with a fixed or an adaptive number of votes.

        For each image separately, with probability at least 1 - alpha over the noise: it abstains,
        or g predicts `prediction` for every perturbation with l2 norm below `radius`.

        Args:
            images: a batch or one image; see `Images`.
            n0: votes that select the class; by default 100, or 1,000 with `tolerance` and `budget`.
            n: fresh votes that bound its probability.
            alpha: failure probability of one certificate.
            seed: of the noise; a fresh one by default.
            bound: `cohen` or `two-class`; both radii are in the record, `radius` is this one's.
            sampling: `fixed`, `decide`, `tolerance` or `budget`; see `CertifySettings`.
            radii: to decide, with `decide`.
            tolerance: share of the radius that may be lost, with `tolerance`.
            budget: total number of noisy images, with `budget`.
            votes: `hard` or `soft`; see `CertifySettings`.
            settings: all of the above at once, the seed included.
            labels: true classes, kept in the records.
            indices: of the images in their data set, also the keys of their noise; by default
                numbered consecutively across calls.
            on_progress: called with the number of noisy copies evaluated since the last call.

        Example:
            >>> import sween
            >>> digits = sween.load_dataset("digits").test
            >>> smoothed = sween.SmoothedClassifier.load("digits-sween3-gaussian-sigma0.50")
            >>> certificates = smoothed.certify(digits.images([1, 2, 6]), n=1000)
            >>> [one.prediction for one in certificates] == digits.labels[[1, 2, 6]].tolist()
            True
            >>> all(0.3 < one.radius < 1.5 for one in certificates)
            True
        """
        watched = settings is not None or seed is not None
        options: dict[str, Any] = {
            "n0": n0,
            "n": n,
            "alpha": alpha,
            "seed": seed,
            "bound": bound,
            "sampling": sampling,
            "radii": radii,
            "tolerance": tolerance,
            "budget": budget,
            "votes": votes,
        }
        if settings is None and seed is None:
            options["seed"] = fresh_seed()
        settings = settings_of(settings, options, seed=None)
        found = self._certify(
            images, settings, labels, indices, watched=watched, on_progress=on_progress
        )
        return [voters[self.name] for voters in found]

    def certify_one(self, image: Images, **options: Unpack[CertifyOptions]) -> Certificate:
        """`certify` for one image.

        Example:
            >>> import sween
            >>> image = sween.load_dataset("digits").test.images([6])[0]
            >>> smoothed = sween.SmoothedClassifier.load("digits-sween3-gaussian-sigma0.50")
            >>> certificate = smoothed.certify_one(image, sampling="decide", radii=[0.5], n=10_000)
            >>> certificate.decisions, certificate.samples < 10_000
            ({'0.5': True}, True)
        """
        (certificate,) = self.certify(_one(image), **options)
        return certificate

    def certify_voters(
        self,
        images: Images,
        settings: CertifySettings,
        *,
        labels: Labels = None,
        indices: Indices = None,
    ) -> list[dict[str, Certificate]]:
        """For each image the certificates of members, weightings, exits and the model, by name.

        They are those given to the constructor; all see the same noise. The seed is that of the
        settings, 0 by default.

        Example:
            >>> import sween
            >>> from sween.sampling import CertifySettings
            >>> ensemble = sween.load("digits-sween3-gaussian-sigma0.50")
            >>> names = ensemble.member_names
            >>> smoothed = sween.SmoothedClassifier(
            ...     ensemble, sigma=0.5, num_classes=10, member_names=names
            ... )
            >>> image = sween.load_dataset("digits").test.images([0])
            >>> (voters,) = smoothed.certify_voters(image, CertifySettings(n=1000))
            >>> list(voters)
            ['digits-mlp', 'digits-conv', 'digits-resnet', 'SWEEN-3']
        """
        return self._certify(images, settings, labels, indices, watched=True)

    def smoothed_logits(
        self, *, samples: int = 64, seed: int | None = None, fresh: bool = True
    ) -> SmoothedLogits:
        """A differentiable module, to attack the classifier with other tools.

        It maps images (B, C, H, W) to the log of the model's mean probabilities over noisy copies
        (Salman et al. 2019). Check the adversarial examples found with `predict`.

        Args:
            samples: noisy copies of each image.
            seed: of the noise; a fresh one by default.
            fresh: new noise at every call; otherwise the same noise, a deterministic function.

        Example:
            >>> import sween
            >>> digits = sween.load_dataset("digits").test
            >>> smoothed = sween.SmoothedClassifier.load("digits-sween3-gaussian-sigma0.50")
            >>> images = digits.images(range(4)).requires_grad_()
            >>> logits = smoothed.smoothed_logits(samples=16)(images)
            >>> logits.gather(1, digits.labels[:4, None]).sum().backward()
            >>> images.grad.shape
            torch.Size([4, 1, 8, 8])
        """
        own = fresh_seed() if seed is None else whole_number("seed", seed)
        logits = SmoothedLogits(
            FrozenProbabilities(self.model),
            sigma=self.sigma,
            samples=samples,
            seed=own,
            fresh=fresh,
        )
        logits.model = self.model  # tools look for the device of a module's parameters
        return logits

    def _certify(
        self,
        images: Images,
        settings: CertifySettings,
        labels: Labels,
        indices: Indices,
        *,
        watched: bool,
        on_progress: Callable[[int], None] | None = None,
    ) -> list[dict[str, Certificate]]:
        batch = as_batch(images)
        truth = check_labels(labels, len(batch), self.num_classes)
        with self._turn:
            self.engine.follow_device()
            pipeline.check_engine(self.engine, settings, numbers=batch[0].numel())
            seed = settings.seed if watched else None
            keys = self._keyed(batch, "certification", seed, indices)
            self.engine.prepare(batch[0])
            source = _Batch(batch, keys, truth)
            found = pipeline.certify(
                [self.engine], source, range(len(keys)), settings, on_progress=on_progress
            )
            return [{row.model: row for row in rows} for rows in found]

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
        images = batch.to(self.engine.follow_device())
        request = VoteRequest(images, keys, "prediction", [n] * len(keys))
        votes = self.engine.count_one(request, seed=seed, fitted=fitted)
        results = []
        for place, key in enumerate(keys):
            counts = votes.of(self.name, place).counts
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

    def _keyed(
        self, batch: torch.Tensor, purpose: str, seed: int | None, indices: Indices
    ) -> list[int]:
        """The noise keys of a batch; warns if other images had the same seed and keys before."""
        self._check_batch(batch)
        keys = self._numbering.number(purpose, indices, len(batch))
        if seed is not None:
            self._numbering.watch(seed, purpose, keys, batch)
        return keys

    def _check_batch(self, batch: torch.Tensor) -> None:
        wanted = getattr(self.model, "image_shape", None)  # of a loaded ensemble
        if wanted is not None and tuple(batch.shape[1:]) != tuple(wanted):
            raise BadInput(
                "images",
                expected=f"shape {tuple(wanted)}, for which the ensemble was trained",
                got=tuple(batch.shape[1:]),
                fix="resize the images",
            )
        self.engine.noise.check(batch)


class _Batch:
    """The images of one call; see `ImageSource`."""

    def __init__(
        self, batch: torch.Tensor, keys: Sequence[int], labels: Sequence[int | None]
    ) -> None:
        self.batch, self.keys, self.labels = batch, keys, labels

    def images(self, positions: Sequence[int]) -> torch.Tensor:
        return self.batch[list(positions)]

    def index(self, position: int) -> int:
        return self.keys[position]

    def label(self, position: int) -> int | None:
        return self.labels[position]


def _one(image: Images) -> Images:
    if not is_single(image) and len(as_batch(image)) != 1:
        raise BadInput(
            "image",
            expected="one image (C, H, W)",
            got=f"a batch of {len(as_batch(image))}",
            fix="use certify or predict for a batch",
        )
    return image


def _names(what: str, names: object) -> list[str]:
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise BadInput(what, expected="a list of names", got=repr(names), fix="list them")
    return [text(what, name) for name in names]
