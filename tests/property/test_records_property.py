"""Authenticated records: however the bytes arrive the same stream comes out; nothing else ever does."""

from __future__ import annotations

import itertools

import hypothesis.strategies as st
import pytest
from hypothesis import given

from multiworld.errors import RecordError
from multiworld.wire.connection.records import (
    ACCEPTOR,
    DIALER,
    MAX_BODY_BYTES,
    OVERHEAD_BYTES,
    RecordReader,
    RecordWriter,
)

KEY = b"k" * 32
BODIES = st.lists(st.binary(min_size=1, max_size=60), min_size=1, max_size=8)


def records(bodies: list[bytes], key: bytes = KEY, role: bytes = DIALER) -> list[bytes]:
    writer = RecordWriter(key, role)
    return [writer.write(body) for body in bodies]


def read(reader: RecordReader, stream: bytes, cuts: list[int] | None = None) -> bytes:
    """Return what verified, in pieces that begin at the cuts; raises RecordError, with what came before in ``args``."""
    heard = b""
    places = sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts or [])})
    try:
        for start, end in itertools.pairwise(places):
            for body in reader.read(memoryview(stream)[start:end]):
                heard += body
    except RecordError as error:
        error.args = (heard,)
        raise
    return heard


@given(BODIES, st.lists(st.integers(0, 10_000), max_size=20))
def test_the_stream_comes_out_however_it_arrives(bodies: list[bytes], cuts: list[int]) -> None:
    assert read(RecordReader(KEY, DIALER), b"".join(records(bodies)), cuts) == b"".join(bodies)


@given(BODIES, st.lists(st.integers(0, 10_000), max_size=20), st.data())
def test_one_changed_bit_ends_it_where_it_stands(bodies: list[bytes], cuts: list[int], data: st.DataObject) -> None:
    """Nothing of the record that it is in comes out, and nothing that stands behind."""
    whole = records(bodies)
    stream = bytearray(b"".join(whole))
    bit = data.draw(st.integers(0, 8 * len(stream) - 1))
    stream[bit // 8] ^= 1 << bit % 8
    starts = [sum(map(len, whole[:number])) for number in range(len(whole))]
    number = max(number for number, start in enumerate(starts) if start <= bit // 8)
    reader = RecordReader(KEY, DIALER)
    stream += bytes(MAX_BODY_BYTES)  # should it be the length that has grown: that is noticed when so much has come
    with pytest.raises(RecordError) as ended:
        read(reader, bytes(stream), cuts)
    assert (ended.value.number, ended.value.args[0]) == (number, b"".join(bodies[:number]))


@given(st.lists(st.binary(min_size=1, max_size=60), min_size=2, max_size=6), st.data())
def test_what_is_repeated_left_out_put_in_or_reordered_ends_it(bodies: list[bytes], data: st.DataObject) -> None:
    sent = records(bodies)
    foreign = [
        *records(bodies, role=ACCEPTOR),  # reflected: what this end has said itself
        *records(bodies, key=b"another connection" * 2),
    ]
    arrived = data.draw(st.lists(st.sampled_from(sent + foreign), min_size=1, max_size=len(sent) + 2))
    right = 0
    while right < len(arrived) and right < len(sent) and arrived[right] == sent[right]:
        right += 1
    reader = RecordReader(KEY, DIALER)
    if right == len(arrived):
        assert read(reader, b"".join(arrived)) == b"".join(bodies[:right])
        return
    with pytest.raises(RecordError) as ended:
        read(reader, b"".join(arrived))
    assert (ended.value.number, ended.value.args[0]) == (right, b"".join(bodies[:right]))


@given(st.binary(min_size=4, max_size=200).filter(lambda noise: not 0 < int.from_bytes(noise[:4], "little") < 200))
def test_noise_in_the_place_of_a_record_is_noticed_at_its_length(noise: bytes) -> None:
    reader = RecordReader(KEY, DIALER)
    if int.from_bytes(noise[:4], "little") > MAX_BODY_BYTES or len(noise) >= OVERHEAD_BYTES:
        with pytest.raises(RecordError):
            read(reader, noise.ljust(MAX_BODY_BYTES + OVERHEAD_BYTES, b"\0"))


def test_what_is_long_goes_in_several_records() -> None:
    data = bytes(range(256)) * 1000
    stream = RecordWriter(KEY, DIALER).write(data)
    assert len(stream) == len(data) + OVERHEAD_BYTES * -(-len(data) // MAX_BODY_BYTES)
    assert read(RecordReader(KEY, DIALER), stream, [1, 5, 70_000]) == data


def test_without_a_key_there_are_no_records() -> None:
    with pytest.raises(ValueError, match="need the key of a handshake"):
        RecordWriter(b"", DIALER)
