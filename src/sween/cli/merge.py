"""`sween merge`"""

from pathlib import Path
from typing import Annotated

import typer

from sween.errors import BadInput
from sween.runs import merge_runs, shards_left


def run(
    folders: Annotated[list[Path], typer.Argument(help="folders of all shards, in any order")],
    out: Annotated[Path | None, typer.Option(help="folder for the whole run")] = None,
    missing: Annotated[
        bool,
        typer.Option(
            "--missing",
            help="only print the numbers of the shards that are missing or unfinished, separated "
            "by commas; folders that do not exist yet may be named",
        ),
    ] = False,
) -> None:
    """Put the shards of a run together.

    The result is the folder that `certify` or `attack` would have written on one machine. With
    --sampling budget the first merge, of pilot votes, writes the plan into the shards' folders; run
    the shards again, then merge again.
    """
    if missing == (out is not None):
        raise BadInput(
            "merge",
            expected="either --out or --missing",
            got="both" if missing else "neither",
            fix="pass --out to merge",
        )
    if out is None:
        typer.echo(",".join(map(str, shards_left(folders))))
        return
    merged = merge_runs(folders, out)
    if merged.run is None:
        typer.echo(
            f"the plan of {merged.shards} shards is in their folders; run each of them again with "
            "the same command, then merge again"
        )
        return
    rows, images = len(merged.run.rows), len(merged.run.indices)
    what = "already merged" if merged.already else "merged"
    typer.echo(f"{merged.shards} shards {what}: {rows} rows of {images} images in {out}")
