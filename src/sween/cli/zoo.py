"""`sween zoo` and its verbs `pack`, `add` and `remove`"""

import hashlib
import json
from pathlib import Path
from typing import Annotated

import typer

from sween.cli.completion import complete_from
from sween.cli.options import TrustedArch
from sween.errors import refuse_duplicates
from sween.records import format_radius
from sween.zoo import ZooEntry, add, list_zoo, pack, remove, user_folder
from sween.zoo.entries import models_in

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def run(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="print everything as JSON")] = False,
) -> None:
    """List the trained ensembles; pack, add or remove some.

    Some ship with sween. Others come as archives: `sween zoo add FILE` installs them into
    $SWEEN_ZOO (~/.local/share/sween/zoo) and makes them available by name.
    """
    if context.invoked_subcommand is not None:
        return
    entries = list_zoo()
    if as_json:
        typer.echo(json.dumps({entry.name: _content(entry) for entry in entries}, indent=2))
        return
    width = max(len(entry.name) for entry in entries)
    for entry in entries:
        typer.echo(f"{entry.name:{width}}  {_summary(entry)}")
    if any(entry.installed for entry in entries):
        typer.echo(f"installed models are in {user_folder()}")
    typer.echo("load one with sween.load(NAME), or pass NAME to certify and predict")


@app.command("pack")
def run_pack(
    ensembles: Annotated[
        list[str],
        typer.Argument(
            metavar="[NAME=]ENSEMBLE...",
            help="ensemble folders or zoo names; NAME defaults to that of the folder",
        ),
    ],
    out: Annotated[Path, typer.Option(help="archive to write; must not exist yet")],
    arch: TrustedArch = None,
) -> None:
    """Pack ensembles into one archive, which `sween zoo add` installs."""
    named = [_named(text) for text in ensembles]
    refuse_duplicates("names", [name for name, _ in named], fix="pass NAME=FOLDER")
    models = pack(dict(named), out, archs=arch or ())
    with out.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    size = f"{out.stat().st_size / 1e6:.1f} MB"
    typer.echo(f"packed {', '.join(models)} into {out}: {size}, SHA-256 {digest}")


def _named(text: str) -> tuple[str, str]:
    name, equals, folder = text.partition("=")
    if equals and not Path(text).exists():
        return name, folder
    return Path(text).resolve().name, text


@app.command("add")
def run_add(
    archive: Annotated[Path, typer.Argument(help="file written by sween zoo pack")],
    replace: Annotated[
        bool, typer.Option("--replace", help="replace installed models of the same names")
    ] = False,
    arch: TrustedArch = None,
) -> None:
    """Install the ensembles of an archive for use by name."""
    for name, outcome in add(archive, replace=replace, archs=arch or ()).items():
        typer.echo(f"{outcome}: {name}")


@app.command("remove")
def run_remove(
    name: Annotated[
        str,
        typer.Argument(
            help="name of an installed model",
            autocompletion=complete_from(lambda: models_in(user_folder())),
        ),
    ],
) -> None:
    """Remove an installed ensemble."""
    remove(name)
    typer.echo(f"removed: {name}")


def _content(entry: ZooEntry) -> dict[str, object]:
    return {
        "dataset": entry.dataset,
        "sigma": entry.sigma,
        "members": dict(zip(entry.members, entry.weights, strict=True)),
        "bytes": entry.bytes,
        "installed": entry.installed,
        "measured": entry.measured,
    }


def _summary(entry: ZooEntry) -> str:
    members = f"{' + '.join(entry.members)}, {entry.bytes / 1e6:.1f} MB"
    members += ", installed" if entry.installed else ""
    if not entry.measured:
        return f"{members}; not certified yet"
    measured = entry.measured
    radius = format_radius(measured["acr"])
    two_class = format_radius(measured["acr_two_class"])
    accuracy = measured["certified_accuracy"]["0.00"]
    return (
        f"ACR {radius} (two-class {two_class}), accuracy {accuracy:.1%} on {measured['images']} "
        f"images, n = {measured['n']}; {members}"
    )
