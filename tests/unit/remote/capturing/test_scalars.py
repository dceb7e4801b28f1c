"""Numbers of a step: their arithmetic is done again with other values."""

from __future__ import annotations

import copy
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multiworld.remote.capturing.scalars import Place, Scalars, StepScalar
from multiworld.remote.errors import CaptureError

NUMBERS = st.floats(0.125, 8, allow_nan=False)


def _evaluate(scalars: Scalars, scalar: float, **given_values: float) -> float:
    assert isinstance(scalar, StepScalar)
    places = [Place(scalar.place)]
    return scalars.evaluate(scalars.needed_for(places), given_values)[scalar.place]


@given(NUMBERS, NUMBERS, NUMBERS, NUMBERS)
def test_arithmetic_is_that_of_floats(first: float, second: float, other_first: float, other_second: float) -> None:
    def compute(a: float, b: float) -> float:
        return -a * 0.5 + (2 - b) / abs(a - 9) - a**2 + 2**b + (7 // a) % 3 + 5 % b + (+b) + a / b + 3 / a

    scalars = Scalars()
    a, b = scalars.named("a", first), scalars.named("b", second)
    result = compute(a, b)
    assert repr(result) == repr(compute(first, second))
    assert _evaluate(scalars, result, a=other_first, b=other_second) == compute(other_first, other_second)


def test_only_what_is_needed_is_computed_again() -> None:
    scalars = Scalars()
    a = scalars.named("a", 1.0)
    _ = 1 / a
    b = a + 1
    assert _evaluate(scalars, b, a=0.0) == 1.0


def test_a_float_of_a_scalar_is_known_by_its_bits() -> None:
    scalars = Scalars()
    a = scalars.named("a", 1.0)
    plain = float.__add__(0.0, 1.0)
    assert scalars.place_of(plain) is None
    assert scalars.place_of(math.nan) is None
    assert scalars.place_of(a) == Place(0)
    for changed in (math.sqrt(a), math.fabs(a), float.__neg__(a), float.__mul__(a, 2.0)):
        with pytest.raises(ValueError, match="outside of Python's arithmetic"):
            scalars.place_of(changed)


def test_behind_the_block_scalars_are_numbers() -> None:
    scalars = Scalars()
    a = scalars.named("a", 2.0)
    b = a * 3
    assert f"{a:.2f} {b}" == "2.00 6.0"
    with pytest.raises(CaptureError, match="varies from replay to replay"):
        assert b > a
    with pytest.raises(CaptureError, match="a copy"):
        copy.copy(a)
    scalars.stop()
    assert b > a
    assert a == 2.0
    assert math.sqrt(b + a + 1) == 3.0
    assert type(a + 1) is float
    other = Scalars()
    assert _evaluate(other, other.named("c", 1.0) + a, c=5.0) == 7.0


def test_a_name_is_given_once() -> None:
    scalars = Scalars()
    scalars.named("a", 1.0)
    with pytest.raises(ValueError, match="'a' already"):
        scalars.named("a", 2.0)
