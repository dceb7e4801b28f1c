"""Messages between processes: what decodes, what is refused and where, and what no message may have."""

from __future__ import annotations

import enum
import json
import math
import pickle
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest

from multiworld.errors import MessageError, ProtocolError
from multiworld.wire import json_forms
from multiworld.wire.messages import (
    MAX_DEPTH,
    MESSAGE_SETS,
    REST,
    Json,
    MessageSet,
    from_json,
    look_ahead,
    message,
    sparse,
    to_json,
)


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Place(NamedTuple):
    host: str
    port: int


@dataclass(frozen=True, kw_only=True)
class Host:
    name: str
    port: int = 80


@message("spin")
@dataclass(frozen=True, kw_only=True)
class Spin:
    speed: float
    blades: int


@message("rest")
@dataclass(frozen=True, kw_only=True)
class Rest:
    until: str = "morning"


@message("roster")
@dataclass(frozen=True, kw_only=True)
class Roster:
    hosts: tuple[Host, ...]
    leader: Host | None = None
    rank: tuple[int, str] = (0, "")
    places: tuple[Place, ...] = ()
    names: frozenset[str] = frozenset()
    sizes: Mapping[str, int] = field(default_factory=dict)
    color: Color = Color.RED
    blob: bytes = b""
    is_whole: bool = True
    either: int | float | str | None = None
    mood: Spin | Rest | None = None
    extra: Json = None


@message("tree")
@dataclass(frozen=True)
class Tree:
    left: Tree | None = None
    right: Tree | None = None


@message("checked")
@dataclass(frozen=True)
class Checked:
    port: int

    def __post_init__(self) -> None:
        if not 0 < self.port < 65536:
            raise ValueError(f"port {self.port} is no port")


@message("empty")
@dataclass(frozen=True)
class Empty:
    pass


@dataclass(frozen=True, kw_only=True)
class Incident:
    number: int
    kind: str = "loss"
    others: Mapping[str, Json] = field(default_factory=dict, metadata=REST)


@message("incidents")
@sparse
@dataclass(frozen=True, kw_only=True)
class Incidents:
    told: tuple[Incident, ...]
    since: int | None = None
    names: Mapping[str, int] = field(default_factory=dict)


Said = Roster | Tree | Checked | Empty | Spin | Incidents
SAID: MessageSet[Said] = MessageSet("unit test messages", Said, tag="say", max_bytes=100_000)

FULL = Roster(
    hosts=(Host(name="a", port=1), Host(name="b")),
    leader=Host(name="a"),
    rank=(3, "x"),
    places=(Place("h", 5),),
    names=frozenset({"b", "a"}),
    sizes={"k": 1},
    color=Color.BLUE,
    blob=b"\0\xff",
    is_whole=False,
    either=2.5,
    mood=Spin(speed=1.5, blades=3),
    extra={"deep": [1, None, {"x": True}]},
)


def refused(fields: Mapping[str, Any]) -> MessageError:
    with pytest.raises(MessageError) as raised:
        SAID.decode(json.dumps(fields).encode())
    return raised.value


@pytest.mark.parametrize("said", [FULL, Roster(hosts=()), Tree(Tree(), None), Checked(5), Empty()])
def test_what_is_encoded_comes_out_again(said: Said) -> None:
    assert SAID.decode(SAID.encode(said)) == said
    assert SAID.decode(memoryview(SAID.encode(said))) == said


def test_the_kind_stands_first_in_compact_json() -> None:
    assert SAID.encode(Spin(speed=1, blades=2)) == b'{"say":"spin","speed":1,"blades":2}'
    assert to_json(Host(name="a")) == {"name": "a", "port": 80}
    assert from_json(Host, {"name": "a"}) == Host(name="a")


def test_a_sparse_message_leaves_out_what_has_its_default() -> None:
    assert SAID.encode(Incidents(told=())) == b'{"say":"incidents","told":[]}'
    assert SAID.to_json(Incidents(told=(), since=3)) == {"say": "incidents", "told": [], "since": 3}


def test_what_no_field_takes_is_kept_where_the_rest_belongs() -> None:
    incident = Incident(number=1, others={"host": "a", "ports": [1, 2]})
    assert to_json(incident) == {"number": 1, "kind": "loss", "host": "a", "ports": [1, 2]}
    assert from_json(Incident, to_json(incident)) == incident
    with pytest.raises(ValueError, match=r"Incident: kind: a field has this name already"):
        to_json(Incident(number=1, others={"kind": "x"}))
    with pytest.raises(TypeError, match="has a field 'say', or may"):
        MessageSet("a rest beside the kind", message("incident")(Incident), tag="say")


