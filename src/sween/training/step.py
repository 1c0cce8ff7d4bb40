"""One training step: augment, add noise, forward, backward, update. The same code on CPU and GPU.

On a GPU, everything but the random numbers and the update is compiled and runs in bfloat16,
channels-last, convolutions of few channels by custom kernels (`narrow_convolution.py`), and the
whole step is captured once as a CUDA graph and replayed. On a CPU the step
is plain float32. In several processes it is a step on the whole batch, of which each computes its
part; it is not captured then. Some objectives attack the noise first, in evaluation mode; the
gradients of the attack are part of the captured step.
"""

import contextlib
from collections.abc import Callable, Generator
from typing import TypeVar

import torch
from torch import nn

from sween.cuda import capturing
from sween.data.dataset import Split, check_white, scale_to_unit
from sween.interleave import to_device_async
from sween.models.evaluation_mode import evaluating
from sween.training.augment import CropFlips, ResizedCropFlip, apply_crop_flips, draw_crop_flips
from sween.training.distributed import GlobalBatchStatistics, Processes
from sween.training.ema import MovingAverage
from sween.training.keyed_draws import KeyedDraws
from sween.training.objectives import OBJECTIVES, Guide, ObjectiveOptions, remember
from sween.training.radius_gains import radius_gains

COMPILE_MODE = "default"
"""torch.compile's mode; "max-autotune-no-cudagraphs" is a little faster and takes minutes."""

MAX_GRAPHS = 4096
"""The most steps that can be compiled in one process; all candidates share the same code, so torch
counts each as a recompilation, and would run those beyond its own limit of 8 uncompiled."""

WARMUP_STEPS = 3
"""Eager steps before the capture, for compilation and workspace allocation."""


Outputs = TypeVar("Outputs")


def _compiled(function: Callable[..., Outputs]) -> Callable[..., Outputs]:
    """For the shapes at hand alone, however many candidates compile the same code.

    After a second number of copies torch would compile for any, without choosing the layout of
    convolutions.
    """
    return torch.compile(function, mode=COMPILE_MODE, dynamic=False)


class StepInputs:
    """The images of a step: all of them on the device, picked by position.

    `part` is the part of a batch that is picked, all of it by default.
    """

    def __init__(
        self,
        pixels: torch.Tensor,
        labels: torch.Tensor,
        *,
        white: int,
        crop_padding: int | None,
        batch_size: int,
        part: slice | None = None,
    ) -> None:
        self.pixels, self.labels = pixels, labels
        self.white, self.crop_padding = white, crop_padding
        self.batch_size, self.part = batch_size, part or slice(0, batch_size)
        size = self.part.stop - self.part.start
        self.picks = torch.zeros(size, dtype=torch.long, device=pixels.device)

    def feed(self, batches: torch.Tensor, seed: int) -> Generator[None, None, None]:
        """Pick the images of each step of an epoch: a batch of positions (steps, batch) each time.

        `seed` is that of the epoch.
        """
        for batch in batches[:, self.part]:
            self.picks.copy_(batch)
            yield

    def draw(self, generator: torch.Generator) -> CropFlips | None:
        """The random crops and flips for a batch; None without augmentation."""
        if self.crop_padding is None:
            return None
        device = self.pixels.device
        return draw_crop_flips(
            len(self.picks), padding=self.crop_padding, generator=generator, device=device
        )

    def picked(self, stored: torch.Tensor) -> torch.Tensor:
        """The pixels or labels of the picked images."""
        return stored[self.picks]

    def images(self, drawn: CropFlips | None) -> torch.Tensor:
        """The picked images as float32 in [0,1], augmented."""
        images = self.picked(self.pixels)
        if drawn is not None and self.crop_padding is not None:
            images = apply_crop_flips(images, drawn, padding=self.crop_padding)
        return scale_to_unit(images, self.white)


class StreamedInputs(StepInputs):
    """The images of a step: one batch on the device, at a fixed place, read ahead of the step.

    Random resized crops are made by the reader, from the photos.
    """

    def __init__(
        self,
        split: Split,
        device: torch.device,
        *,
        crop_padding: int | None,
        resized_crops: bool,
        batch_size: int,
        part: slice | None = None,
    ) -> None:
        size = batch_size if part is None else part.stop - part.start
        super().__init__(
            torch.zeros((size, *split.image_shape), dtype=split.pixels.dtype, device=device),
            torch.zeros(size, dtype=torch.long, device=device),
            white=split.white,
            crop_padding=crop_padding,
            batch_size=batch_size,
            part=part,
        )
        self.split, self.resized_crops = split, resized_crops

    def picked(self, stored: torch.Tensor) -> torch.Tensor:
        return stored  # the batch alone

    def feed(self, batches: torch.Tensor, seed: int) -> Generator[None, None, None]:
        positions, device = batches[:, self.part].cpu(), self.pixels.device
        crop = ResizedCropFlip(*self.split.image_shape[1:], seed) if self.resized_crops else None
        read = self.split.pixels.stream((batch.tolist() for batch in positions), crop)
        with contextlib.closing(read):
            for batch, pixels in zip(positions, read, strict=True):
                check_white(pixels, self.white)
                self.pixels.copy_(to_device_async(pixels, device))
                self.labels.copy_(to_device_async(self.split.labels[batch], device))
                self.picks.copy_(to_device_async(batch, device))
                yield


