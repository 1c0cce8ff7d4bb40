"""`sween doctor`"""

import json
from pathlib import Path
from typing import Annotated

import typer

from sween.doctor import as_text, examine, failed_checks
from sween.errors import CheckFailed


def run(
    data_root: Annotated[
        Path | None, typer.Option(help="folder in which to look for data sets")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Describe this installation for a bug report, and test it.

    Bounds, noise and votes are compared with known answers, which takes a few seconds; exit code 1
    if one is wrong. Your home folder is printed as ~.
    """
    examination = examine(data_root)
    typer.echo(json.dumps(examination, indent=2) if as_json else as_text(examination), nl=as_json)
    failed = failed_checks(examination)
    if failed:
        raise CheckFailed(f"self-test: {', '.join(failed)}; the lines above say why")
