"""Numbers of public functions; what is not a number is quoted in the error."""

import numpy as np
import pytest

from sween.arguments import real_number, whole_number
from sween.errors import BadInput, describe_type


def test_numbers_of_any_kind_become_plain() -> None:
    assert type(whole_number("n", np.int32(3))) is int
    assert type(real_number("alpha", np.float32(0.5))) is float


@pytest.mark.parametrize("value", [".5", True, None, [1]])
def test_anything_else_is_quoted(value: object) -> None:
    for convert in (whole_number, real_number):
        with pytest.raises(BadInput) as caught:
            convert("n", value)
        assert f"got {value!r}; pass n as" in str(caught.value)


@pytest.mark.parametrize(
    ("value", "words"),
    [(1, "an int"), ([], "a list"), (None, "None"), (np.zeros(1), "an array"), ({1}, "a set")],
)
def test_types_have_their_article(value: object, words: str) -> None:
    assert describe_type(value) == words
