"""The command-line application: verbs, exit codes, and errors in one line."""

import contextlib
import errno
import functools
import itertools
import logging
import os
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

import typer

from sween import __version__
from sween.cli import INTERRUPTED
from sween.cli.option_names import spell_options
from sween.cli.verbs import VERBS, LazyGroup, command_of
from sween.errors import BadInput, CheckFailed, OutOfMemory, SweenError, is_out_of_memory

app = typer.Typer(
    name="sween",
    cls=LazyGroup,
    help="Certified robust image classification by randomized smoothing of weighted ensembles.",
    pretty_exceptions_enable=False,
    # Not rich: it takes [brackets] for markup and cuts words that are longer than their column.
    rich_markup_mode=None,
    context_settings={"max_content_width": 120},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"sween {__version__}")
        raise typer.Exit


@app.callback()
def _application(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="print the version"
    ),
) -> None:
    """Certified robust image classification by randomized smoothing of weighted ensembles."""


def import_verb(arguments: Sequence[str]) -> None:
    """Import the module of the verb; what is broken, `run_verb` reports."""
    if arguments and arguments[0] in VERBS:
        with contextlib.suppress(BadInput):
            command_of(arguments[0])


def run_verb(arguments: Sequence[str]) -> int:
    """Run one verb and return its exit code; see `sween.cli.main`.

    Raises:
        KeyboardInterrupt: the verb was interrupted.
    """
    arguments = list(arguments) or ["--help"]
    command = typer.main.get_command(app)
    verb: Any = command
    try:
        for name in arguments[:2]:  # `zoo add` is two words
            verb = getattr(verb, "commands", {}).get(name, verb)
        warnings.showwarning = functools.partial(_show_warning, verb)
        with _messages(quiet="--quiet" in arguments):
            code = command.main(
                args=arguments, prog_name="sween", standalone_mode=False, obj=arguments
            )
        if code == INTERRUPTED:  # how Typer reports a KeyboardInterrupt
            raise KeyboardInterrupt
        return int(code or 0)
    except CheckFailed as failure:
        return _complain(f"check failed: {spell_options(str(failure), verb)}", 1)
    except SweenError as error:
        return _complain(f"error: {spell_options(str(error), verb)}", 2)
    except OSError as error:
        return _complain(f"error: {_describe(error)}", 2)
    except typer.Abort:
        raise KeyboardInterrupt from None
    except Exception as error:
        # Typer has its own copy of click, so usage errors are recognised by their method.
        format_message = getattr(error, "format_message", None)
        if format_message is None:
            if is_out_of_memory(error):
                return _complain(f"error: {OutOfMemory('during the run', error)}", 2)
            if "DataLoader worker" in str(error):  # torch raises it wherever the main thread is
                return _complain(f"error: {error}; run it again, or with fewer workers", 2)
            raise
        fix = _fix_of_usage(error, arguments, verb) or "see sween --help"
        return _complain(f"error: {str(format_message()).rstrip('.')}; {fix}", 2)


def _fix_of_usage(error: Any, arguments: Sequence[str], verb: Any) -> str | None:
    """What to write instead, for mistakes that many make."""
    if getattr(error, "option_name", None) == "--sigma" and any(
        parameter.name in ("source", "runs", "folder") for parameter in verb.params
    ):
        return "the noise level is recorded with the model; leave --sigma out"
    options = getattr(getattr(error, "param", None), "opts", ())
    given = [*itertools.pairwise(arguments), *(each.split("=", 1) for each in arguments)]
    for option, *value in reversed(given):
        number = re.fullmatch(r"([1-9]\d*)[eE]\+?(\d)", "".join(value))
        if option in options and number is not None:
            return f"write {number[1]}{'0' * int(number[2])}"
    return None


class _ToStandardError(logging.Handler):
    """Prints messages in one line each."""

    def emit(self, record: logging.LogRecord) -> None:
        sys.stderr.write(f"sween: {' '.join(record.getMessage().split())}\n")


@contextlib.contextmanager
def _messages(*, quiet: bool) -> Iterator[None]:
    """Show what the library says about long preparations, unless the verb is to be quiet."""
    logger, handler = logging.getLogger("sween"), _ToStandardError(logging.INFO)
    if quiet:
        yield
        return
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)


def _complain(message: str, code: int) -> int:
    line = f"sween: {' '.join(message.split())}\n"
    if "TORCHELASTIC_RUN_ID" in os.environ:  # under torchrun
        from sween.training.torchrun import report_failure

        return report_failure(line, code)
    sys.stderr.write(line)
    return code


_FIXES = {
    errno.ENOSPC: "free some space and run the same command again",
    errno.EDQUOT: "free some space and run the same command again",
    errno.EEXIST: "a file of that name exists; choose another name",
    errno.EACCES: "choose a folder you may write to",
    errno.EPERM: "choose a folder you may write to",
    errno.EROFS: "choose a folder you may write to",
    errno.ENOENT: "check the path",
    errno.ENOTDIR: "part of that path is a file; choose another path",
}


def _describe(error: OSError) -> str:
    where = error.filename or "file"
    why = os.strerror(error.errno) if error.errno else str(error)
    return f"{where}: {why}; {_FIXES.get(error.errno or 0, 'check the path and the disk')}"


def _show_warning(
    verb: Any,
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    sys.stderr.write(f"sween: warning: {' '.join(spell_options(str(message), verb).split())}\n")
