"""Everything sween raises on purpose.

SweenError
├── BadInput (ValueError)      exit code 2: what, expected, got, the fix, in one line
│   ├── UnknownName            a name that is not registered, with the nearest one that is
│   ├── DataError              a file or folder of images that cannot be used
│   ├── CheckpointError        a checkpoint, run or ensemble folder that does not match
│   ├── RunMismatch            rows that do not fit their votes, their config or each other
│   ├── FolderBusy             a folder that somebody else is writing in
│   └── ContractError          a model that breaks the contract of a member
├── MissingExtra (ImportError) exit code 2: an optional part is not installed
├── OutOfMemory (MemoryError)  exit code 2: there was no room for what was asked
└── CheckFailed                exit code 1: the input was fine, the thing checked was not

SmallSampleWarning             sound, but almost everything will abstain
PreparationWarning             sound, but slower than it could be
RepeatedNoiseWarning           each answer holds, but two images were given the same noise
"""

import difflib
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path


class SweenError(Exception):
    """Base of every error that sween raises on purpose."""


class BadInput(SweenError, ValueError):
    """An argument or a file that cannot be used; the message is one line with the fix."""

    def __init__(
        self,
        what: str,
        *,
        expected: str | None = None,
        got: object = None,
        fix: str | None = None,
    ) -> None:
        message = what
        if expected is not None:
            message += f": expected {expected}, got {got}"
        if fix is not None:
            message += f"; {fix}"
        super().__init__(" ".join(message.split()))


class UnknownName(BadInput):
    """A name outside a registry; names the nearest one and all of them."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        choices = sorted(known)
        nearest = difflib.get_close_matches(name, choices, n=1, cutoff=0.4)
        hint = f"did you mean {nearest[0]!r}? " if nearest else ""
        super().__init__(
            f"unknown {kind} {name!r}", fix=f"{hint}available: {', '.join(choices) or 'none'}"
        )


class DataError(BadInput):
    """A file or folder of images that cannot be used.

    `unreadable` is true of an image file that no option makes readable.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        expected: str,
        got: object,
        fix: str,
        unreadable: bool = False,
    ) -> None:
        self.path = Path(path)
        self.unreadable = unreadable
        super().__init__(str(path), expected=expected, got=got, fix=fix)


class CheckpointError(BadInput):
    """A checkpoint, run or ensemble folder that does not match what was asked for."""


class RunMismatch(BadInput):
    """A run folder that contradicts itself; `finding` names the place and what differs there."""

    def __init__(self, where: str, finding: str, *, fix: str) -> None:
        self.finding = f"{where}: {finding}"
        super().__init__(self.finding, fix=fix)


class FolderBusy(BadInput):
    """A folder that another process or thread is writing in; nothing there was touched."""


class ContractError(BadInput):
    """A model that is not a function from one [0,1] image to logits of the right shape."""


class MissingExtra(SweenError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str, needed_for: str) -> None:
        super().__init__(
            f"{needed_for} needs {package}, which is not installed; pip install 'sween[{extra}]'"
        )


class OutOfMemory(SweenError, MemoryError):
    """There was no room for what was asked, which may be right in itself."""

    def __init__(self, what: str, error: BaseException) -> None:
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        super().__init__(
            f"memory ran out {what}: {said}; free some memory, or use a smaller network, smaller "
            "images or another --device"
        )


class CheckFailed(SweenError):
    """The input was fine; what was checked does not hold."""


class SmallSampleWarning(UserWarning):
    """The certificates are sound, but with so few samples almost everything abstains."""


class PreparationWarning(UserWarning):
    """A model could not be made as fast as asked for; its answers are as sound."""


class RepeatedNoiseWarning(UserWarning):
    """Different images were evaluated under the same noise.

    Each answer holds on its own, but they are not independent of each other.
    """


def go_on_without(what: str, error: Exception, *, stacklevel: int = 2) -> None:
    """Warn, with the error's first line, that something cannot be done and is left out."""
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    message = f"{what}, going on without: {reason}"
    warnings.warn(message, PreparationWarning, stacklevel=stacklevel + 1)


def refuse_doubles(
    what: str, names: Sequence[str], *, fix: str, expected: str = "a different name for each"
) -> None:
    """Refuse names of which one comes twice."""
    for name in names:
        if names.count(name) > 1:
            raise BadInput(
                what, expected=expected, got=f"{name} {names.count(name)} times", fix=fix
            )