def test_equal_sets_make_equal_bytes() -> None:
    there = Roster(hosts=(), names=frozenset(f"n{i}" for i in range(100)))
    again = Roster(hosts=(), names=frozenset(f"n{i}" for i in reversed(range(100))))
    assert SAID.encode(there) == SAID.encode(again)


def test_fields_of_a_later_release_are_skipped_and_missing_ones_take_their_default() -> None:
    fields = {"say": "roster", "hosts": [{"name": "a", "new": 1}], "also_new": {"x": [1]}}
    assert SAID.from_json(fields) == Roster(hosts=(Host(name="a"),))


def test_a_whole_number_may_stand_for_a_float() -> None:
    read = SAID.from_json({"say": "spin", "speed": 2, "blades": 3})
    assert read == Spin(speed=2.0, blades=3)
    assert isinstance(read, Spin)
    assert type(read.speed) is float


def test_a_number_of_a_signal_is_packed_as_a_number() -> None:
    assert SAID.to_json(Spin(speed=0.0, blades=signal.SIGTERM))["blades"] == 15
    assert type(SAID.to_json(Spin(speed=0.0, blades=signal.SIGTERM))["blades"]) is int


def test_a_union_tells_whole_numbers_from_others() -> None:
    for either in (5, 5.0, "5", None):
        read = SAID.decode(SAID.encode(Roster(hosts=(), either=either)))
        assert isinstance(read, Roster)
        assert type(read.either) is type(either)


ROSTER: dict[str, Any] = {"say": "roster", "hosts": []}


