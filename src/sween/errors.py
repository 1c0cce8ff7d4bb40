"""Exceptions and warnings that sween raises deliberately.

SweenError
├── BadInput (ValueError)      exit code 2: what, expected, got, the fix, in one line
│   ├── UnknownName            a name that is not registered, with the closest one that is
│   ├── DataError              a file or folder of images that cannot be used
│   ├── CheckpointError        a checkpoint, run or ensemble folder that does not match
│   ├── RunMismatch            rows inconsistent with their votes, their config or each other
│   ├── FolderBusy             another process or thread is writing to the folder
│   └── ContractError          a model that breaks the contract of a member
├── MissingExtra (ImportError) exit code 2: an optional dependency is not installed
├── OutOfMemory (MemoryError)  exit code 2: not enough memory
└── CheckFailed                exit code 1: valid input, but a check failed

SmallSampleWarning             sound, but almost everything will abstain
PreparationWarning             sound, but slower than it could be
RepeatedNoiseWarning           each answer is valid, but different images shared their noise
"""

import difflib
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path


class SweenError(Exception):
    """Base class of all errors that sween raises deliberately.

    Example:
        >>> import sween
        >>> try:
        ...     sween.ExitPolicy("exakt")
        ... except sween.SweenError as error:
        ...     print(error)
        unknown exit 'exakt'; did you mean 'exact'? available: exact, mixed, none, paper
    """


class BadInput(SweenError, ValueError):
    """An argument or file that cannot be used; the message is one line and includes the fix.

    Example:
        >>> import sween
        >>> from sween.errors import BadInput
        >>> try:
        ...     sween.TrainConfig(dataset="digits", arch="digits-mlp", sigma=-1.0)
        ... except BadInput as error:  # a ValueError too
        ...     print(error)
        sigma: expected at least 0, in units of [0,1] pixels, got -1.0; try 0.5
    """

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
            message += f": expected {expected}, got {_shortened(str(got))}"
        if fix is not None:
            message += f"; {fix}"
        super().__init__(" ".join(message.split()))


_LONGEST_GOT = 1000
"""Characters of a value that a message shows; a damaged file may have any number of them."""


def _shortened(got: str) -> str:
    if len(got) <= _LONGEST_GOT:
        return got
    return f"{got[: _LONGEST_GOT // 2]}... ({len(got):,} characters)"


class UnknownName(BadInput):
    """A name that is not registered; the message lists all names and the closest one.

    `unlisted` is a form of name that cannot be listed, such as `package.module:factory`.

    Example:
        See `SweenError`.
    """

    def __init__(
        self, kind: str, name: object, known: Iterable[str], *, unlisted: str | None = None
    ) -> None:
        choices, asked = sorted(known), str(name)
        # resnet18 is closer to imagenet-resnet18 than to resnet110.
        longer = [choice for choice in choices if asked in choice]
        nearest = difflib.get_close_matches(asked, longer or choices, n=1, cutoff=0.4)
        hint = f"did you mean {nearest[0]!r}? " if nearest else ""
        available = ", ".join(choices) or "none"
        if unlisted is not None:
            available += f", or {unlisted}"
        super().__init__(f"unknown {kind} {name!r}", fix=f"{hint}available: {available}")


