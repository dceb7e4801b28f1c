"""What a record says is checked before it is used."""

from __future__ import annotations

import pytest

from multiworld.remote.protocol.checks import count, list_of, text


def test_what_fits_is_returned() -> None:
    assert text("x") == "x"
    assert list_of([1]) == [1]
    assert [count(each, 3) for each in (0, 2)] == [0, 2]


@pytest.mark.parametrize("value", [None, 3, ["x"], b"x"])
def test_another_thing_is_no_text(value: object) -> None:
    with pytest.raises(TypeError, match="a text is needed, not "):
        text(value)


def test_a_tuple_is_no_list() -> None:
    with pytest.raises(TypeError, match="a list is needed, not "):
        list_of((1,))


@pytest.mark.parametrize("value", [-1, 3, True, 1.0, "1", None])
def test_other_things_are_no_count(value: object) -> None:
    with pytest.raises(ValueError, match="a number from 0 to 2 is needed, not "):
        count(value, 3)
