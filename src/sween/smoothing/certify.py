"""From votes to certificates, image by image, for every classifier of a panel."""

import contextlib
import dataclasses
from collections.abc import Callable, Generator, Iterable, Sequence

import torch

from sween.errors import BadInput
from sween.records import Certificate
from sween.smoothing.allocation import sizes_for_budget
from sween.smoothing.decision import decide, decide_radii, decide_soft
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
from sween.smoothing.tally import Asked
from sween.smoothing.votes import VoteEngine


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


def check_sampling(engine: VoteEngine, settings: CertifySettings) -> None:
    """Refuse for several classifiers what only one can have; refuse an exit with soft votes."""
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
