"""Numbers that vary from replay to replay: floats that remember how they were computed. Pure.

An operator takes a float through C++, where a subclass is lost. So the number in C++ is a signalling NaN that holds the
place of its expression. A copy keeps such a number as it is. Each computation with it in C makes a quiet NaN, or
changes its sign: so what was computed where nobody could note it is found, and refused. At the end of the block that is
captured all these floats get the value that they stand for.
"""

from __future__ import annotations

import ctypes
import math
import operator
import struct
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, NoReturn, SupportsIndex, TypeAlias

from ..errors import CaptureError
from ..session.origins import here

_BITS: Final = struct.Struct("<Q")
_DOUBLE: Final = struct.Struct("<d")
_SIGN: Final = 1 << 63
_QUIET: Final = 1 << 51
_MARK: Final = _SIGN | 0x7FF << 52 | 0x2AB3C << 32
_PLACE: Final = (1 << 32) - 1
_VALUE_OFFSET: Final = object.__basicsize__  # in CPython the value of a float stands behind the head of the object


class Named(NamedTuple):
    """The number that a replay gets under this name."""

    name: str


class Computed(NamedTuple):
    """``function`` of numbers, and of others at these places among the expressions."""

    function: Callable[..., float]
    operands: tuple[float | Place, ...]


class Place(NamedTuple):
    """Of an expression among the expressions of a step."""

    number: int


Expression: TypeAlias = Named | Computed


class Scalars:
    """The numbers of one step. ``values``: of the named ones, as they are given now."""

    def __init__(self) -> None:
        self.initial: dict[str, float] = {}
        self.is_recording = True
        self._expressions: list[Expression] = []
        self._values: list[float] = []
        self._made: list[weakref.ref[StepScalar]] = []

    def named(self, name: str, value: float) -> StepScalar:
        """Return a number that each replay gets under that name. Raises ValueError if there is one."""
        if name in self.initial:
            raise ValueError(f"the step has a scalar {name!r} already")
        self.initial[name] = value
        return self._make(Named(name), value)

    def computed(self, function: Callable[..., float], *operands: float) -> StepScalar:
        """Return ``function`` of numbers, of which one at least is of this step."""
        shown = tuple(Place(each.place) if self.owns(each) else float(each) for each in operands)  # type: ignore[attr-defined]
        known = [self._values[each.number] if isinstance(each, Place) else each for each in shown]
        return self._make(Computed(function, shown), float(function(*known)))

    def owns(self, value: object) -> bool:
        return type(value) is StepScalar and value.scalars is self

    def place_of(self, value: float) -> Place | None:
        """Return which expression a float stands for, as it comes out of C++; None: for none.

        Raises ValueError for one that was computed of such a float.
        """
        if not math.isnan(value):
            return None
        (bits,) = _BITS.unpack(_DOUBLE.pack(value))
        place = bits & _PLACE
        if bits | _SIGN | _QUIET != _MARK | _QUIET | place or place >= len(self._expressions):
            return None
        if bits != _MARK | place:
            raise ValueError("the number was computed of a scalar of the step outside of Python's arithmetic")
        return Place(place)

    def value_of(self, place: Place) -> float:
        """Return the value in the block that is captured."""
        return self._values[place.number]

    def needed_for(self, places: Iterable[Place]) -> list[int]:
        """Return the expressions that these need, each behind those that it needs itself."""
        needed: set[int] = set()
        todo = [place.number for place in places]
        while todo:
            index = todo.pop()
            if index not in needed:
                needed.add(index)
                expression = self._expressions[index]
                if isinstance(expression, Computed):
                    todo += [each.number for each in expression.operands if isinstance(each, Place)]
        return sorted(needed)

    def evaluate(self, needed: Iterable[int], given: Mapping[str, float]) -> dict[int, float]:
        """Return the values of expressions, by place, in a replay that got these numbers."""
        known: dict[int, float] = {}
        for index in needed:
            expression = self._expressions[index]
            if isinstance(expression, Named):
                known[index] = given[expression.name]
            else:
                operands = [known[each.number] if isinstance(each, Place) else each for each in expression.operands]
                known[index] = float(expression.function(*operands))
        return known

    def stop(self) -> None:
        """The block is over: the floats that it left behind are numbers like others, with the value that they had."""
        self.is_recording = False
        for reference in self._made:
            scalar = reference()
            if scalar is not None:
                ctypes.c_double.from_address(id(scalar) + _VALUE_OFFSET).value = self._values[scalar.place]
        self._made.clear()

    def _make(self, expression: Expression, value: float) -> StepScalar:
        place = len(self._expressions)
        (marked,) = _DOUBLE.unpack(_BITS.pack(_MARK | place))
        scalar = StepScalar(marked)
        scalar.scalars, scalar.place = self, place
        self._expressions.append(expression)
        self._values.append(value)
        self._made.append(weakref.ref(scalar))
        return scalar


class StepScalar(float):
    """A number that varies: its arithmetic in Python is done again in each replay."""

    __slots__ = ("__weakref__", "place", "scalars")
    scalars: Scalars
    place: int

    def __repr__(self) -> str:
        return float.__repr__(self._value())

    __str__ = __repr__

    def __format__(self, form: str) -> str:
        return float.__format__(self._value(), form)

    def __hash__(self) -> int:
        return id(self)

    def __reduce__(self) -> NoReturn:
        _refuse("a copy")

    def _value(self) -> float:
        return self.scalars.value_of(Place(self.place))


def _refuse(what: str) -> NoReturn:
    raise CaptureError(
        what,
        here(),
        "it needs the value of a scalar of the step, which varies from replay to replay, and the program can't depend "
        "on it",
        "Use arithmetic (+ - * / **) on it only, or decide outside of the captured block",
    )


def _arithmetic(function: Callable[..., float], *, is_reflected: bool = False) -> Callable[..., Any]:
    def compute(self: StepScalar, *others: object) -> Any:
        if not all(isinstance(each, (int, float)) for each in others):
            return NotImplemented  # a tensor takes it as a float
        operands: tuple[Any, ...] = (*others, self) if is_reflected else (self, *others)
        owner = next((each.scalars for each in operands if _is_recording(each)), None)
        if owner is None:
            return function(*[each._value() if type(each) is StepScalar else each for each in operands])
        return owner.computed(function, *operands)

    return compute


def _control_flow(name: str) -> Callable[..., Any]:
    plain = getattr(float, name)

    def refuse(self: StepScalar, *others: SupportsIndex) -> Any:
        if self.scalars.is_recording or any(_is_recording(each) for each in others):
            _refuse(f"scalar.{name}")
        return plain(self, *others)

    return refuse


def _is_recording(value: object) -> bool:
    return type(value) is StepScalar and value.scalars.is_recording


for _name in ("neg", "pos", "abs"):
    setattr(StepScalar, f"__{_name}__", _arithmetic(getattr(operator, _name)))
for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
    setattr(StepScalar, f"__{_name}__", _arithmetic(getattr(operator, _name)))
    setattr(StepScalar, f"__r{_name}__", _arithmetic(getattr(operator, _name), is_reflected=True))
for _name in ("bool", "int", "float", "trunc", "floor", "ceil", "round", "divmod", "rdivmod"):
    setattr(StepScalar, f"__{_name}__", _control_flow(f"__{_name}__"))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(StepScalar, f"__{_name}__", _control_flow(f"__{_name}__"))
for _name in ("is_integer", "as_integer_ratio", "hex"):
    setattr(StepScalar, _name, _control_flow(_name))
