"""Hypothesis strategies for certificates: right, wrong and abstained in any mixture."""

from typing import Any

from hypothesis import strategies as st

from sween.records import Certificate

from .certificates import abstained, certificate, wrong


@st.composite
def certificate_lists(
    draw: st.DrawFn, /, *, min_size: int = 1, max_size: int = 12, **fields: Any
) -> list[Certificate]:
    """One model's certificates on images 0, 1, ..., with radii that often coincide."""
    size = draw(st.integers(min_size, max_size))
    radii = st.one_of(st.sampled_from([0.0, 0.25, 0.5, 1.0]), st.floats(0, 4))
    rows = []
    for index in range(size):
        kind = draw(st.sampled_from(["right", "right", "wrong", "abstained"]))
        if kind == "abstained":
            rows.append(abstained(index, **fields))
        else:
            make = certificate if kind == "right" else wrong
            rows.append(make(index, draw(radii), **fields))
    return rows