class DataError(BadInput):
    """A file or folder of images that cannot be used.

    `unreadable` is true for an image file that no option makes readable.

    Example:
        See `SweenError`.
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
    """A checkpoint, run or ensemble folder that does not match the request.

    Example:
        See `SweenError`.
    """


class RunMismatch(BadInput):
    """A run folder that contradicts itself; `finding` says where and how.

    Example:
        See `SweenError`.
    """

    def __init__(self, where: str, finding: str, *, fix: str) -> None:
        self.finding = f"{where}: {finding}"
        super().__init__(self.finding, fix=fix)


class FolderBusy(BadInput):
    """Another process or thread is writing to the folder; nothing there was changed.

    Example:
        See `SweenError`.
    """


class ContractError(BadInput):
    """A model that is not a function from one [0,1] image to logits of the right shape.

    Example:
        See `SweenError`.
    """


class MissingExtra(SweenError, ImportError):
    """An optional dependency is not installed.

    Example:
        See `SweenError`.
    """

    def __init__(self, package: str, extra: str, needed_for: str) -> None:
        super().__init__(
            f"{needed_for} needs {package}, which is not installed; pip install 'sween[{extra}]'"
        )


class OutOfMemory(SweenError, MemoryError):
    """Not enough memory for an otherwise valid request.

    Example:
        See `SweenError`.
    """

    def __init__(self, what: str, error: BaseException) -> None:
        super().__init__(
            f"memory ran out {what}: {first_line(error)}; free some memory, or use a smaller "
            "network, smaller images or another device"
        )


class CheckFailed(SweenError):
    """The input was valid, but a check failed.

    Example:
        See `SweenError`.
    """


class SmallSampleWarning(UserWarning):
    """The certificates are sound, but with so few samples almost every image abstains.

    Example:
        >>> import warnings
        >>> from sween.errors import SmallSampleWarning
        >>> from sween.sampling import CertifySettings
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("ignore", SmallSampleWarning)
        ...     settings = CertifySettings(n=12)
    """


class PreparationWarning(UserWarning):
    """A model runs slower than requested; its answers are just as sound.

    Example:
        >>> import sween, torch, warnings
        >>> from sween.errors import PreparationWarning
        >>> smoothed = sween.SmoothedClassifier.load("digits-sween3-gaussian-sigma0.50")
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("error", PreparationWarning)  # stop instead of being slow
        ...     answer = smoothed.predict_one(torch.zeros(1, 8, 8))
    """


class ContractWarning(UserWarning):
    """A model seems not to return what it should; its answers are sound, but of another model.

    Example:
        >>> import sween, torch, warnings
        >>> from sween.errors import ContractWarning
        >>> network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
        >>> ensemble = sween.WeightedEnsemble([torch.nn.Sequential(network, torch.nn.Softmax(1))])
        >>> smoothed = sween.SmoothedClassifier(ensemble, sigma=0.5, num_classes=10)
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("ignore", ContractWarning)  # a softmax of a softmax is wanted
        ...     answer = smoothed.predict_one(torch.zeros(1, 8, 8))
    """


class RepeatedNoiseWarning(UserWarning):
    """Different images were evaluated with the same noise.

    Each answer is valid on its own, but the answers are not independent of each other.

    Example:
        >>> import sween, torch, warnings
        >>> from sween.errors import RepeatedNoiseWarning
        >>> smoothed = sween.SmoothedClassifier.load("digits-sween3-gaussian-sigma0.50")
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("ignore", RepeatedNoiseWarning)  # common noise is wanted
        ...     for image in torch.zeros(1, 8, 8), torch.ones(1, 8, 8):
        ...         answer = smoothed.predict_one(image, seed=1, indices=[0])
    """


def warn_fallback(what: str, error: Exception, *, stacklevel: int = 2) -> None:
    """Warn that a faster path failed, with the first line of the error."""
    message = f"{what}, falling back to a slower path: {first_line(error)}"
    warnings.warn(message, PreparationWarning, stacklevel=stacklevel + 1)


def warn_contract(what: str, *, expected: str, got: str, fix: str, stacklevel: int = 2) -> None:
    """Warn in the words of a `ContractError` where answers are sound all the same."""
    said = ContractError(what, expected=expected, got=got, fix=fix)
    warnings.warn(str(said), ContractWarning, stacklevel=stacklevel + 1)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out: Python's or torch's error for it, or a message that says so."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # torch's
        return True
    said = str(error).lower()
    words = ("can't allocate memory", "cannot allocate memory", "out of memory", "alloc_failed")
    return not isinstance(error, SweenError) and any(word in said for word in words)


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its type if it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def describe_error(error: BaseException) -> str:
    """The type of an error and the first line of its message, if it has one."""
    return f"{type(error).__name__}: {first_line(error)}" if str(error) else type(error).__name__


def describe_type(value: object) -> str:
    """The type of a value with its article: `a list`, `an int`; None is `None`."""
    if value is None:
        return "None"
    name = type(value).__name__.removeprefix("nd")  # numpy's ndarray
    return f"{'an' if name[0].lower() in 'aeio' else 'a'} {name}"


def refuse_duplicates(
    what: str, names: Sequence[str], *, fix: str, expected: str = "a different name for each"
) -> None:
    """Refuse names that are not distinct."""
    for name in names:
        if names.count(name) > 1:
            raise BadInput(
                what, expected=expected, got=f"{name} {names.count(name)} times", fix=fix
            )
