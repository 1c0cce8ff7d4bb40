"""Training of one candidate, as an iterator of steps that can be interrupted and resumed."""

import contextlib
import copy
import dataclasses
import math
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sween.data.dataset import Dataset
from sween.errors import BadInput, SweenError
from sween.locks import FolderLock
from sween.models import Manifest, check_member, create_model, save_checkpoint
from sween.models.checkpoint import CHECKPOINT
from sween.models.source_code import source_digest
from sween.paths import AnyPath
from sween.run_folder import run_tag
from sween.runs.training import (
    CODE_KEY,
    DRAWS_KEY,
    KEYED_DRAWS,
    TEACHER_KEY,
    EpochMetrics,
    append_metrics,
    check_resumable,
    is_finished,
    writing,
)
from sween.seeding import torch_seed
from sween.training.config import TrainConfig
from sween.training.distributed import Processes
from sween.training.ema import MovingAverage
from sween.training.image_weights import REWEIGH_COPIES, keep_easy, weigh_images
from sween.training.narrow_convolution import use_narrow_convolutions
from sween.training.noisy_accuracy import noisy_accuracy
from sween.training.objectives import OBJECTIVES
from sween.training.optimizers import make_optimizer
from sween.training.schedules import learning_rate
from sween.training.state import TrainingState, drop_state, load_state, parts_of, save_state
from sween.training.step import StepInputs, StreamedInputs, TrainingStep
from sween.training.teacher import load_teacher, smoothed_targets
from sween.training.tensorboard import TensorBoardLog
from sween.training.training_images import (
    RESIZED_CROPS,
    augmented,
    check_dataset,
    describe_images,
    training_images,
)
from sween.training.training_votes import count_votes

SECONDS_BETWEEN_STATES = 10.0
"""An interrupted run loses at most this much work, plus the current epoch; more where states are
large, see `SECONDS_TO_SAVE`."""

SECONDS_TO_SAVE = 0.1
"""The device waits while a state is saved. One that takes longer than this is saved as many times
less often, so that saving takes at most a hundredth of the time."""


