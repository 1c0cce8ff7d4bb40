"""`sween plan certify`"""

import json
from pathlib import Path
from typing import Annotated

import typer

from sween.cli.completion import complete_from
from sween.cli.options import (
    Alpha,
    BatchSize,
    Bound,
    Budget,
    Compile,
    Convert,
    DataRoot,
    Device,
    EstimationVotes,
    Exit,
    ExitAlpha,
    ExitThreshold,
    ForwardRows,
    NoiseOption,
    Precision,
    Quiet,
    RadiusToDecide,
    Sampling,
    Seed,
    SelectionVotes,
    SkipUnreadable,
    Tolerance,
    TrustedArch,
    TrustedDataset,
    VotesOption,
    choose_device,
    choose_exits,
    dataset_of,
    readable_images,
)
from sween.errors import BadInput
from sween.runs import CertificationRun
from sween.sampling import CertifySettings
from sween.sampling.settings import ALPHA, N
from sween.smoothing import SmoothedClassifier
from sween.theory import predict_cost
from sween.theory.certification_cost import check_request
from sween.theory.pilot import pilot_positions, run_pilot
from sween.zoo import load
from sween.zoo.entries import model_folders

_OF_THE_PILOT = (
    *("source", "pilot", "exit_name", "exit_threshold", "exit_alpha", "trusted", "data_root"),
    *("convert", "skip_unreadable", "arch", "batch_size", "forward_rows", "precision", "compile"),
    *("noise", "device"),
)
"""Parameters without a meaning where a recorded run is the pilot."""


def run(
    context: typer.Context,
    source: Annotated[
        Path | None,
        typer.Argument(
            metavar="[ENSEMBLE]",
            help="as in sween certify; its votes are the pilot",
            autocompletion=complete_from(model_folders),
        ),
    ] = None,
    certificates: Annotated[
        Path | None,
        typer.Option(help="instead of an ensemble: a certification run, whose votes are the pilot"),
    ] = None,
    images: Annotated[
        int | None, typer.Option(help="images to certify [all test images, or those of the run]")
    ] = None,
    pilot: Annotated[
        int | None, typer.Option(help="images of the pilot [100 if sampling is fixed, else 2000]")
    ] = None,
    rate: Annotated[
        float | None, typer.Option(help="member evaluations per second of a GPU [the pilot's]")
    ] = None,
    bench: Annotated[
        Path | None, typer.Option(help="file of sween bench --out, which has the rate instead")
    ] = None,
    gpus: Annotated[int, typer.Option(help="GPUs that share the images")] = 1,
    price: Annotated[float | None, typer.Option(help="price of an hour of one GPU")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print everything as JSON")] = False,
    n0: SelectionVotes = None,
    n: EstimationVotes = N,
    alpha: Alpha = ALPHA,
    exit_name: Exit = "none",
    exit_threshold: ExitThreshold = None,
    exit_alpha: ExitAlpha = None,
    bound: Bound = "cohen",
    sampling: Sampling = "fixed",
    votes: VotesOption = "hard",
    radius: RadiusToDecide = None,
    tolerance: Tolerance = None,
    budget: Budget = None,
    trusted: TrustedDataset = None,
    data_root: DataRoot = None,
    convert: Convert = False,
    skip_unreadable: SkipUnreadable = False,
    arch: TrustedArch = None,
    batch_size: BatchSize = None,
    forward_rows: ForwardRows = None,
    precision: Precision = "auto",
    compile: Compile = None,
    noise: NoiseOption = "float32",
    seed: Seed = 0,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Predict what a certification costs: samples, evaluations, device hours and money.

    A pilot with few votes on some random test images shows how many samples the images will take;
    nothing is written.
    """
    settings = CertifySettings(
        n0=n0,  # type: ignore[arg-type]  # None is the strategy's default
        n=n,
        alpha=alpha,
        bound=bound,
        sampling=sampling,
        seed=seed,
        radii=tuple(radius or ()),
        tolerance=tolerance,
        budget=budget,
        votes=votes,
    )
    if (source is None) == (certificates is None):
        raise BadInput(
            "plan certify",
            expected="an ensemble or --certificates",
            got="neither" if source is None else "both",
            fix="name an ensemble, as in sween certify",
        )
    check_request(1 if images is None else images, gpus, rate, price)
    if rate is not None and bench is not None:
        raise BadInput("--rate", expected="no --bench next to it", got="both", fix="keep one")
    of_rate = "cuda" if rate is not None else None
    if bench is not None:
        rate, of_rate = _measured_rate(bench, source)
    if source is None:
        assert certificates is not None
        _refuse_options_of_the_pilot(context)
        run = CertificationRun.read(certificates)
        rows, most, of_pilot = run.certificates, len(run.indices), run.config.device
    else:
        policy = choose_exits([exit_name], exit_threshold, exit_alpha)[0]
        loaded = load(source, archs=arch or ())
        dataset = dataset_of(loaded, data_root, trusted=trusted, convert=convert, test_only=True)
        most = len(dataset.test)
        positions, _ = readable_images(
            dataset,
            pilot_positions(most, pilot, settings),
            skip_unreadable=skip_unreadable,
            quiet=quiet,
        )
        chosen = choose_device(device)
        of_pilot = chosen.type
        smoothed = SmoothedClassifier(
            loaded.to(chosen),
            sigma=loaded.sigma,
            num_classes=loaded.num_classes,
            exit=policy,
            precision=precision,
            compile=compile,
            noise=noise,
            levels=dataset.test.white,
            batch_size=batch_size,
            forward_rows=forward_rows,
        )
        rows = run_pilot(smoothed, dataset.test, positions, settings, quiet=quiet)
    cost = predict_cost(
        rows,
        settings,
        images=most if images is None else images,
        evaluations_per_second=rate,
        gpus=gpus,
        price=price,
        device=of_rate or of_pilot or "cuda",
    )
    typer.echo(json.dumps(cost.as_dict(), indent=2) if as_json else cost)


def _refuse_options_of_the_pilot(context: typer.Context) -> None:
    for parameter in context.command.params:
        given = context.get_parameter_source(str(parameter.name))
        if parameter.name in _OF_THE_PILOT and given is not None and given.name == "COMMANDLINE":
            raise BadInput(
                parameter.opts[0],
                expected="no such option with --certificates, whose run is the pilot",
                got=parameter.opts[0],
                fix="leave it out",
            )


def _measured_rate(file: Path, source: Path | None) -> tuple[float, str]:
    """Evaluations per second of the ensemble in a file of `sween bench`, or of its only model.

    With the kind of device.
    """
    try:
        results = json.loads(file.read_text(encoding="utf-8"))["results"]
        rates = {
            str(row["model"]): (float(row["evaluations_per_second"]), row.get("device", "cuda"))
            for row in results
        }
    except (ValueError, TypeError, KeyError) as error:
        raise BadInput(
            str(file), expected="a file of sween bench --out", got=error, fix="measure it again"
        ) from None
    if len(rates) == 1:
        return next(iter(rates.values()))
    if str(source) not in rates:
        raise BadInput(
            str(file),
            expected=f"a rate of {source or 'one model'}",
            got=", ".join(rates) or "none",
            fix="pass the right one as --rate",
        )
    return rates[str(source)]
