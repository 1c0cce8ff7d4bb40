"""Writes the rates for `sween reproduce --dry-run`: python docs/update_rates.py [--check]

A rate is the multiply-adds of all runs of a kind in results/ over their seconds. On a GPU these are
the training folders (compiling included), weights, certificates of ensembles with their members and
AutoAttack's `rand`, as in the plans, by the version at hand, or by all where it has made none; on a
CPU what benchmarks/reproduce_speed.py measured. With --check nothing is written and the exit code
says whether the file is up to date.
"""

import functools
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import sween
from sween.models import count_flops, create_model
from sween.records import read_certificates
from sween.reproduce.rates import (
    KINDS,
    MEASURED,
    Kind,
    attack_work,
    certification_work,
    training_work,
    weighing_work,
)
from sween.run_folder import read_config
from sween.runs import CertificationConfig, TrainingRun
from sween.runs.attack import AttackRun
from sween.training import TrainConfig

RESULTS = Path(__file__).parents[1] / "results"
SHAPE, TRAIN_IMAGES, WEIGHTS_IMAGES = (3, 32, 32), 48_000, 2_000
"""Of the CIFAR-10 runs in results/."""

ENSEMBLES = "cifar10-[si]*-*-sigma*"
"""Folders of ensembles: SWEEN-3 and SWEEN-6, and networks of identical architecture."""

Measurement = tuple[Path, float, float]
"""Folder or file, multiply-adds, seconds."""


@functools.cache
def multiply_adds(arch: str) -> float:
    return float(count_flops(create_model(arch, num_classes=10, image_shape=SHAPE), SHAPE))


def _of(archs: Iterable[str]) -> float:
    return sum(multiply_adds(arch) for arch in archs)


def _arch(member: str) -> str:
    """The architecture of a member, whose name may end in its seed."""
    return member.partition("-seed")[0]


def _by_this_version(folders: Iterable[Path]) -> list[Path]:
    """Those that this version made, or whose parts it made; all if there are none."""
    known = sorted(folders)
    own = [folder for folder in known if any(map(_is_ours, folder.rglob("environment.json")))]
    return own or known


def _is_ours(environment: Path) -> bool:
    found = json.loads(environment.read_text(encoding="utf-8"))["sween"]
    return bool(found == sween.__version__)


def _training() -> Iterator[Measurement]:
    """Candidates that were trained at once, each of which counts the whole time."""
    for folder in _by_this_version(RESULTS.glob(f"{ENSEMBLES}/training")):
        # Some may have been trained earlier, with others.
        runs = [TrainingRun.read(path) for path in _by_this_version(folder.iterdir())]
        configs = [TrainConfig.from_dict(dict(run.config.content)) for run in runs]
        work = sum(
            training_work(
                multiply_adds(config.arch),
                images=TRAIN_IMAGES,
                copies=config.noisy_copies,
                epochs=len(run.metrics),
            )
            for run, config in zip(runs, configs, strict=True)
        )
        yield folder, work, max(run.seconds for run in runs)


def _weighing() -> Iterator[Measurement]:
    for folder in _by_this_version(RESULTS.glob(f"{ENSEMBLES}/weights/*")):
        config = read_config(folder)
        options = {"samples": config["samples"], "method": config["method"]}
        work = weighing_work(_of(map(_arch, config["members"])), images=WEIGHTS_IMAGES, **options)
        yield folder, work, config["seconds"]


def _certification() -> Iterator[Measurement]:
    for folder in _by_this_version(RESULTS.glob(ENSEMBLES)):
        config = CertificationConfig.read(folder)
        # Each voter's row has the time of the whole pass over its image.
        seconds = {row.index: row.seconds for row in read_certificates(folder)}
        samples = config.settings.n0 + config.settings.n
        passes = _of(map(_arch, config.members))
        yield (
            folder,
            certification_work(passes, images=len(seconds), samples=samples),
            sum(seconds.values()),
        )


def _attacks() -> Iterator[Measurement]:
    for folder in _by_this_version((RESULTS / "attacks").glob("rand-*")):
        run = AttackRun.read(folder)
        content = run.config.content
        alone = content["model"] in content["candidates"]
        work = attack_work(
            _of([content["model"]] if alone else content["candidates"]),
            images=len({row.index for row in run.rows}),
            samples=content["samples"],
            eps=len(content["eps"]),
        )
        yield folder, work, sum(row.seconds for row in run.rows)


def _rate(machine: str, measurements: Sequence[Measurement]) -> dict[str, Any]:
    work = sum(measurement[1] for measurement in measurements)
    seconds = sum(measurement[2] for measurement in measurements)
    return {
        "multiply_adds_per_second": float(f"{work / seconds:.3g}"),
        "machine": machine,
        "from": [path.relative_to(RESULTS.parent).as_posix() for path, *_ in measurements],
    }


def measured() -> str:
    """The content of rates.json."""
    on_gpu: dict[Kind, Iterator[Measurement]] = {
        "train": _training(),
        "weigh": _weighing(),
        "certify": _certification(),
        "attack": _attacks(),
    }
    file = RESULTS / "reproduce-speed" / "cpu.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    on_cpu = {
        kind: [
            (file, row["multiply_adds"], row["seconds"])
            for row in content["rows"]
            if row["kind"] == kind
        ]
        for kind in KINDS
    }
    machine = f"{content['environment']['threads']} cores of {content['environment']['processor']}"
    rates = {
        "cuda": {kind: _rate("one NVIDIA H200", list(own)) for kind, own in on_gpu.items()},
        "cpu": {kind: _rate(machine, own) for kind, own in on_cpu.items()},
    }
    return json.dumps(rates, indent=2) + "\n"


def main() -> int:
    text = measured()
    if "--check" in sys.argv[1:]:
        return int(MEASURED.read_text(encoding="utf-8") != text)
    MEASURED.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
