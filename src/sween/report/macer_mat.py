"""The .mat files in which MACER's code (Zhai et al. 2020) keeps its certification results.

Such a file holds one row vector for each kind of vote, named "hard" or "soft": the radius of each
image in turn, all its digits, or -1 where the answer was wrong or declined. It says neither which
images they were nor the classes.
"""

import math
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sween.errors import BadInput, UnknownName
from sween.paths import AnyPath
from sween.report.classic import (
    ClassicLog,
    ClassicRow,
    check_within,
    largest_radius,
    named_log,
)

NOT_CERTIFIED = -1.0
"""What stands for a wrong answer or an abstention; the file does not tell them apart."""

Votes = Literal["hard", "soft"]


def read_macer_mat(
    path: AnyPath,
    *,
    start: int,
    skip: int = 1,
    votes: Votes = "hard",
    sigma: float | None = None,
    n: int | None = None,
    alpha: float | None = None,
) -> ClassicLog:
    """Read a MACER .mat file; its rows have no label and no prediction.

    A damaged file is refused in most cases, but a wrong type code inside it can crash scipy's
    compiled parser and the process with it: read files from a source you trust.

    Args:
        path: the file.
        start: index of the first image (MACER's --start_img, 500 by default there). Required: the
            file does not say, and rows paired with the wrong images compare nothing.
        skip: distance from one image to the next (MACER's --skip).
        votes: "hard" counts classes as Cohen et al. do; "soft" averages probabilities, which
            certifies another classifier.
        sigma: noise level; with `n` and `alpha`, radii that no votes can give are refused. The
            limit is that of hard votes, above what soft votes reach.
        n: votes behind a radius.
        alpha: failure probability of a certificate.

    Raises:
        BadInput: a file that is missing, is no such file, or holds values that are no radii.
    """
    path = Path(path)
    limit = largest_radius(sigma=sigma, n=n, alpha=alpha)
    if votes not in ("hard", "soft"):
        raise UnknownName("votes", votes, ("hard", "soft"))
    for name, value, least in (("start", start, 0), ("skip", skip, 1)):
        if value < least:
            raise BadInput(
                name, expected=f"at least {least}", got=value, fix="use the run's own options"
            )
    rows = []
    for place, radius in enumerate(_radii(path, votes)):
        index = start + skip * place
        what = f"{path}: {votes}, place {place} (index {index})"
        check_within(radius, limit, what, radius)
        rows.append(_row(index, radius, what))
    return named_log(path, rows)


def _radii(path: Path, votes: Votes) -> list[float]:
    content = _load(path)
    names = [name for name in content if not name.startswith("__")]
    if votes not in names:
        raise BadInput(
            str(path),
            expected=f"a variable {votes!r}, as MACER's code names it",
            got=", ".join(names) or "no variables",
            fix=f"pass --log-votes {'soft' if votes == 'hard' else 'hard'} if that is there",
        )
    values = content[votes]
    numeric = isinstance(values, np.ndarray) and values.dtype.kind in "fiu"
    # A column passes too: savemat can be told to make one of a vector.
    if not numeric or values.size != max(values.shape):
        raise BadInput(
            f"{path}: {votes}",
            expected="one row of real numbers",
            got=f"shape {values.shape} of {values.dtype}" if numeric else "no plain numbers",
            fix="name a file written by MACER's certify",
        )
    return [float(value) for value in values.ravel()]


def _load(path: Path) -> dict[str, Any]:
    from scipy.io import loadmat

    if not path.is_file():
        raise BadInput(
            str(path),
            expected="a .mat file",
            got="a folder" if path.is_dir() else "no such file",
            fix="name a file written by MACER's certify",
        )
    try:
        content: dict[str, Any] = loadmat(path, appendmat=False)
    except Exception as error:  # scipy's parser fails in many ways on a damaged file
        raise BadInput(
            str(path),
            expected="a .mat file of format 5 or older",
            got=f"{type(error).__name__}: {error}",
            fix="fetch the file again from its source",
        ) from None
    return content


def _row(index: int, radius: float, what: str) -> ClassicRow:
    correct = radius != NOT_CERTIFIED
    if correct and not (math.isfinite(radius) and radius >= 0):
        raise BadInput(
            what,
            expected="a finite radius, at least 0, or -1 where it is not certified",
            got=radius,
            fix="fetch the file again from its source",
        )
    low = radius if correct else 0.0
    return ClassicRow(index=index, label=None, prediction=None, correct=correct, low=low, high=low)
