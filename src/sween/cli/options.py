"""Options shared by several verbs."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer

from sween.bounds import BOUNDS
from sween.cli.completion import complete_from
from sween.data import Dataset, load_dataset, parse_indices
from sween.data.registry import find_dataset
from sween.data.selection import few_classes_note
from sween.engine import COMPILE_MODES, DEFAULT_COMPILE_MODE, NOISES, PRECISIONS
from sween.ensemble import EXITS, ExitPolicy, LoadedEnsemble
from sween.ensemble.early_exit import read_exit
from sween.errors import BadInput
from sween.factories import check_consent
from sween.models.device import as_device
from sween.runs import Shard
from sween.sampling import VOTES, sampling_names
from sween.zoo.entries import model_folders

Source = Annotated[
    Path,
    typer.Argument(
        help="ensemble folder, run folder, checkpoint file or zoo name",
        autocompletion=complete_from(model_folders),
    ),
]
TrustedDataset = Annotated[
    str | None,
    typer.Option(
        "--dataset", help="package.module:factory that the checkpoint names and you trust"
    ),
]
DataRoot = Annotated[Path | None, typer.Option(help="folder with the data set's files")]
Indices = Annotated[
    str | None,
    typer.Option(help="test images: START:STOP[:STEP] or numbers, such as 888:1888 or 0,5,9"),
]
ImageSize = Annotated[
    int | None, typer.Option(help="image height and width in pixels, for image_folder")
]
Convert = Annotated[
    bool,
    typer.Option(
        "--convert", help="convert image files of other colour modes to the network's: RGB or gray"
    ),
]
SkipUnreadable = Annotated[
    bool,
    typer.Option("--skip-unreadable", help="skip image files that cannot be read"),
]
DEVICES = ("auto", "cpu", "cuda")
Device = Annotated[
    str, typer.Option(help="auto, cpu or cuda", autocompletion=complete_from(lambda: DEVICES))
]
Seed = Annotated[int, typer.Option(help="random seed")]
Quiet = Annotated[bool, typer.Option("--quiet", help="no progress display")]
TrustedArch = Annotated[
    list[str] | None,
    typer.Option(
        "--arch",
        help="package.module:factory that the checkpoint names and you trust; may be repeated",
    ),
]
Alpha = Annotated[float, typer.Option(help="failure probability of each answer")]
EXIT_HELP = "early exit: none, paper, exact or mixed(threshold=T,share=S)"
Exit = Annotated[
    str, typer.Option("--exit", help=EXIT_HELP, autocompletion=complete_from(lambda: EXITS))
]
ExitThreshold = Annotated[
    float | None, typer.Option(help=f"T of the paper's Algorithm 1 [{ExitPolicy.threshold}]")
]
ExitAlpha = Annotated[
    float | None,
    typer.Option(help=f"significance level of the paper's Algorithm 1 [{ExitPolicy.alpha}]"),
]
BatchSize = Annotated[
    int | None, typer.Option(help="noisy images per batch; does not affect results")
]
ForwardRows = Annotated[
    int | None, typer.Option(help="noisy images per forward pass; lower it if memory runs out")
]
Precision = Annotated[
    str,
    typer.Option(
        help=f"numerical precision of the networks: {', '.join(PRECISIONS)}",
        autocompletion=complete_from(lambda: PRECISIONS),
    ),
]
Compile = Annotated[bool | None, typer.Option(help="compile the networks [on a GPU only]")]
CompileMode = Annotated[
    str | None,
    typer.Option(
        help=f"how to compile: {' or '.join(COMPILE_MODES)}; fast starts in seconds, max searches "
        f"for the fastest kernels for minutes [{DEFAULT_COMPILE_MODE}]",
        autocompletion=complete_from(lambda: COMPILE_MODES),
    ),
]
NoiseOption = Annotated[
    str,
    typer.Option(
        "--noise",
        help="float32, or exact: certificates that hold in floating point",
        autocompletion=complete_from(lambda: NOISES),
    ),
]
ShardOption = Annotated[
    str | None,
    typer.Option("--shard", help="only this part, e.g. 3/16, into a folder for sween merge"),
]
Bound = Annotated[
    str, typer.Option(help="cohen or two-class", autocompletion=complete_from(lambda: BOUNDS))
]
SelectionVotes = Annotated[
    int | None,
    typer.Option(help="votes that select the class [100; with tolerance or budget 1000]"),
]
EstimationVotes = Annotated[int, typer.Option(help="votes that bound its probability")]
Sampling = Annotated[
    str,
    typer.Option(
        help=f"one of {', '.join(sampling_names())}", autocompletion=complete_from(sampling_names)
    ),
]
VotesOption = Annotated[
    str,
    typer.Option(
        "--votes",
        help="hard, or soft: certify the mean probability instead",
        autocompletion=complete_from(lambda: VOTES),
    ),
]
RadiusToDecide = Annotated[
    list[float] | None,
    typer.Option(
        "--radius", help="with --sampling decide: l2 radius to certify or not; may be repeated"
    ),
]
Tolerance = Annotated[
    float | None,
    typer.Option(help="with --sampling tolerance: share of the radius that may be lost"),
]
Budget = Annotated[
    int | None,
    typer.Option(help="with --sampling budget: noisy images in total, pilots included"),
]


def read_shard_option(text: str | None) -> Shard | None:
    """The shard of `--shard`, if given."""
    return None if text is None else Shard.parse(text)


def choose_compilation(compile: bool | None, mode: str | None) -> bool | str | None:
    """`compile` of `SmoothedClassifier`, from --compile and --compile-mode."""
    if compile is False and mode is not None:
        raise BadInput(
            "--compile-mode", expected="no --no-compile", got=mode, fix="leave one of them out"
        )
    return compile if mode is None else mode


def choose_exits(
    names: Sequence[str], threshold: float | None, alpha: float | None
) -> list[ExitPolicy]:
    """The exits of `--exit`; refuses parameters that none of them has."""
    options = {"threshold": threshold, "alpha": alpha}
    given = {name: value for name, value in options.items() if value is not None}
    policies = [read_exit(name, **given) for name in names]
    for option in given:
        if not any(option in policy.rule.parameters for policy in policies):
            raise BadInput(
                f"--exit-{option}",
                expected="an exit that has it, such as paper",
                got=f"--exit {' --exit '.join(names)}",
                fix="leave it out",
            )
    return policies


def choose_device(name: str) -> torch.device:
    """The device of this name; `auto` is a GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return as_device("--device", name, fix="try auto")


