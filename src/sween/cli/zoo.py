"""`sween zoo`"""

import json
from typing import Annotated

import typer

from sween.records import format_radius
from sween.zoo import ZooEntry, list_zoo


def run(
    as_json: Annotated[bool, typer.Option("--json", help="print everything as JSON")] = False,
) -> None:
    """List the shipped ensembles and their measured accuracy."""
    entries = list_zoo()
    if as_json:
        typer.echo(json.dumps({entry.name: _content(entry) for entry in entries}, indent=2))
        return
    width = max(len(entry.name) for entry in entries)
    for entry in entries:
        typer.echo(f"{entry.name:{width}}  {_summary(entry)}")
    typer.echo("load one with sween.load(NAME), or pass NAME to certify and predict")


def _content(entry: ZooEntry) -> dict[str, object]:
    return {
        "dataset": entry.dataset,
        "sigma": entry.sigma,
        "members": dict(zip(entry.members, entry.weights, strict=True)),
        "bytes": entry.bytes,
        "measured": entry.measured,
    }


def _summary(entry: ZooEntry) -> str:
    members = f"{' + '.join(entry.members)}, {entry.bytes / 1e6:.1f} MB"
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