@pytest.mark.parametrize(
    ("fields", "kind", "where"),
    [
        ({"say": "nobody"}, "nobody", "say"),
        ({"say": 5}, "", "say"),
        ({}, "", "say"),
        ({"say": "roster"}, "roster", "hosts"),
        ({"say": "roster", "hosts": {}}, "roster", "hosts"),
        ({**ROSTER, "hosts": [{"name": "a"}, {"name": 3}]}, "roster", "hosts[1].name"),
        ({**ROSTER, "hosts": [{"name": "a"}, None]}, "roster", "hosts[1]"),
        ({**ROSTER, "hosts": [{"port": 1}]}, "roster", "hosts[0].name"),
        ({**ROSTER, "hosts": [{"name": "a", "port": True}]}, "roster", "hosts[0].port"),
        ({**ROSTER, "hosts": [{"name": "a", "port": 1.0}]}, "roster", "hosts[0].port"),
        ({**ROSTER, "hosts": [{"name": "a", "port": 1 << 64}]}, "roster", "hosts[0].port"),
        ({**ROSTER, "leader": 5}, "roster", "leader"),
        ({**ROSTER, "rank": [1]}, "roster", "rank"),
        ({**ROSTER, "rank": [1, 2]}, "roster", "rank[1]"),
        ({**ROSTER, "places": [["h", 1], ["h", "1"]]}, "roster", "places[1][1]"),
        ({**ROSTER, "names": ["a", 1]}, "roster", "names[1]"),
        ({**ROSTER, "sizes": {"k": "x"}}, "roster", "sizes.k"),
        ({**ROSTER, "sizes": []}, "roster", "sizes"),
        ({**ROSTER, "color": "green"}, "roster", "color"),
        ({**ROSTER, "color": ["red"]}, "roster", "color"),
        ({**ROSTER, "blob": "no base64!"}, "roster", "blob"),
        ({**ROSTER, "blob": 5}, "roster", "blob"),
        ({**ROSTER, "is_whole": 1}, "roster", "is_whole"),
        ({**ROSTER, "either": [1]}, "roster", "either"),
        ({**ROSTER, "either": True}, "roster", "either"),
        ({**ROSTER, "mood": {"kind": "tree"}}, "roster", "mood.kind"),
        ({**ROSTER, "mood": {"kind": "spin", "speed": "fast"}}, "roster", "mood.speed"),
        ({**ROSTER, "extra": {"a": [0, 1 << 70]}}, "roster", "extra.a[1]"),
        ({"say": "checked", "port": 0}, "checked", ""),
        ({"say": "spin", "speed": 10**400, "blades": 1}, "spin", "speed"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_kind_and_field(fields: dict[str, Any], kind: str, where: str) -> None:
    error = refused(fields)
    assert (error.kind, error.field) == (kind, where)
    assert where in str(error)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"\xff",
        b"[]",
        b'"spin"',
        b'{"say":"spin","speed":NaN,"blades":1}',
        b'{"say":"spin","speed":Infinity,"blades":1}',
        b'{"say":"spin","speed":1e999,"blades":1}',
        b'{"say":"spin","speed":1,"blades":' + b"9" * 5000 + b"}",
        b"[" * 50_000,
        b'{"say":"tree","left":' + b'{"left":' * 11_000 + b"{}" + b"}" * 11_001,
        b'{"say":"empty","x":"' + b"x" * 100_000 + b'"}',
    ],
)
def test_bytes_that_are_no_message_are_refused(data: bytes) -> None:
    with pytest.raises(MessageError):
        SAID.decode(data)


def test_json_that_a_message_only_passes_on_has_a_bound_on_its_depth() -> None:
    deep: Any = None
    for _ in range(MAX_DEPTH):
        deep = [deep]
    assert SAID.from_json({**ROSTER, "extra": deep}) == Roster(hosts=(), extra=deep)
    assert refused({**ROSTER, "extra": [deep]}).field == "extra" + "[0]" * MAX_DEPTH


def test_what_a_stranger_sends_is_shown_in_part_only() -> None:
    assert len(str(refused({"say": "x" * 5000}))) < 300
    assert len(str(refused({**ROSTER, "sizes": {"x" * 5000: "y"}}))) < 300


def test_the_error_is_a_protocol_error_and_pickles() -> None:
    error = refused({**ROSTER, "hosts": [{"name": 3}]})
    assert isinstance(error, ProtocolError)
    again = pickle.loads(pickle.dumps(error))
    assert (again.kind, again.field, again.why, str(again)) == (error.kind, error.field, error.why, str(error))
    assert str(error) == "a message 'roster' is refused: hosts[0].name: a string is needed, not a whole number"


@pytest.mark.parametrize(
    "said",
    [
        Spin(speed=math.nan, blades=1),
        Spin(speed=math.inf, blades=1),
        Spin(speed=1.0, blades=1 << 64),
        Spin(speed=1.0, blades=True),
        Roster(hosts=(), extra=[math.nan]),
        Empty.__new__(Rest),
        Roster(hosts=(), extra="x" * 100_000),
    ],
)
def test_what_would_be_refused_is_not_encoded(said: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        SAID.encode(said)


def test_sets_whose_kinds_cannot_be_told_apart_are_refused() -> None:
    @message("spin")
    @dataclass(frozen=True)
    class Other:
        pass

    with pytest.raises(TypeError, match="the same kind"):
        MessageSet("two of a kind", Spin | Other, tag="say")
    with pytest.raises(TypeError, match="a kind is missing: Host"):
        MessageSet("one of none", Spin | Host, tag="say")
    with pytest.raises(TypeError, match="has a field 'blades'"):
        MessageSet("its tag is a field", Spin, tag="blades")
    with pytest.raises(ValueError, match="called"):
        MessageSet("unit test messages", Spin, tag="say")
    assert MESSAGE_SETS["unit test messages"] is SAID
    assert "two of a kind" not in MESSAGE_SETS


def of_field(hint: Any) -> Callable[[], object]:
    @dataclass(frozen=True)
    class Holder:
        held: Any

    Holder.__annotations__["held"] = hint
    return lambda: from_json(Holder, {"held": None})


@pytest.mark.parametrize(
    "hint", [Any, list[int], dict[str, int], Mapping[int, int], set[str], str | bytes, str | Color]
)
def test_fields_that_cannot_be_told_or_could_be_changed_are_refused(hint: Any) -> None:
    with pytest.raises(TypeError):
        of_field(hint)()


def test_only_frozen_dataclasses_are_messages() -> None:
    @dataclass
    class Loose:
        x: int

    with pytest.raises(TypeError, match="no frozen dataclass"):
        from_json(Loose, {"x": 1})


@dataclass(frozen=True, kw_only=True)
class Way:
    start: str = field(metadata={"json": "from"})
    role: str = field(default="", metadata={"json": "as"})
    host: Host | None = field(default=None, metadata={"none": {}})


def test_a_field_may_have_another_name_in_json() -> None:
    assert to_json(Way(start="a")) == {"from": "a", "as": "", "host": {}}
    assert from_json(Way, {"from": "a", "as": "b"}) == Way(start="a", role="b")
    with pytest.raises(MessageError) as refused:
        from_json(Way, {"start": "a"})
    assert refused.value.field == "from"


def test_an_empty_object_may_stand_for_none() -> None:
    assert from_json(Way, {"from": "a", "host": {}}) == Way(start="a")
    there = Way(start="a", host=Host(name="h"))
    assert from_json(Way, to_json(there)) == there


Hint = int


@dataclass(frozen=True)
class WithHint:
    value: Hint


@dataclass(frozen=True)
class Around:
    inside: tuple[WithHint, ...]


def test_hints_that_were_looked_at_ahead_are_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_forms, "_RECORDS", {})  # without those that other tests have made, and cannot be used
    look_ahead(Around)
    monkeypatch.delitem(globals(), "Hint")
    value = Around((WithHint(1),))
    assert from_json(Around, to_json(value)) == value
