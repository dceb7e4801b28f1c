"""Every message of every registered set comes out as it went in; changed bytes are a message or are refused."""

from __future__ import annotations

import dataclasses
import enum
import json
import types
import typing
from collections.abc import Mapping
from functools import cache
from typing import Any, Union

import hypothesis.strategies as st
import pytest
from hypothesis import given

import tests.unit.wire.test_messages as examples
from multiworld.elastic.leadership.messages import AGENT_MESSAGES
from multiworld.errors import MessageError
from multiworld.process.spawn.messages import ANSWERS, REQUESTS
from multiworld.wire.messages import MESSAGE_SETS, REST, Json, MessageSet

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
INTS = st.integers(-(1 << 63), (1 << 64) - 1)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | INTS | FLOATS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
SIMPLE: dict[Any, st.SearchStrategy[Any]] = {
    bool: st.booleans(),
    int: INTS,
    float: FLOATS,
    str: TEXTS,
    bytes: st.binary(max_size=20),
    type(None): st.none(),
    Json: VALUES,
}


def later(hint: Any) -> st.SearchStrategy[Any]:
    """Return the strategy of a type that may contain itself."""
    return st.deferred(lambda: of_type(hint))


def made(cls: Any, fields: dict[str, Any]) -> Any:
    """Return None if it refuses these together."""
    try:
        return cls(**fields)
    except ValueError:
        return None


@cache  # building strategies takes longer than drawing from them
def of_type(hint: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for whatever a message may have as a field."""
    if hint in SIMPLE:
        return SIMPLE[hint]
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        return st.one_of([later(each) for each in arguments])
    if origin is tuple and arguments[-1] is Ellipsis:
        return st.lists(of_type(arguments[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*map(of_type, arguments))
    if origin is frozenset:
        return st.frozensets(of_type(arguments[0]), max_size=3)
    if origin is Mapping:
        return st.dictionaries(TEXTS, of_type(arguments[1]), max_size=3)
    if issubclass(hint, enum.Enum):
        return st.sampled_from(hint)
    hints = typing.get_type_hints(hint)
    if dataclasses.is_dataclass(hint):
        fields = {field.name: of_type(hints[field.name]) for field in dataclasses.fields(hint)}
        for field in dataclasses.fields(hint):
            if field.metadata == REST:
                names = TEXTS.filter(lambda name: name not in fields)
                fields[field.name] = st.dictionaries(names, VALUES, max_size=3)
        return st.fixed_dictionaries(fields).map(lambda drawn: made(hint, drawn)).filter(lambda each: each is not None)
    return st.builds(hint, *map(of_type, hints.values()))


@cache
def messages(messages: MessageSet[Any]) -> st.SearchStrategy[Any]:
    ports = st.integers(1, 65535).map(examples.Checked)
    classes: list[Any] = list(messages.classes)
    return st.one_of([ports if cls is examples.Checked else of_type(cls) for cls in classes])


SETS = pytest.mark.parametrize("name", [each.name for each in (examples.SAID, AGENT_MESSAGES, REQUESTS, ANSWERS)])


@SETS
@given(data=st.data())
def test_every_message_comes_out_as_it_went_in(name: str, data: st.DataObject) -> None:
    said = data.draw(messages(MESSAGE_SETS[name]))
    encoded = MESSAGE_SETS[name].encode(said)
    again = MESSAGE_SETS[name].decode(encoded)
    assert again == said
    assert type(again) is type(said)
    assert MESSAGE_SETS[name].encode(again) == MESSAGE_SETS[name].encode(MESSAGE_SETS[name].decode(encoded))


def read_or_refuse(messages: MessageSet[Any], data: bytes) -> None:
    try:
        read = messages.decode(data)
    except MessageError:
        return
    assert messages.decode(messages.encode(read)) == read


@SETS
@given(data=st.data())
def test_changed_bytes_are_a_message_or_are_refused(name: str, data: st.DataObject) -> None:
    encoded = bytearray(MESSAGE_SETS[name].encode(data.draw(messages(MESSAGE_SETS[name]))))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(encoded)))
        length = data.draw(st.integers(0, 4))
        encoded[place : place + length] = data.draw(st.binary(max_size=4))
    read_or_refuse(MESSAGE_SETS[name], bytes(encoded))


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, each in inside for found in paths(each, (*path, key)))]


@SETS
@given(data=st.data())
def test_changed_values_are_a_message_or_are_refused(name: str, data: st.DataObject) -> None:
    fields = json.loads(MESSAGE_SETS[name].encode(data.draw(messages(MESSAGE_SETS[name]))))
    *path, last = data.draw(st.sampled_from(paths(fields)[1:]))
    inside = fields
    for key in path:
        inside = inside[key]
    if data.draw(st.booleans()):
        inside[last] = data.draw(VALUES)
    else:
        del inside[last]
    read_or_refuse(MESSAGE_SETS[name], json.dumps(fields).encode())


@SETS
@given(data=st.binary(max_size=100) | VALUES.map(lambda value: json.dumps(value).encode()))
def test_anything_else_is_refused(name: str, data: bytes) -> None:
    with pytest.raises(MessageError):
        MESSAGE_SETS[name].decode(data)
