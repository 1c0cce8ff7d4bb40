"""Pilot votes of a shard whose strategy plans for the images of all shards together."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sween.engine import ForwardPassShrunk, VoteEngine
from sween.errors import BadInput
from sween.progress import track
from sween.runs.pilots import PilotRun, PilotVotes
from sween.runs.rows import resuming
from sween.runs.shards import Shard
from sween.sampling import CertifySettings
from sween.sampling.votes import ByVoter
from sween.smoothing import pipeline
from sween.smoothing.chosen_images import ChosenImages
from sween.smoothing.same_votes import refuse_other_pilots


def draw_pilots(
    engine: VoteEngine,
    chosen: ChosenImages,
    settings: CertifySettings,
    out: Path,
    config: Mapping[str, Any],
    shard: Shard,
    *,
    quiet: bool,
) -> None:
    """Write the pilot votes that a shard still lacks; one that has some must get them again."""
    source = chosen.source
    labels = {index: source.label(index) for index in chosen.positions}

    def rows(index: int, votes: ByVoter) -> list[PilotVotes]:
        return [
            PilotVotes(
                index=index,
                label=labels[index],
                model=voter,
                selection_counts=own.counts,
                n0=settings.n0,
                n=None,
                member_evaluations=own.evaluations,
                forward_rows=engine.forward_rows,
                seed=settings.seed,
            )
            for voter, own in votes.items()
        ]

    with resuming(PilotRun, out, config, shard=shard, label=labels) as run:
        left = run.left
        name = f"pilot votes {engine.name}"
        with track(name, len(left), quiet=quiet or not left) as advance:
            try:
                if left and engine.forward_rows < config["forward_rows"]:  # since its preparation
                    raise ForwardPassShrunk
                refuse_other_pilots(run.rows, engine, source, settings)
                counted = pipeline.count_pilots(engine, source, left, settings)
                for index, votes in zip(left, counted, strict=True):
                    run.append(rows(index, votes))
                    advance(1, "images")
            except ForwardPassShrunk:
                raise BadInput(
                    "memory",
                    expected=f"room for forward passes of {config['forward_rows']} rows, since all "
                    "shards must draw their pilot votes with passes of one shape",
                    got=f"out of memory on {engine.device}",
                    fix="free some memory, or run all shards into new folders with fewer "
                    "`forward_rows`",
                ) from None
