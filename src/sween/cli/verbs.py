"""The verbs, each imported when it is needed: torch takes seconds, and may be broken."""

import contextlib
import functools
import importlib
from collections.abc import Iterator, Mapping
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from sween.errors import BadInput, describe_error

VERBS = {
    "demo": "Train, weigh, certify and report on the bundled digits.",
    "train": "Train candidates with Gaussian noise.",
    "weigh": "Solve for the ensemble weights on the held-out split.",
    "quantize": "Measure the ranges of activations for int8 precision.",
    "certify": "Certify test images and print their certified accuracy.",
    "predict": "Predict the class of each image, or abstain.",
    "attack": "Search for adversarial examples of test images.",
    "merge": "Put the shards of a run together.",
    "report": "Write an HTML page, tables in the paper's layout, and figures.",
    "verify": "Re-derive every row of a run from its votes.",
    "bench": "Measure the throughput of this machine.",
    "reproduce": "Reproduce a table of the paper from scratch.",
    "import": "Import a checkpoint of another training script as an ensemble member.",
    "plan": "Plan an ensemble or a certification before running it.",
    "zoo": "List the trained ensembles; pack, add or remove some.",
    "doctor": "Describe this installation for a bug report, and test it.",
}
"""Every verb with the first line of its help, which its module would take seconds to give."""

_MODULES = {"import": "import_checkpoint"}  # which cannot be a module's name


class _Commands(Mapping[str, Any]):
    """Commands by their verb; the module of a verb is imported when its command is looked up.

    Most of them import torch: too slow for a shell that completes a verb, and impossible where
    torch is broken, which `sween doctor` is there to say.
    """

    def __getitem__(self, verb: str) -> Any:
        if verb not in VERBS:
            raise KeyError(verb)
        return command_of(verb)

    def __iter__(self) -> Iterator[str]:
        return iter(VERBS)

    def __len__(self) -> int:
        return len(VERBS)


@functools.cache
def command_of(verb: str) -> Any:
    """Typer's command of a verb.

    Raises:
        BadInput: its module cannot be imported.
    """
    try:
        module = importlib.import_module(f"sween.cli.{_MODULES.get(verb, verb)}")
    except (ImportError, OSError) as error:  # OSError: a shared library of torch
        raise BadInput(
            f"sween {verb} cannot be loaded: {describe_error(error)}", fix="see sween doctor"
        ) from error
    own = getattr(module, "app", None)
    if own is None:
        own = typer.Typer(add_completion=False, rich_markup_mode=None)
        own.command(verb)(module.run)
    command = typer.main.get_command(own)
    command.name = verb
    return command


class LazyGroup(TyperGroup):
    """The verbs, of which only the one that runs is imported."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = _Commands()  # type: ignore[assignment]  # never changed

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        with self._summaries():
            return list(super().shell_complete(ctx, incomplete))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with self._summaries():
            super().format_commands(ctx, formatter)

    @contextlib.contextmanager
    def _summaries(self) -> Iterator[None]:
        """For a block that lists the verbs and runs none."""
        commands = self.commands
        self.commands = {
            verb: TyperCommand(verb, short_help=summary) for verb, summary in VERBS.items()
        }
        try:
            yield
        finally:
            self.commands = commands
