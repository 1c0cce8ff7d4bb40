"""What training and certifying cost: seconds of an epoch, of the weights, and of a certificate.

Training is measured over a few epochs of each network alone; totals are extrapolated.
"""

import abc
import dataclasses
import json
import statistics
import time
from pathlib import Path
from typing import Any

from sween.bench import measure
from sween.ensemble import LoadedEnsemble, weigh
from sween.models import count_flops, count_parameters
from sween.reproduce.plan import Candidate, Ensemble
from sween.reproduce.rates import Kind, Work, training_work, weighing_work
from sween.reproduce.steps import Step
from sween.reproduce.workspace import Workspace
from sween.run_folder import describe_environment, write_text
from sween.runs.training import TrainingRun
from sween.training import TrainConfig, train_many

EPOCHS = 4
"""Epochs trained to measure one: the median of all but the first, which compiles."""

BENCH_SECONDS = 3.0
"""Of one measurement of the speed; there are three rounds."""


class _Measured(Step):
    """A measurement that is kept as one row of a JSON file, with what was measured."""

    def __init__(self, space: Workspace, sigma: float, model: str) -> None:
        self.space, self.sigma, self.model = space, sigma, model
        self.file = cost_file(space, sigma, model)
        self.name = f"measure the cost of {model} at sigma {sigma:.2f}"

    @property
    def makes(self) -> tuple[Path, ...]:
        return (self.file,)

    def check(self) -> None:
        """Nothing: measurements of other settings are made anew."""

    @abc.abstractmethod
    def subject(self) -> dict[str, Any]:
        """What is measured: a row of anything else does not count."""

    def is_done(self) -> bool:
        if not self.file.is_file():
            return False
        row = json.loads(self.file.read_text("utf-8"))
        # Compared as JSON, which has lists for tuples.
        return bool(row.get("of") == json.loads(json.dumps(self._of())))

    def _of(self) -> dict[str, Any]:
        return {"device": self.space.devices[0].type, **self.subject()}

    def keep(self, row: dict[str, Any]) -> None:
        environment = describe_environment()
        content = {"model": self.model, **row, "of": self._of(), "environment": environment}
        self.file.parent.mkdir(parents=True, exist_ok=True)
        write_text(self.file, json.dumps(content) + "\n")

    def _work(self, kind: Kind, passes: float, done: float = 0.0, unit: float = 0.0) -> Work:
        """Without its seconds: networks alone, for a few epochs, are slower than plans are."""
        return Work(kind, passes, passes if self.is_done() else done, unit=unit)


class NetworkCost(_Measured):
    """Seconds of an epoch of one candidate, its size, and its speed as a smoothed classifier."""

    def __init__(self, space: Workspace, candidate: Candidate, name: str, sigma: float) -> None:
        super().__init__(space, sigma, name)
        self.candidate = candidate

    @property
    def folder(self) -> Path:
        return self.file.with_suffix("")

    def subject(self) -> dict[str, Any]:
        config = self.space.config(self.candidate, self.sigma)
        return {"training": config.as_dict(), **self.space.training_images(config)}

    def work(self) -> Work:
        config = self.space.config(self.candidate, self.sigma)
        epoch = training_work(
            self.space.multiply_adds[self.model],
            images=len(self.space.dataset.train),
            copies=config.noisy_copies,
            epochs=1,
        )
        trained = 0
        if TrainingRun.is_at(self.folder):
            trained = len(TrainingRun.read(self.folder).metrics)
        return self._work("train", EPOCHS * epoch, trained * epoch, epoch)

    def run(self) -> None:
        config = self.space.config(self.candidate, self.sigma)
        train_many(
            [short(config)],
            self.space.dataset,
            [self.folder],
            device=self.space.devices[0],
            quiet=self.space.quiet,
        )
        seconds = [row.seconds for row in TrainingRun.read(self.folder).metrics]
        epoch = mean_epoch(config, statistics.median(seconds[1:]))
        row = {"epochs": config.epochs, "seconds_per_epoch": epoch, "measured": seconds}
        self.keep(row | speed(self.space, self.space.load_members([self.folder])))


