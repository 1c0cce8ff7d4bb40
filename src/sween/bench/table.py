"""Measurements as text."""

from collections.abc import Iterator, Sequence

from sween.bench.throughput import BenchResult
from sween.markdown import NUMBER, TEXT, markdown_table


def to_table(results: Sequence[BenchResult]) -> str:
    """The results as a Markdown table.

    Example:
        See `measure`.
    """
    head = (
        *("model", "image", "exit", "arithmetic", "samples/s", "evaluations/s", "certificates/s"),
        *("reference samples/s", "ratio", "of matrix rate", "first vote"),
        *("memory", "reference memory"),
    )
    rows = [
        (
            result.model,
            "x".join(map(str, result.image_shape)),
            result.exit,
            result.precision,
            f"{result.samples_per_second:,.0f}",
            f"{result.evaluations_per_second:,.0f}",
            f"{result.certificates_per_second:.3g}",
            f"{result.reference_samples_per_second:,.0f}",
            f"{result.ratio:.2f}",
            "-" if result.share_of_matmul is None else f"{100 * result.share_of_matmul:.0f}%",
            f"{result.first_vote_seconds:.1f} s",
            f"{result.memory_bytes / 2**20:,.0f} MiB",
            f"{result.reference_memory_bytes / 2**20:,.0f} MiB",
        )
        for result in results
    ]
    return markdown_table(head, [TEXT] * 4 + [NUMBER] * 9, rows)


def faster_arithmetics(results: Sequence[BenchResult]) -> Iterator[str]:
    """One line for each arithmetic that makes a model faster here, and what it changes.

    Example:
        See `measure`.
    """
    for result in results:
        for other in result.others:
            if other.speedup <= 1:
                continue
            arithmetic, _, ways = other.precision.partition("+")
            how = f"precision {arithmetic}"
            how += " and compile" if ways or arithmetic == "int8" else ""
            yield (
                f"{result.model}: {other.precision} is {other.speedup:.2f} times as fast as "
                f"{result.precision} on this CPU ({how}); it changes "
                f"{other.votes_changed} of {other.votes_compared:,} votes here, so its "
                "certificates are those of another classifier, in a run folder of their own"
            )
