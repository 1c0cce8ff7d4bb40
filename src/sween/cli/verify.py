"""`sween verify`"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from sween.attack import outcomes_file, verify_attacks
from sween.cli.options import (
    DataRoot,
    Quiet,
    TrustedArch,
    TrustedDataset,
    choose_device,
    dataset_of,
)
from sween.data.selection import format_indices
from sween.ensemble import LoadedEnsemble
from sween.errors import BadInput, CheckFailed
from sween.runs import CertificationConfig, Shard, verify_folder
from sween.runs.pilots import PilotRun, awaits_plan
from sween.smoothing import recount_folder
from sween.zoo import list_zoo, load


def run(
    folder: Annotated[Path, typer.Argument(help="folder written by sween certify or attack")],
    recount: Annotated[
        str | None,
        typer.Option(help="recount the votes of this many images, or of all; needs the model"),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(help="the certified ensemble [the zoo model with its fingerprint]"),
    ] = None,
    trusted: TrustedDataset = None,
    data_root: DataRoot = None,
    arch: TrustedArch = None,
    device: Annotated[
        str, typer.Option(help="auto, cpu or cuda; the kind of device that certified the run")
    ] = "auto",
    seed: Annotated[
        int | None, typer.Option(help="seed for choosing the images [random, printed]")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Re-derive every row of a run from its votes.

    Exit code 1 reports the first mismatch. This needs no model, and finds rows that are
    inconsistent with their votes, the run's config or each other. It cannot prove that the votes
    were ever cast: fabricated votes, labels or seeds and swapped images, with recomputed checksums,
    are found by --recount, which counts the votes of some images again with the model and the data
    and compares them bit for bit.
    """
    given = any(option is not None for option in (model, trusted, data_root, arch, seed))
    if recount is None and (given or device != "auto"):
        raise BadInput(
            "--model, --dataset, --data-root, --arch, --device and --seed: expected to be used "
            "with --recount, got no --recount; add --recount 20"
        )
    images = None if recount is None else _images(recount)
    if outcomes_file(folder) is not None:
        if recount is not None:
            raise BadInput(
                f"--recount: expected a folder written by sween certify, got {folder}, written by "
                "sween attack; leave --recount out"
            )
        attack = verify_attacks(folder)
        typer.echo(
            f"{attack.rows} rows re-derived: {attack.images} images, "
            f"{attack.broken} successful attacks, {attack.alarms} alarms{_part(attack.shard)}"
        )
        return
    if awaits_plan(folder):
        pilots = PilotRun.verify(folder)
        raise CheckFailed(
            f"{folder}: shard {pilots.shard} has pilot votes on all its {len(pilots.indices)} "
            "images, but no certificates yet; run sween merge on all shards, and then the same "
            "`sween certify`"
        )
    verified = verify_folder(folder)
    lines = [
        f"{verified.rows} rows re-derived: {verified.images} images, "
        f"{len(verified.models)} model{'s' * (len(verified.models) != 1)} "
        f"({', '.join(verified.models)}), "
        f"{verified.certified} certified, {verified.rows - verified.certified} abstained"
        f"{_part(verified.shard)}"
    ]
    if recount is not None:
        config = CertificationConfig.read(folder).content
        loaded = _model_of(config, model, arch or ())
        dataset = dataset_of(
            loaded,
            data_root,
            trusted=trusted,
            convert=config.get("convert") is True,
            test_only=True,
        )
        kind = "cpu" if device == "auto" and config.get("device") == "cpu" else device
        again = recount_folder(
            folder, loaded.to(choose_device(kind)), dataset, images=images, seed=seed, quiet=quiet
        )
        every = len(again.indices) == verified.images
        chosen = "all" if every else f"chosen by --seed {again.seed}"
        lines.append(
            f"{again.rows} rows of {len(again.indices)} images ({chosen}: "
            f"{format_indices(again.indices)}) recounted: all votes are identical"
        )
    typer.echo("\n".join(lines))


def _part(shard: Shard | None) -> str:
    return "" if shard is None else f"; shard {shard} is complete, sween merge joins it with others"


def _images(text: str) -> int | None:
    """How many images to recount; None means all of them."""
    if text == "all":
        return None
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise BadInput(
            "--recount", expected="a number of images, or all", got=text, fix="try --recount 20"
        )
    return int(text)


def _model_of(
    config: Mapping[str, Any], source: Path | None, archs: Sequence[str]
) -> LoadedEnsemble:
    """The given ensemble, else the zoo model that the run certified."""
    if source is not None:
        return load(source, archs=archs)
    for entry in list_zoo():
        if (entry.dataset, list(entry.members)) == (config["dataset"], config["candidates"]):
            loaded = load(entry.name)
            if loaded.fingerprint == config.get("fingerprint"):
                return loaded
    raise BadInput(
        "--model",
        expected=f"the ensemble with the fingerprint {str(config.get('fingerprint'))[:16]}",
        got="no --model, and no zoo model has that fingerprint",
        fix="pass the certified ensemble folder as --model, or, for a module of your own that "
        "certify_dataset certified, call sween.smoothing.recount_folder in Python",
    )
