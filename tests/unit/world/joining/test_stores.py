"""A store that can't be served: the error says what to do."""

from __future__ import annotations

import errno

import pytest

from multiworld.world.joining.stores import why_not_served


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.EADDRNOTAVAIL, "It is no address of this host: give one that it has"),
        (errno.EADDRINUSE, "Choose another port, or 0 for a free one"),
    ],
)
def test_the_advice_fits_the_error(number: int, advice: str) -> None:
    assert why_not_served(OSError(number, "the text")) == f"cannot be served here: the text. {advice}"
