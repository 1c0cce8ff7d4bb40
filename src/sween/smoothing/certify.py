"""From votes to certificates, image by image, for every classifier of a panel."""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Generator, Iterable, Sequence

import torch

from sween.bounds.binomial import upper_bound
from sween.bounds.decision import decide, decide_radii, decide_soft
from sween.bounds.radius import level_of_class
from sween.bounds.sample_size import sizes_for_budget
from sween.engine.engine import VoteEngine
from sween.engine.noise import Noise
from sween.engine.tally import Asked
from sween.errors import BadInput
from sween.records import Certificate
from sween.smoothing.draws import (
    Counting,
    Drawn,
    OnProgress,
    Plan,
    decided,
    images_at_once,
    planned,
    softly,
)
from sween.smoothing.settings import CertifySettings

MOST_MISSING = 0.5
"""The tail that is never drawn may have so much of the smallest miss probability votes can show."""


def certify_each(
    engine: VoteEngine,
    images: torch.Tensor,
    indices: Sequence[int],
    labels: Sequence[int | None],
    settings: CertifySettings,
    *,
    plans: Sequence[Plan] | None = None,
    on_progress: OnProgress | None = None,
) -> Generator[list[Certificate], None, None]:
    """For each image in turn, the certificates of every classifier of the panel.

    Images that run out of memory are started again in smaller forward passes.

    Args:
        engine: prepared.
        images: (N, C, H, W) on the engine's device; trusted.
        indices: of the images; also the keys of their noise.
        labels: true classes, for the records.
        settings: of the sampling.
        plans: of each image, where votes were planned for all of them together.
        on_progress: called with the noisy copies done, or on a GPU queued, since the last call.
    """
    done = 0
    while done < len(indices):
        group = slice(done, done + images_at_once(engine, settings))
        count = Counting(engine, images[group], indices[group], settings, on_progress)
        own = None if plans is None else plans[group]
        if settings.votes == "soft":
            drawing = softly(count)
        elif settings.sampling == "decide":
            drawing = decided(count)
        else:
            drawing = planned(count, own)
        try:
            with contextlib.closing(drawing):  # also when the one who asks stops early
                for drawn in drawing:
                    yield [
                        _certificate(engine, voter, drawn, indices[done], labels[done], settings)
                        for voter in range(len(engine.panel.names))
                    ]
                    done += 1
        except (RuntimeError, MemoryError) as error:
            failure = error.with_traceback(None)  # which would keep the failed batch in memory
        else:
            continue
        engine.shrink(failure)
        engine.prepare(images[done])


def plan_budget(
    engine: VoteEngine,
    parts: Callable[[], Iterable[tuple[torch.Tensor, Sequence[int]]]],
    settings: CertifySettings,
) -> list[Plan]:
    """Sizes for all images of a run from their pilot votes; see `sizes_for_budget`.

    Args:
        engine: prepared.
        parts: gives the images, some at a time, with their indices; again after running out of
            memory, since the votes of all must come from one shape.
        settings: with a budget.
    """
    assert settings.budget is not None  # the settings checked it
    while True:
        try:
            asked = (
                Asked(images, indices, "selection", [settings.n0] * len(indices))
                for images, indices in parts()
            )
            pilots = [
                votes.of(-1, row)
                for votes in engine.count_each(asked, seed=settings.seed)
                for row in range(len(votes))
            ]
            break
        except (RuntimeError, MemoryError) as error:
            failure = error.with_traceback(None)
        engine.shrink(failure)
        engine.prepare(next(iter(parts()))[0][0])
    sizes = sizes_for_budget(
        [max(pilot.counts) for pilot in pilots],
        settings.n0,
        budget=settings.budget,
        largest=settings.n,
        alpha=settings.alpha,
    )
    return [Plan(size, pilot) for size, pilot in zip(sizes, pilots, strict=True)]


