"""The log of commands: what is sent again has the same positions, and stands for the same."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from multiworld.remote.protocol import records, recovering
from multiworld.remote.protocol.records import FIRST_PLAN, HEAD, Kind
from multiworld.remote.protocol.recovering import SKIP, RecoveryKind
from multiworld.remote.recovery.log import CommandLog

ASK = records.ask(records.Ask(request=7, template=b"{}", ids=(1,), floats=(0.5,), outputs=(2, 3)))


def log_at(position: int = 0) -> CommandLog[str]:
    return CommandLog(position, {})


def data_of(log: CommandLog[str], position: int = 0) -> bytes:
    return b"".join(each.data for each in log.repeated(position))


def test_a_request_that_was_answered_is_not_answered_again_and_keeps_its_place() -> None:
    log = log_at()
    log.append([records.free([1]), records.fetch(5, 1), records.free([2]), records.sync(2), records.free([3])])
    log.done(1)
    assert log.is_waiting(2)
    parts = list(log.repeated(0))
    assert [each.end for each in parts] == [1, 2, 3, 4, 5]
    assert [each.data for each in parts] == [
        records.free([1]),
        SKIP,
        records.free([2]),
        records.sync(2),
        records.free([3]),
    ]


def test_a_question_that_was_answered_is_asked_again_with_its_answer() -> None:
    log = log_at()
    log.append([ASK])
    assert data_of(log) == ASK
    log.answered(7, b"an answer")
    log.done(7)
    (part,) = log.repeated(0)
    assert HEAD.unpack_from(part.data)[0] == RecoveryKind.REPEAT
    assert recovering.read_repeat(part.data[HEAD.size :]) == (ASK[HEAD.size :], b"an answer")


def test_what_was_defined_before_a_snapshot_is_defined_first_and_what_was_forgotten_later_is_too() -> None:
    first, second, third = (records.define(FIRST_PLAN + place, b"{}") for place in range(3))
    log: CommandLog[str] = CommandLog(0, {FIRST_PLAN: first})
    log.append([second, third, records.forget(FIRST_PLAN + 1)])
    log.append([records.sync(1)])
    log.append([records.forget(FIRST_PLAN)])
    assert log.definitions == first
    log.drop_before(4)
    assert log.definitions == first + third
    assert data_of(log) == records.forget(FIRST_PLAN)
    log.drop_before(5)
    assert log.definitions == third


def test_large_tensors_are_kept_until_a_snapshot_holds_them() -> None:
    log = log_at()
    log.keep_large(9, "values", 1000)
    assert log.num_bytes == 1000
    log.append([records.arrived(9), records.sync(1)])
    assert [each.arrivals for each in log.repeated(0)] == [(9,), ()]
    assert log.large(9) == "values"
    log.drop_before(2)
    assert (log.num_bytes, len(log), log.position) == (0, 0, 2)


def some_records() -> st.SearchStrategy[list[bytes]]:
    plan = st.integers(FIRST_PLAN, FIRST_PLAN + 9)
    record = st.one_of(
        st.builds(lambda id_: records.free([id_]), st.integers(0, 9)),
        st.builds(lambda number: number.to_bytes(4, "little") + bytes(24), plan),
        st.builds(lambda number: records.define(number, b"{}"), plan),
        st.builds(records.forget, plan),
        st.builds(records.seed, st.integers(0, 9)),
        st.just(records.fetch(1, 0)),
        st.just(records.sync(0)),
        st.just(ASK),
    )
    return st.lists(record, max_size=8)


def with_requests(batches: Sequence[list[bytes]]) -> list[list[bytes]]:
    """Give each request a number of its own."""
    count = iter(range(1, 10_000))

    def numbered(record: bytes) -> bytes:
        kind = HEAD.unpack_from(record)[0]
        if kind == Kind.FETCH:
            return records.fetch(1, next(count))
        if kind == Kind.SYNC:
            return records.sync(next(count))
        if kind == Kind.ASK:
            return records.ask(records.read_ask(record[HEAD.size :])._replace(request=next(count)))
        return record

    return [[numbered(record) for record in batch] for batch in batches]


@given(st.lists(some_records(), max_size=8), st.integers(0, 100), st.data())
def test_the_log_and_its_definitions_are_all_that_a_node_needs(
    drawn: list[list[bytes]], begin: int, data: st.DataObject
) -> None:
    """Definitions and log define what the whole stream defines, at the same positions, however much was dropped."""
    batches = with_requests(drawn)
    log = log_at(begin)
    for batch in batches:
        log.append(batch)
    issued = [record for batch in batches for record in batch]
    ends = [begin, *(each.end for each in log.repeated(begin))]
    cut = data.draw(st.sampled_from(ends))
    kept = issued[cut - begin :]
    assert data_of(log, cut) == b"".join(kept)  # nothing is answered yet
    log.drop_before(cut)
    assert (log.position, log.end, len(log)) == (cut, begin + len(issued), len(kept))
    assert [each.end for each in log.repeated(cut)] == [end for end in ends if end > cut]
    assert data_of(log, cut) == b"".join(kept)
    defined: dict[int, bytes] = {}
    for record in issued[: cut - begin]:
        kind = HEAD.unpack_from(record)[0]
        if kind == Kind.DEFINE:
            defined.pop(records.read_define(record[HEAD.size :])[0], None)
            defined[records.read_define(record[HEAD.size :])[0]] = record
        elif kind == Kind.FORGET:
            defined.pop(records.read_forget(record[HEAD.size :]), None)
    assert sorted(defined.values()) == sorted(_split(log.definitions))
    log.drop_before(log.end)
    assert log.num_bytes == 0


def _split(definitions: bytes) -> list[bytes]:
    found = []
    while definitions:
        size = HEAD.size + HEAD.unpack_from(definitions)[1]
        found.append(definitions[:size])
        definitions = definitions[size:]
    return found