def choose_devices(name: str) -> list[torch.device]:
    """The devices that share a run; `auto` and `cuda` take all GPUs."""
    first = choose_device(name)
    if first.type == "cuda" and first.index is None:
        return [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    return [first]


def dataset_of(
    loaded: LoadedEnsemble,
    root: Path | None,
    *,
    trusted: str | None = None,
    convert: bool = False,
    test_only: bool = False,
) -> Dataset:
    """The data set that an ensemble's members were trained for, at their image size.

    Args:
        loaded: the ensemble.
        root: of `--data-root`.
        trusted: of `--dataset`. Loading a data set by its factory imports a module, and a
            checkpoint may name any module: it is imported only if the caller names it too.
        convert: of `--convert`.
        test_only: do not load the training images.
    """
    name = loaded.dataset
    if trusted not in (None, name):
        raise BadInput(
            "--dataset", expected=f"{name}, as the members have", got=trusted, fix="pass that one"
        )
    check_consent(name, given=trusted, where="the checkpoint", kind="dataset")
    size = loaded.image_shape[1] if find_dataset(name).reads_files else None
    return load_dataset(name, root, image_size=size, convert=convert, test_only=test_only)


def choose_images(
    dataset: Dataset,
    *,
    indices: str | None,
    every: int | None,
    everything: bool,
    skip_unreadable: bool,
    quiet: bool,
) -> tuple[list[int], list[int]]:
    """The selected test images that can be read, and those that are skipped.

    Only the selected files are read.

    Raises:
        BadInput: an image cannot be read and is not to be skipped, or none can be read.
    """
    asked = parse_indices(
        indices=indices, every=every, everything=everything, size=len(dataset.test)
    )
    if indices is not None:
        note = few_classes_note(asked, dataset.test.labels.tolist(), dataset.class_names)
        if note is not None:
            warnings.warn(note, stacklevel=2)
    return readable_images(dataset, asked, skip_unreadable=skip_unreadable, quiet=quiet)


def readable_images(
    dataset: Dataset, asked: list[int], *, skip_unreadable: bool, quiet: bool
) -> tuple[list[int], list[int]]:
    """Those of some test images that can be read, and those that are skipped.

    Raises:
        BadInput: an image cannot be read and is not to be skipped, or none can be read.
    """
    unreadable = dataset.test.pixels.unreadable(asked, quiet=quiet)
    if not unreadable:
        return asked, []
    reasons = [f"image {position}, {error}" for position, error in unreadable.items()]
    if not skip_unreadable or len(unreadable) == len(asked):
        more = f"; {len(reasons) - 1} more like it" if len(reasons) > 1 else ""
        fix = "" if skip_unreadable else ", or leave such images out with --skip-unreadable"
        raise BadInput(reasons[0] + more + fix)
    warnings.warn(
        f"{len(reasons)} of {len(asked)} images left out: {'; '.join(reasons[:3])}"
        + ("; ..." if len(reasons) > 3 else ""),
        stacklevel=2,
    )
    return [position for position in asked if position not in unreadable], list(unreadable)
