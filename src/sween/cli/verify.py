"""`sween verify`"""

from pathlib import Path
from typing import Annotated

import typer

from sween.smoothing import verify_folder


def run(
    folder: Annotated[Path, typer.Argument(help="folder written by sween certify")],
) -> None:
    """Re-derive every certificate from its votes; exit 1 names the first row that differs."""
    verified = verify_folder(folder)
    typer.echo(
        f"{verified.rows} rows re-derived: {verified.images} images, "
        f"{len(verified.models)} models ({', '.join(verified.models)}), "
        f"{verified.certified} certified, {verified.rows - verified.certified} abstained"
    )
