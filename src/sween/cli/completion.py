"""Values that a shell completes, from the lists that the help names."""

from collections.abc import Callable, Iterable


def complete_from(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """A completion for Typer: those names that begin with what was typed.

    If none does, the shell completes files.
    """

    def complete(incomplete: str) -> list[str]:
        return [name for name in names() if name.startswith(incomplete)]

    return complete