class EnsembleCost(_Measured):
    """Seconds of solving the weights, and the ensemble's size and speed."""

    def __init__(self, space: Workspace, ensemble: Ensemble, sigma: float) -> None:
        super().__init__(space, sigma, ensemble.name)
        self.ensemble = ensemble

    def subject(self) -> dict[str, Any]:
        """Of members, by what was measured of each."""
        named, weighing = self.space.plan.named, self.space.plan.weigh
        members = [
            NetworkCost(self.space, named[name], name, self.sigma).subject()
            for name in self.ensemble.members
        ]
        return {
            "members": members,
            "method": weighing.methods[0],
            "samples": weighing.samples,
        }

    def work(self) -> Work:
        passes = weighing_work(
            sum(self.space.multiply_adds[name] for name in self.ensemble.members),
            images=len(self.space.dataset.weights),
            samples=self.space.plan.weigh.samples,
            method=self.space.plan.weigh.methods[0],
        )
        return self._work("weigh", passes)

    def run(self) -> None:
        folders = [
            cost_file(self.space, self.sigma, name).with_suffix("")
            for name in self.ensemble.members
        ]
        loaded = self.space.load_members(folders).to(self.space.devices[0])
        began = time.perf_counter()
        weigh(
            loaded,
            self.space.dataset,
            method=self.space.plan.weigh.methods[0],
            samples=self.space.plan.weigh.samples,
            quiet=self.space.quiet,
            evaluated=self.space.prepared(loaded),
        )
        row = {"weights_seconds": time.perf_counter() - began, "members": self.ensemble.members}
        self.keep(row | speed(self.space, loaded))


def short(config: TrainConfig) -> TrainConfig:
    """The work of its last epochs, for a few epochs: everything that starts late starts at once."""
    late: dict[str, float] = {"regulariser_from": 0}
    if config.options_at(config.epochs - 1).attack_steps:
        late["attack_from"] = 0
    if config.weighing is not None:
        late |= {"reweigh_from": 0, "drop_below": 0.0}  # it would drop almost all images so early
    if config.radius_gain is not None:
        late["radius_gain_from"] = 0
    shortened: dict[str, Any] = {"schedule": "constant", "milestones": (), "warmup": 0.0, **late}
    return dataclasses.replace(config, epochs=EPOCHS, **shortened)


def mean_epoch(config: TrainConfig, last: float) -> float:
    """Seconds of an epoch on average, if one of the last takes `last`: attacks begin late."""
    passes = [config.passes_at(epoch) for epoch in range(config.epochs)]
    return last * statistics.mean(passes) / passes[-1]


def speed(space: Workspace, loaded: LoadedEnsemble) -> dict[str, Any]:
    """Parameters, multiply-adds, samples per second and seconds of a certificate."""
    result = measure(
        loaded.to(space.devices[0]),
        space.dataset.test.images([0])[0],
        name=loaded.name,
        sigma=loaded.sigma,
        num_classes=loaded.num_classes,
        seconds=BENCH_SECONDS,
    )
    flops = sum(count_flops(member, loaded.image_shape) for member in loaded.members)
    return {
        "parameters": sum(count_parameters(member) for member in loaded.members),
        "flops": flops,
        "samples_per_second": result.samples_per_second,
        "seconds_per_certificate": result.seconds_per_certificate,
    }


def cost_file(space: Workspace, sigma: float, model: str) -> Path:
    """Where the cost of a network or an ensemble is kept."""
    folder = f"{space.plan.shared}-{space.recipe}-sigma{sigma:.2f}"
    return space.out / "costs" / folder / f"{model}.json"


def cost_steps(space: Workspace, sigma: float) -> list[Step]:
    """Every network of the plan alone, then its ensembles."""
    named = space.plan.named.items()
    networks = [NetworkCost(space, candidate, name, sigma) for name, candidate in named]
    return [*networks, *(EnsembleCost(space, one, sigma) for one in space.plan.ensembles)]