def _certificate(
    engine: VoteEngine,
    voter: int,
    drawn: Drawn,
    index: int,
    label: int | None,
    settings: CertifySettings,
) -> Certificate:
    selection, estimation = drawn.selection[voter], drawn.estimation[voter]
    n = estimation.drawn
    decisions: dict[str, bool] | None = None
    if settings.votes == "soft":
        decision = decide_soft(
            selection.counts,
            selection.scores or (),
            estimation.scores or (),
            n=n,
            alpha=settings.alpha,
            sigma=engine.sigma,
        )
    elif settings.sampling == "decide":
        decision, decisions = decide_radii(
            selection.counts,
            estimation.counts,
            settings.radii,
            n=n,
            largest=settings.n,
            alpha=settings.alpha,
            sigma=engine.sigma,
        )
    else:
        decision = decide(
            selection.counts,
            estimation.counts,
            n=n,
            alpha=settings.alpha,
            sigma=engine.sigma,
            bound=settings.bound,
        )
    return Certificate(
        index=index,
        label=label,
        selection_counts=selection.counts,
        estimation_counts=estimation.counts,
        n0=settings.n0,
        n=settings.n if settings.sampling == "decide" else n,
        alpha=settings.alpha,
        sigma=engine.sigma,
        bound=settings.bound,
        sampling=settings.sampling,
        samples=settings.n0 + n,
        decisions=decisions,
        exit=engine.panel.exits[voter],
        votes=settings.votes,
        selection_scores=selection.scores,
        estimation_scores=estimation.scores,
        noise=engine.noise.name,
        precision=engine.precision,
        forward_rows=engine.forward_rows,
        member_evaluations=selection.evaluations + estimation.evaluations,
        seconds=round(drawn.seconds, 6),
        model=engine.panel.names[voter],
        seed=settings.seed,
        **dataclasses.asdict(decision),
    )


def check_tail(noise: Noise, device: torch.device, settings: CertifySettings, numbers: int) -> None:
    """Refuse so many votes that the tail which the noise never draws would matter.

    float32 noise ends after some standard deviations, so its law is away from the Gaussian one by a
    total variation of up to numbers * missing, and so is the probability of every class. Where that
    is not well below the smallest miss probability that n votes can show, about log(1/alpha) / n, a
    classifier contrived to answer otherwise in the tail alone could get too large a radius: with a
    share s of that probability missing, with probability up to alpha^(1 - s). Up to a share of
    MOST_MISSING the noise is treated as exactly Gaussian, as float32 noise is in every other
    respect (its rounding leaks far more to such a classifier, see `exact.py`); the share is 0.5%
    for CIFAR images on a GPU with n = 100,000, and 25% at 224 px. Beyond it the votes are refused:
    on a GPU at alpha = 0.001 from n = 9.7 million for CIFAR images and n = 200,000 at 224 px, on a
    CPU for no n up to 1e9 at these sizes. Exact noise has no limit, and no such assumption.
    Predictions are not limited: to tell apart classes whose probabilities differ by so little takes
    near a billion votes.

    Args:
        noise: its law.
        device: where it is drawn.
        settings: of the sampling.
        numbers: of one image.
    """
    variation = numbers * noise.missing(device)
    level = level_of_class(settings.alpha, settings.bound)
    if variation <= MOST_MISSING * float(upper_bound(0, settings.n, level)):
        return
    most = int(math.log(level) / math.log1p(-min(variation / MOST_MISSING, 0.5)))
    raise BadInput(
        "n",
        expected=f"at most {most:,} with float32 noise on {device.type} and images of {numbers:,} "
        f"numbers, whose law lacks tails of {variation:.2g} in all",
        got=f"{settings.n:,}",
        fix="use --noise exact, which has no such limit, or fewer votes",
    )


def check_sampling(engine: VoteEngine, settings: CertifySettings, *, numbers: int) -> None:
    """Refuse for several classifiers what only one can have; refuse an exit with soft votes.

    And more votes than the tail of the noise allows for images of so many `numbers`: `check_tail`.
    """
    check_tail(engine.noise, engine.device, settings, numbers)
    names, soft = engine.panel.names, settings.votes == "soft"
    if settings.sampling != "fixed" and settings.bound != "cohen":
        # Their sizes are those that Cohen's radius needs. Sound, so that old rows still verify.
        raise BadInput(
            "bound",
            expected=f"cohen with {settings.sampling}",
            got=settings.bound,
            fix="use --bound cohen; its rows have the two-class radius too",
        )
    if (settings.sampling != "fixed" or soft) and len(names) > 1:
        what = "votes soft" if soft else f"sampling {settings.sampling}"
        raise BadInput(
            what,
            expected="one classifier",
            got=f"{len(names)}: {', '.join(names)}",
            fix="leave --members, --weighting and a second --exit out, or use hard votes and "
            "--sampling fixed",
        )
    if soft and engine.panel.exits[-1] != "none":
        raise BadInput(
            "votes soft",
            expected="no exit: a mean needs every member",
            got=engine.panel.exits[-1],
            fix="leave --exit out",
        )
