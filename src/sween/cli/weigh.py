"""`sween weigh`"""

from pathlib import Path
from typing import Annotated

import typer

from sween.cli.completion import complete_from
from sween.cli.options import (
    Convert,
    DataRoot,
    Device,
    Quiet,
    Seed,
    TrustedArch,
    TrustedDataset,
    choose_device,
    dataset_of,
)
from sween.engine import prepared_ensemble
from sween.ensemble import METHODS, LoadedEnsemble, WeightSolution, load_members, weigh
from sween.ensemble.folder import new_ensemble, write_ensemble


def run(
    runs: Annotated[list[Path], typer.Argument(help="run folders of the candidates")],
    out: Annotated[Path, typer.Option(help="ensemble folder to write; replaces one that is there")],
    method: Annotated[
        str,
        typer.Option(
            help=f"one of {', '.join(METHODS)}", autocompletion=complete_from(lambda: METHODS)
        ),
    ] = METHODS[0],
    samples: Annotated[int, typer.Option(help="noise samples per image")] = 100,
    trusted: TrustedDataset = None,
    data_root: DataRoot = None,
    convert: Convert = False,
    arch: TrustedArch = None,
    seed: Seed = 0,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Solve for the ensemble weights on the held-out split."""
    with new_ensemble(out) as building:
        loaded = load_members(runs, archs=arch or ())
        dataset = dataset_of(loaded, data_root, trusted=trusted, convert=convert)
        loaded.to(choose_device(device))
        solution = weigh(
            loaded,
            dataset,
            method=method,
            samples=samples,
            seed=seed,
            quiet=quiet,
            evaluated=prepared_ensemble(loaded, evaluations=samples * len(dataset.weights)),
        )
        write_ensemble(loaded, runs, solution, building)
    for name, weight in zip(loaded.member_names, solution.weights, strict=True):
        typer.echo(f"{name:24} {weight:.6f}")
    if note := _note(loaded, solution):
        typer.echo(note, err=True)
    if method == "acr":
        votes = f"{samples:,} votes on each of {len(dataset.weights):,} held-out images"
        typer.echo(f"average certified radius {-solution.loss:.4f} by {votes}; in {out}")
        return
    typer.echo(
        f"loss {solution.loss:.6f} nats, at most {solution.gap:.3g} above the optimum; in {out}"
    )


def _note(loaded: LoadedEnsemble, solution: WeightSolution) -> str:
    """Says so if members trained with more noise than others got less than half an equal share.

    Cross-entropy does that even where such members would enlarge the radius.
    """
    factors = [own.training.get("noise_factor") or 1.0 for own in loaded.manifests]
    noisier = [factor > min(factors) for factor in factors]
    share = sum(w for w, more in zip(solution.weights, noisier, strict=True) if more)
    if solution.method not in ("sgd", "convex") or share >= 0.5 * sum(noisier) / len(noisier):
        return ""
    return (
        f"note: members that were trained with more noise than others got {share:.2g} of the "
        "weight together, though they may add to the radius: compare with --method acr and uniform"
    )