class Trainer:
    """Trains one candidate into a run folder.

    On a CPU the weights depend only on the config, the data and the versions of the environment,
    and a run that was killed and resumed gives bit-identical weights. The test split is never
    touched; accuracy is monitored on noisy images of the weight-solving split.

    Args:
        config: what to train.
        dataset: the images.
        out: run folder; an interrupted run of the same config is resumed.
        device: for the training.
        images: the data set's `training_images` on that device, if several trainers share them;
            None where they are streamed.
        described: its `describe_images`, likewise.
        lock: of `out`, if the caller holds it; otherwise it is taken during training.
        fast: bfloat16, compiled, captured as a CUDA graph; by default on a GPU.
        processes: that train it together, each on its part of every batch; the first one writes.
            Noise and augmentation are then keyed by example, so that their number does not matter.
    """

    def __init__(
        self,
        config: TrainConfig,
        dataset: Dataset,
        out: AnyPath,
        *,
        device: torch.device,
        images: tuple[torch.Tensor, torch.Tensor] | None = None,
        described: Mapping[str, Any] | None = None,
        lock: FolderLock | None = None,
        fast: bool | None = None,
        processes: Processes | None = None,
    ) -> None:
        check_dataset(config, dataset)
        dataset = augmented(dataset, config)
        self.config, self.dataset, self.out, self.device = config, dataset, Path(out), device
        self.recorded = config.as_dict() | dict(described or describe_images(dataset))
        self.recorded |= {} if processes is None else {DRAWS_KEY: KEYED_DRAWS}
        self.teacher = load_teacher(config, dataset)
        if self.teacher is not None:
            self.recorded |= {TEACHER_KEY: self.teacher.fingerprint}
        if OBJECTIVES[config.method].remembers and processes is not None:
            raise BadInput(
                "method",
                expected="one that keeps nothing of each image, which every process sees only a "
                "part of",
                got=f"{config.method} under torchrun",
                fix="train it in one process",
            )
        if config.radius_gain is not None and processes is not None:
            raise BadInput(
                "radius_gain",
                expected="no value, as every process sees only a part of the images",
                got=f"{config.radius_gain:g} under torchrun",
                fix="train it in one process",
            )
        if config.weighing is not None and processes is not None:
            raise BadInput(
                "method",
                expected="one that does not weigh images by its own votes, which processes round "
                "differently",
                got=f"{config.method} under torchrun",
                fix="train it in one process",
            )
        self.lock, self.processes, self.already_trained = lock, processes, False
        self.note = ""  # the current epoch, and the metrics of the last one
        self.fast = device.type == "cuda" if fast is None else fast
        self.batch_size = min(config.batch_size, len(dataset.train))
        self.steps_per_epoch = len(dataset.train) // self.batch_size
        self.model = create_model(
            config.arch,
            num_classes=dataset.num_classes,
            image_shape=dataset.image_shape,
            mean=dataset.mean,
            std=dataset.std,
            seed=config.seed,
        ).to(device)
        check_member(self.model, num_classes=dataset.num_classes, image_shape=dataset.image_shape)
        code = source_digest(self.model, [config.arch])
        self.recorded |= {} if code is None else {CODE_KEY: code}
        self.channels_last = self.fast and takes_channels_last(
            self.model, dataset.image_shape, device
        )
        if self.channels_last:
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            use_narrow_convolutions(self.model, device)
        self.stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.rate = torch.zeros((), device=device) if self.fast else None
        blank = torch.zeros(2, *dataset.image_shape, device=device)
        self.optimizer = make_optimizer(config, self.model, rate=self.rate, images=blank)
        self.average = MovingAverage(self.model, config.average) if config.average else None
        self.step = self._make_step(self._make_inputs(images or training_images(dataset, device)))
        self.per_image: dict[str, torch.Tensor] = {}  # a row for each training image
        self.epochs_done = 0

    @property
    def name(self) -> str:
        return f"{self.config.arch} seed {self.config.seed}"

    @property
    def _tag(self) -> str:
        """Of the run's config, by which its saved state is known."""
        return run_tag(self.recorded)

    @property
    def steps_left(self) -> int:
        """Steps left in this run, or in the one to resume; a damaged state is refused later."""
        done = self.config.epochs if is_finished(self.out) else self.epochs_done
        if not done and self.out.is_dir():
            with contextlib.suppress(SweenError):
                state = load_state(self.out, run=self._tag)
                done = 0 if state is None else state.epochs_done
        return (self.config.epochs - done) * self.steps_per_epoch

    def check_folder(self) -> None:
        """Refuse a folder that holds a different run."""
        check_resumable(self.out, self.recorded, self.dataset.class_names)

    def run(self) -> Generator[str, None, None]:
        """Train to the end, yielding a note after each step, and write the checkpoint."""
        if self.processes is not None and not self.processes.first:
            if not self._share_start():
                self._ask_teacher()
                yield from self._epochs(lambda row: None)
            return
        names = self.dataset.class_names
        with writing(self.out, self.recorded, names, lock=self.lock) as path:
            self.already_trained = is_finished(self.out)
            if not self.already_trained:
                self._resume()
            if self._share_start():
                drop_state(self.out)  # may be left by a kill right after the checkpoint was written
                return
            self._recall()
            if self._ask_teacher():  # which may take longer than an epoch
                with self._on_stream():
                    save_state(self.out, self._state(), run=self._tag)
            with (
                append_metrics(path, epochs_done=self.epochs_done) as metrics,
                contextlib.closing(TensorBoardLog(self.out, self.epochs_done)) as board,
            ):
                due = -math.inf  # save after the first epoch: compilation takes long

                def record(row: EpochMetrics) -> None:
                    nonlocal due
                    metrics.append([dataclasses.asdict(row)])
                    board.add(row)
                    if (began := time.monotonic()) > due:
                        save_state(self.out, self._state(), run=self._tag)
                        ended = time.monotonic()
                        due = ended + SECONDS_BETWEEN_STATES * max(
                            1.0, (ended - began) / SECONDS_TO_SAVE
                        )

                yield from self._epochs(record)
            self._save_checkpoint()
            drop_state(self.out)

    def _share_start(self) -> bool:
        """Start all processes from the first one's state; returns whether nothing is left to do."""
        if self.processes is not None:
            own = self._state()
            on_cpu = {name: tensor.cpu() for name, tensor in own.tensors.items()}
            start = self.processes.from_first(
                None if self.already_trained else TrainingState(own.epochs_done, on_cpu)
            )
            self.already_trained = start is None
            if start is not None:
                self._restore(start)
        return self.already_trained

    def _epochs(self, record: Callable[[EpochMetrics], None]) -> Iterator[str]:
        """All epochs that are left; `record` is called after each."""
        measured = ""
        if self.stream is not None:  # the start, which was made on another one
            self.stream.wait_stream(torch.cuda.current_stream(self.device))
        for epoch in range(self.epochs_done, self.config.epochs):
            began = time.perf_counter()
            with self._on_stream():
                losses = torch.zeros(self.steps_per_epoch, device=self.device)
            self.note = f"epoch {epoch + 1}/{self.config.epochs}{measured}"
            for position in self._steps(epoch):
                with self._on_stream():
                    losses[position] = self.step.loss
                if not self.fast:  # on a GPU, reading the number would stall the queue
                    _check_finite(self.step.loss.item(), epoch, position)
                yield self.note
            row = self._measure(epoch, losses, began)
            self.epochs_done = epoch + 1
            measured = f", loss {row.loss:.3g}, acc {100 * row.noisy_accuracy:.1f}%"
            self.note = f"epoch {epoch + 1}/{self.config.epochs}{measured}"
            record(row)

    def _steps(self, epoch: int) -> Iterator[int]:
        # The architecture is part of the key: candidates that share a seed must not share noise, or
        # they would be less diverse and gain less as an ensemble.
        purpose = f"training of {self.config.arch}"
        seed = torch_seed(self.config.seed, purpose, block=epoch)
        with self._on_stream():
            generator = self.step.generator
            if self.step.keyed is not None:
                generator = torch.Generator()  # GPUs of several kinds may draw different orders
                self.step.keyed.start_epoch(self.config.seed, purpose, epoch)
            self._look_at_images(epoch, purpose)
            generator.manual_seed(seed)
            order = self._order(generator)
            self.model.train()
            self.step.prepare(self.config.options_at(epoch))
        batches = order[: self.steps_per_epoch * self.batch_size].view(-1, self.batch_size)
        with contextlib.closing(self.step.inputs.feed(batches, seed)) as feed:
            for position in range(self.steps_per_epoch):
                with self._on_stream(), torch.random.fork_rng(devices=[]):
                    # A custom network may draw random numbers, as dropout does.
                    layers = torch_seed(seed, "layers", self.step.inputs.part.start, position)
                    torch.default_generator.manual_seed(layers)
                    if self.processes is not None and self.device.type == "cuda":
                        torch.cuda.manual_seed(layers)  # else all parts would share their draws
                    next(feed)
                    self._set_rate(epoch * self.steps_per_epoch + position)
                    self.step()
                yield position

    def _order(self, generator: torch.Generator) -> torch.Tensor:
        """The images of an epoch: each once, or drawn by weight, with replacement."""
        count = len(self.dataset.train)
        if "weights" not in self.per_image:
            return torch.randperm(count, generator=generator, device=generator.device)
        weights = self.per_image["weights"].to(generator.device)
        return torch.multinomial(weights, count, replacement=True, generator=generator)

    def _recall(self) -> None:
        """What the network said about each image in earlier epochs, if its loss needs that."""
        if not OBJECTIVES[self.config.method].remembers and self.config.radius_gain is None:
            return
        if "memory" not in self.per_image:
            shape = (len(self.dataset.train), self.dataset.num_classes)
            with self._on_stream():  # of the steps, which would not wait for another one
                self.per_image["memory"] = torch.zeros(shape, device=self.device)
        self.step.memory = self.per_image["memory"]

    def _ask_teacher(self) -> bool:
        """What it says about each image, unless that is known; returns whether it was asked."""
        if self.teacher is None:
            return False
        asked = "targets" not in self.per_image
        if asked:
            with self._on_stream():
                targets = smoothed_targets(self.teacher, self.config, self.dataset, self.device)
                if self.processes is not None:  # GPUs of several kinds may round differently
                    targets = self.processes.from_first(targets.cpu()).to(self.device)
            self.per_image["targets"] = targets
        self.step.targets = self.per_image["targets"]
        return asked

    def _look_at_images(self, epoch: int, purpose: str) -> None:
        """Before an epoch: what the network itself says about each image."""
        weighing = self.config.weighing
        if weighing is None or epoch < weighing.start:
            return
        if epoch == weighing.start:
            count = len(self.dataset.train)
            weights = torch.ones(count, dtype=torch.float64, device=self.device)
            if weighing.drop_below:
                correct = self._correct(weighing.votes, f"{purpose}: hard images", epoch)
                weights = keep_easy(correct, weighing.votes, weighing.drop_below)
            self.per_image["weights"] = weights
        if weighing.every and (epoch - weighing.start) % weighing.every == 0:
            correct = self._correct(REWEIGH_COPIES, f"{purpose}: image weights", epoch)
            kept = self.per_image["weights"] > 0
            self.per_image["weights"] = kept * weigh_images(correct)

    def _correct(self, copies: int, purpose: str, epoch: int) -> torch.Tensor:
        """How many noisy copies of each training image the network classifies correctly.

        With the average of the weights, if there is one: at the learning rate of a single cycle the
        last ones err on images that the trained network will not.
        """
        train, average = self.dataset.train, self.average
        with average.in_place_of_the_weights() if average else contextlib.nullcontext():
            votes = count_votes(
                self.model,
                train,
                sigma=self.config.training_sigma,
                copies=copies,
                num_classes=self.dataset.num_classes,
                seed=self.config.seed,
                purpose=purpose,
                epoch=epoch,
            )
        return votes.gather(1, train.labels.to(votes.device)[:, None])[:, 0]

    def _on_stream(self) -> contextlib.AbstractContextManager[Any]:
        return torch.cuda.stream(self.stream) if self.stream else contextlib.nullcontext()

    def _set_rate(self, step: int) -> None:
        rate = learning_rate(self.config, step, self.steps_per_epoch)
        if self.rate is not None:
            self.rate.fill_(rate)
            return
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    def _measure(self, epoch: int, losses: torch.Tensor, began: float) -> EpochMetrics:
        """The epoch's row; refuses a loss or weights that are not finite."""
        with self._on_stream():
            values = losses.tolist()
            seconds = time.perf_counter() - began
            for position, value in enumerate(values):
                _check_finite(value, epoch, position)
            accuracy = noisy_accuracy(
                self.model, self.dataset.weights, self.config.sigma, self.config.seed
            )
        _check_finite(accuracy, epoch, self.steps_per_epoch - 1)  # no loss follows the last step
        return EpochMetrics(
            epoch=epoch + 1,
            loss=sum(values) / len(values),
            noisy_accuracy=accuracy,
            seconds=round(seconds, 4),
        )

    def _make_inputs(self, images: tuple[torch.Tensor, torch.Tensor] | None) -> StepInputs:
        dataset, size = self.dataset, self.batch_size
        padding = dataset.crop_padding if dataset.augmentation == "crop-flip" else None
        part = None if self.processes is None else self.processes.part(size)
        if images is not None:
            return StepInputs(
                *images,
                white=dataset.train.white,
                crop_padding=padding,
                batch_size=size,
                part=part,
            )
        return StreamedInputs(
            dataset.train,
            self.device,
            crop_padding=padding,
            resized_crops=dataset.augmentation == RESIZED_CROPS,
            batch_size=size,
            part=part,
        )

    def _make_step(self, inputs: StepInputs) -> TrainingStep:
        return TrainingStep(
            self.model,
            self.optimizer,
            inputs,
            torch.Generator(device=self.device),
            method=self.config.method,
            copies=self.config.noisy_copies,
            average=self.average,
            fast=self.fast,
            channels_last=self.channels_last,
            processes=self.processes,
        )

    def _state(self) -> TrainingState:
        tensors = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        for name, parameter in self.model.named_parameters():
            momentum = self.optimizer.state.get(parameter, {}).get("momentum_buffer")
            if momentum is not None:
                tensors[f"momentum.{name}"] = momentum
        if self.average is not None:
            tensors |= {f"average.{name}": value for name, value in self.average.tensors.items()}
        tensors |= {f"images.{name}": value for name, value in self.per_image.items()}
        return TrainingState(self.epochs_done, tensors)

    def _resume(self) -> None:
        """Resume from the saved state, if there is one."""
        state = load_state(self.out, run=self._tag)
        if state is not None:
            self._restore(state)

    def _restore(self, state: TrainingState) -> None:
        images = len(self.dataset.train)
        parts = parts_of(state, self.model, images=images, where=self.out)
        self.epochs_done = state.epochs_done
        self.model.load_state_dict(parts["model"])
        for name, parameter in self.model.named_parameters():
            if name in parts["momentum"]:
                buffer = torch.empty_like(parameter).copy_(parts["momentum"][name])
                self.optimizer.state[parameter]["momentum_buffer"] = buffer
        if self.average is not None:
            for name, tensor in parts["average"].items():
                self.average.tensors[name].copy_(tensor)
        self.per_image = {name: own.to(self.device) for name, own in parts["images"].items()}

    def _save_checkpoint(self) -> None:
        if self.average is not None:
            self.model.load_state_dict(self.average.tensors, strict=False)
        if self.config.store == "float16":
            self.model.half()
            _check_stored(self.model)
        dataset = self.dataset
        manifest = Manifest(
            arch=self.config.arch,
            num_classes=dataset.num_classes,
            image_shape=dataset.image_shape,
            dataset=dataset.name,
            class_names=dataset.class_names,
            sigma=self.config.sigma,
            training=self.recorded,
        )
        save_checkpoint(self.model.eval(), self.out / CHECKPOINT, manifest)


@torch.no_grad()
def takes_channels_last(model: nn.Module, image_shape: Sequence[int], device: torch.device) -> bool:
    """Whether the model's code allows that layout; `view` after a convolution does not."""
    layout = torch.channels_last
    images = torch.zeros(2, *image_shape, device=device).contiguous(memory_format=layout)
    try:
        tried = copy.deepcopy(model).eval()
        tried.to(memory_format=layout)  # type: ignore[call-overload]
        tried(images)
    except Exception:  # a user's module may raise anything
        return False
    return True


def _check_stored(model: nn.Module) -> None:
    for name, tensor in model.state_dict().items():
        if not torch.isfinite(tensor).all():
            raise BadInput(
                name,
                expected="weights of at most 65504, the largest float16",
                got="infinity after rounding",
                fix="store float32",
            )


def _check_finite(value: float, epoch: int, step: int) -> None:
    if not math.isfinite(value):
        raise BadInput(
            f"training diverged at epoch {epoch + 1}, step {step + 1}",
            expected="a finite loss",
            got=value,
            fix="lower the learning rate",
        )
