"""The command line: verbs of a few lines that call public functions. No logic lives here."""

from sween.cli.app import main

__all__ = ["main"]