class TrainingStep:
    """Call it once per batch; `loss` is the loss of the last call.

    `generator` draws augmentation and noise; `fast` compiles and captures, only on a GPU, and
    `channels_last` is the layout that the network is given images in. With
    `processes`, `keyed` draws instead, and the loss and the update are those of the whole batch.
    `targets` are the teacher's probabilities (images, classes) on all training images, for
    objectives that are taught, and `memory` (images, classes) what a step updates for those that
    remember and for weights of images; they are set before `prepare`.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        inputs: StepInputs,
        generator: torch.Generator,
        *,
        method: str,
        copies: int,
        average: MovingAverage | None,
        fast: bool,
        channels_last: bool = False,
        processes: Processes | None = None,
    ) -> None:
        self.model, self.optimizer, self.inputs = model, optimizer, inputs
        self.channels_last = channels_last
        self.generator, self.copies, self.average, self.fast = generator, copies, average, fast
        self.processes = processes
        self.keyed = KeyedDraws(inputs.pixels.device, compiled=fast) if processes else None
        self._statistics = GlobalBatchStatistics() if processes else contextlib.nullcontext()
        self.objective = OBJECTIVES[method]
        self.targets: torch.Tensor | None = None
        self.memory: torch.Tensor | None = None
        self.loss = torch.zeros((), device=inputs.pixels.device)
        self.options: ObjectiveOptions | None = None
        self._graph: torch.cuda.CUDAGraph | None = None
        self._forward, self._predict = self._forward_loss, self._predict_frozen

    def prepare(self, options: ObjectiveOptions) -> None:
        """Get ready for these options; captures again if they changed.

        The eager steps before the capture change weights, statistics and generator; all of them
        are restored, so that a captured run takes the same steps as a plain one.
        """
        if options == self.options:
            return
        self.options = options
        if not self.fast:
            return
        self._graph = None
        # Of unequal parts each process would compile a function of its own, and might then reduce
        # in an order of its own.
        if self.processes is None or self.inputs.batch_size % self.processes.count == 0:
            self._compile()
        if self.processes is None:
            self._capture()

    def _compile(self) -> None:
        self._forward = _compiled(self._forward_loss)
        self._predict = _compiled(self._predict_frozen)

    def _capture(self) -> None:
        saved = [tensor.clone() for tensor in self._moved()]
        position = self.generator.get_state()
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARMUP_STEPS):
                self._run()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self.generator)
        self.optimizer.zero_grad(set_to_none=True)
        with capturing(graph, stream):
            self._run()
        self._graph = graph
        for tensor, before in zip(self._moved(), saved, strict=False):
            tensor.copy_(before)
        for extra in self._moved()[len(saved) :]:
            extra.zero_()  # momentum created by the eager steps
        self.generator.set_state(position)

    def __call__(self) -> None:
        if self._graph is not None:
            self._graph.replay()
        else:
            self._run()

    def _run(self) -> None:
        if not self.fast:
            self._step()
            return
        with torch._dynamo.config.patch(
            recompile_limit=MAX_GRAPHS, accumulated_recompile_limit=MAX_GRAPHS
        ):
            self._step()

    def _moved(self) -> list[torch.Tensor]:
        """Every tensor a step changes; momentum last, since the first step creates it."""
        momenta = [
            value
            for state in self.optimizer.state.values()
            for value in state.values()
            if isinstance(value, torch.Tensor)
        ]
        averaged = self.average.tensors.values() if self.average is not None else ()
        remembered = () if self.memory is None else (self.memory,)
        return [*self.model.state_dict().values(), *averaged, *remembered, *momenta]

    def _step(self) -> None:
        assert self.options is not None  # prepare comes first
        # Random numbers first: everything computed from them is one compiled function.
        drawn, noise = self._draw() if self.keyed is None else self._draw_keyed(self.keyed)
        # Not in the compiled function, which candidates of other noise levels can then share.
        noise = self.options.sigma * noise
        uniforms = self._draw_uniforms() if self.objective.taught else None
        attacked = self._attack(drawn, noise) if self.options.attack_steps else None
        with self._statistics:
            loss, remembered = self._forward(drawn, noise, attacked, uniforms)
        if self.memory is not None:
            self.memory.index_copy_(0, self.inputs.picks, remembered)
        self.optimizer.zero_grad(set_to_none=True)
        if self.processes is None:
            loss.backward()  # type: ignore[no-untyped-call]
        else:
            # Every objective is a mean over images, of which this process has its part.
            loss = loss * (len(self.inputs.picks) / self.inputs.batch_size)
            loss.backward()  # type: ignore[no-untyped-call]
            loss = self.processes.sum_gradients(self.model.parameters(), loss)
        self.optimizer.step()
        if self.average is not None:
            self.average.update()
        self.loss.copy_(loss.detach())

    def _draw(self) -> tuple[CropFlips | None, torch.Tensor]:
        drawn = self.inputs.draw(self.generator)
        shape = (self.copies * len(self.inputs.picks), *self.inputs.pixels.shape[1:])
        return drawn, torch.randn(shape, generator=self.generator, device=self.loss.device)

    def _draw_keyed(self, keyed: KeyedDraws) -> tuple[CropFlips | None, torch.Tensor]:
        picks, padding = self.inputs.picks, self.inputs.crop_padding
        drawn = None if padding is None else keyed.crop_flips(picks, padding=padding)
        noise = keyed.noise(picks, (self.copies, *self.inputs.pixels.shape[1:]))
        return drawn, noise.transpose(0, 1).flatten(0, 1)

    def _draw_uniforms(self) -> torch.Tensor:
        """From [0, 1), one for each noisy copy: (copies, images)."""
        if self.keyed is not None:
            return self.keyed.uniforms(self.inputs.picks, self.copies).T
        shape = (self.copies, len(self.inputs.picks))
        return torch.rand(shape, generator=self.generator, device=self.loss.device)

    def _attack(self, drawn: CropFlips | None, noise: torch.Tensor) -> torch.Tensor:
        """Noise that the network classifies worse than the given one."""
        options, attack = self.options, self.objective.attack
        assert options is not None
        assert attack is not None
        images = self.inputs.images(drawn).repeat(self.copies, 1, 1, 1)
        # The teacher's probabilities are of all images, not of a batch as streamed labels are.
        aim = self._batch_targets() if self.objective.taught else self._labels()
        aim = aim.repeat(self.copies, *[1] * (aim.ndim - 1))
        with evaluating(self.model):
            attacked: torch.Tensor = attack(
                lambda delta: self._predict(images + delta),
                noise,
                aim,
                options.attack_steps,
                options.attack_size,
            )
        return attacked

    def _predict_frozen(self, noisy: torch.Tensor) -> torch.Tensor:
        """Logits that are differentiable in the images only."""
        frozen = {name: own.detach() for name, own in self.model.named_parameters()}
        noisy = self._laid_out(noisy)
        with torch.autocast(noisy.device.type, dtype=torch.bfloat16, enabled=self.fast):
            logits: torch.Tensor = torch.func.functional_call(self.model, frozen, (noisy,))
        return logits.float()

    def _labels(self) -> torch.Tensor:
        return self.inputs.picked(self.inputs.labels)

    def _batch_targets(self) -> torch.Tensor:
        assert self.targets is not None  # set before prepare
        return self.targets[self.inputs.picks]

    def _noisy(self, drawn: CropFlips | None, noise: torch.Tensor) -> torch.Tensor:
        """The batch's noisy copies, copy after copy."""
        return self._laid_out(self.inputs.images(drawn).repeat(self.copies, 1, 1, 1) + noise)

    def _laid_out(self, noisy: torch.Tensor) -> torch.Tensor:
        return noisy.contiguous(memory_format=torch.channels_last) if self.channels_last else noisy

    def _logits(self, drawn: CropFlips | None, noise: torch.Tensor) -> torch.Tensor:
        """Of the noisy copies, (copies, images, classes), in training mode."""
        noisy = self._noisy(drawn, noise)
        with torch.autocast(noisy.device.type, dtype=torch.bfloat16, enabled=self.fast):
            logits = self.model(noisy)
        copied: torch.Tensor = logits.float().view(self.copies, len(self.inputs.picks), -1)
        return copied

    def _forward_loss(
        self,
        drawn: CropFlips | None,
        noise: torch.Tensor,
        attacked: torch.Tensor | None,
        uniforms: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The loss, and the memory of the batch after it: nothing without a memory."""
        assert self.options is not None  # prepare comes first
        own = noise if attacked is None or uniforms is not None else attacked
        logits, labels = self._logits(drawn, own), self._labels()
        memory = None if self.memory is None else self.memory[self.inputs.picks]
        # What an objective needs besides the logits.
        more: tuple[Guide | torch.Tensor, ...] = ()
        if uniforms is not None:
            others = logits if attacked is None else self._logits(drawn, attacked)
            more = (Guide(others, self._batch_targets(), uniforms),)
        elif self.objective.remembers and memory is not None:
            more = (memory,)
        losses = self.objective.loss(logits, labels, self.options, *more)
        if memory is None:
            return losses.mean(), logits.new_zeros(0)
        if self.options.largest_probability:
            losses = losses * radius_gains(memory, labels, self.options.largest_probability)
        return losses.mean(), remember(memory, logits.detach())
