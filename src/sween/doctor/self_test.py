"""Known answers of bounds, noise and votes, in about a second.

Imports are inside the checks: a package that is missing or broken fails only those that need it.
"""

from collections.abc import Callable

from sween.errors import CheckFailed

ALPHA, SIGMA = 0.001, 0.5
KNOWN = (
    (990, 1_000, 0.02396381284468863, 0.9890047910705996),
    (99_000, 100_000, 0.01101065962252524, 1.144999977606883),
    (100_000, 100_000, 6.907516699060703e-5, 1.905728281694976),
)
"""Votes for the class, all votes, and at that alpha and sigma the Clopper-Pearson bound on the
probability of all other classes and Cohen's radius; from arithmetic with 30 digits."""

TOLERANCE = 1e-7
"""More than bounds and radii are moved to the safe side."""

PHILOX_32 = (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
PHILOX_64 = (0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B)
"""Of Random123, the library of Philox's authors, for the counter 0 and the key 0."""

KEY = 0x935F1595C24AB3AE23E2DB2FC05E3208
"""`derive_key(1, "estimation", 2, 3)`: runs of all versions and machines share their keys."""

MARGIN, SHARE = 0.5, 0.8413447460685429
"""Distance of an image from the boundary of a linear classifier, and what share of the votes that
gives its class: the normal distribution function at MARGIN / SIGMA."""


def check_bounds() -> str:
    """Clopper-Pearson bounds and radii: the known ones, and never on the unsafe side."""
    from sween.bounds import radius_cohen, upper_bound

    for count, n, miss, radius in KNOWN:
        found = float(upper_bound(n - count, n, ALPHA))
        if not miss <= found <= miss * (1 + TOLERANCE):
            raise CheckFailed(f"bound of {count} in {n} votes: expected {miss}, got {found}")
        found = float(radius_cohen(count, n, alpha=ALPHA, sigma=SIGMA))
        if not radius - TOLERANCE <= found <= radius:
            raise CheckFailed(f"radius of {count} in {n} votes: expected {radius}, got {found}")
    return "ok"


def check_random_words() -> str:
    """The generators of the noise give the published words, and streams have their keys."""
    import numpy as np
    import torch

    from sween.philox import random_words, stream_words
    from sween.seeding import derive_key

    cpu = torch.device("cpu")
    drawn = random_words(stream_words([0], cpu), torch.tensor([0]))
    before_zero = 2**256 - 1  # numpy counts on before it draws
    found = {
        "Philox4x32": (PHILOX_32, tuple(int(word) for word in drawn)),
        "Philox4x64": (
            PHILOX_64,
            tuple(int(word) for word in np.random.Philox(counter=before_zero, key=0).random_raw(4)),
        ),
        "key of a stream": (KEY, derive_key(1, "estimation", 2, 3)),
    }
    for what, (expected, got) in found.items():
        if got != expected:
            raise CheckFailed(f"{what}: expected {expected}, got {got}")
    return "ok"


def check_votes(device: str = "cpu") -> str:
    """A linear classifier, whose vote shares and robust radius are known, certified twice."""
    import torch

    from sween.smoothing import SmoothedClassifier

    pixels, n = 64, 10_000
    image = torch.full((1, 8, 8), 0.5)
    linear = torch.nn.Linear(pixels, 2)
    with torch.no_grad():
        linear.weight.copy_(torch.tensor([[0.0], [1.0]]).expand(2, pixels) / pixels**0.5)
        linear.bias.copy_(torch.tensor([0.0, MARGIN - 0.5 * pixels**0.5]))
    model = torch.nn.Sequential(torch.nn.Flatten(), linear).to(device)
    one, other = (
        SmoothedClassifier(
            model,
            sigma=SIGMA,
            num_classes=2,
            batch_size=batch_size,
            precision="float32",
            compile=False,
        ).certify_one(image, n=n, seed=0, indices=0)
        for batch_size in (500, 5_000)
    )
    votes, again = one.estimation_counts[1], other.estimation_counts[1]
    if votes != again:
        raise CheckFailed(f"votes of a repeated certification: expected {votes}, got {again}")
    deviation = (n * SHARE * (1 - SHARE)) ** 0.5
    if abs(votes - n * SHARE) > 5 * deviation:
        raise CheckFailed(f"votes of {n}: expected about {n * SHARE:.0f}, got {votes}")
    if one.prediction != 1 or not 0.9 * MARGIN < one.radius <= MARGIN:
        raise CheckFailed(f"radius: expected just below {MARGIN} for class 1, got {one}")
    return "ok"


def check_votes_on_gpu() -> str:
    """`check_votes` on the first GPU, if torch can use one."""
    import torch

    return check_votes("cuda") if torch.cuda.is_available() else "skipped: no GPU"


def check_zoo() -> str:
    """A model that ships with sween loads and gives probabilities."""
    import torch

    from sween.zoo import load

    ensemble = load("digits-sween3-gaussian-sigma0.50")
    with torch.inference_mode():
        total = float(ensemble(torch.full((1, *ensemble.image_shape), 0.5)).sum())
    if abs(total - 1) > 1e-5:
        raise CheckFailed(f"probabilities of a digit: expected a sum of 1, got {total}")
    return "ok"


CHECKS: dict[str, Callable[[], str]] = {
    "bounds and radii": check_bounds,
    "random words": check_random_words,
    "votes": check_votes,
    "votes on a GPU": check_votes_on_gpu,
    "zoo model": check_zoo,
}
"""Each gives "ok", or why it does not apply, and raises an error if it fails."""
