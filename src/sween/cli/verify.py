"""`sween verify`"""

from pathlib import Path
from typing import Annotated

import typer

from sween.attack import outcomes_file, verify_attacks
from sween.smoothing import verify_folder


def run(
    folder: Annotated[Path, typer.Argument(help="folder written by sween certify or attack")],
) -> None:
    """Re-derive every row from its votes; exit 1 names the first that differs."""
    if outcomes_file(folder) is not None:
        attack = verify_attacks(folder)
        typer.echo(
            f"{attack.rows} rows re-derived: {attack.images} images, {attack.broken} broken, "
            f"{attack.alarms} alarms"
        )
        return
    verified = verify_folder(folder)
    typer.echo(
        f"{verified.rows} rows re-derived: {verified.images} images, "
        f"{len(verified.models)} models ({', '.join(verified.models)}), "
        f"{verified.certified} certified, {verified.rows - verified.certified} abstained"
    )
