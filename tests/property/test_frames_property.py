"""The frame parser: however the bytes arrive, the same frames come out; what is not ours is refused."""

from __future__ import annotations

import contextlib

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from multiworld.errors import ProtocolError
from multiworld.wire.connection.frames import (
    DIRECT_BYTES,
    HEADER_BYTES,
    MAGIC,
    FrameParser,
    Header,
    Kind,
    pack_frame,
    pack_header,
)

MAX_META_BYTES, MAX_PAYLOAD_BYTES = 1000, 4 * DIRECT_BYTES
Frame = tuple[Header, bytes, bytes | None]


class Sink:
    """Keeps the frames. Payloads of frames with an odd ``seq`` are dropped."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.begun: list[Header] = []
        self._buffer: bytearray | None = None

    def begin(self, header: Header, meta: bytes) -> memoryview | None:
        self.begun.append(header)
        self._buffer = None if header.seq % 2 else bytearray(header.payload_bytes)
        return None if self._buffer is None else memoryview(self._buffer)

    def end(self, header: Header, meta: bytes) -> None:
        self.frames.append((header, meta, None if self._buffer is None else bytes(self._buffer)))


def new_parser(sink: Sink) -> FrameParser:
    return FrameParser(sink, max_meta_bytes=MAX_META_BYTES, max_payload_bytes=MAX_PAYLOAD_BYTES)


def payload_of(seed: int, size: int) -> bytes:
    return bytes([seed % 251, (seed * 7 + 3) % 253, size % 255]) * (size // 3 + 1)


@st.composite
def frames(draw: st.DrawFn) -> tuple[bytes, list[Frame]]:
    """A stream of frames as bytes, and what the sink should have seen."""
    stream, expected = b"", []
    sizes = st.sampled_from([0, 0, 1, 100, DIRECT_BYTES - 1, DIRECT_BYTES, DIRECT_BYTES + 1, 2 * DIRECT_BYTES + 77])
    for _ in range(draw(st.integers(0, 6))):
        kind, flags = draw(st.sampled_from(list(Kind))), draw(st.integers(0, 255))
        tag, seq = draw(st.integers(-(2**63), 2**63 - 1)), draw(st.integers(0, 2**64 - 1))
        meta, size = draw(st.binary(max_size=60) | st.just(b"m" * MAX_META_BYTES)), draw(sizes)
        payload = payload_of(seq % 1000, size)[:size]
        header = pack_header(kind, flags=flags, meta_bytes=len(meta), payload_bytes=size, tag=tag, seq=seq)
        stream += header + meta + payload
        expected.append((Header(kind, flags, len(meta), size, tag, seq), meta, None if seq % 2 else payload))
    return stream, expected


def feed_in_pieces(parser: FrameParser, stream: bytes, sizes: list[int], use_direct: list[bool]) -> None:
    """Feed the stream in pieces of these sizes, in turn; where we like, and can, straight into place."""
    position = turn = 0
    while position < len(stream):
        size = sizes[turn % len(sizes)]
        direct = parser.direct() if use_direct[turn % len(use_direct)] else None
        piece = stream[position : position + size]
        if direct is None:
            parser.feed(memoryview(piece))
        else:
            piece = piece[: len(direct)]
            direct[: len(piece)] = piece
            parser.advance(len(piece))
        position += len(piece)
        turn += 1


@given(frames(), st.data())
@settings(deadline=None)
def test_any_split_gives_the_same_frames(made: tuple[bytes, list[Frame]], data: st.DataObject) -> None:
    stream, expected = made
    piece = st.sampled_from([1, 2, 5, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 1, 300, DIRECT_BYTES, 200_000])
    sizes = data.draw(st.lists(piece, min_size=1, max_size=8).filter(lambda sizes: sum(sizes) > 200 * len(sizes)))
    use_direct = data.draw(st.lists(st.booleans(), min_size=1, max_size=5))
    sink = Sink()
    parser = new_parser(sink)
    feed_in_pieces(parser, stream, sizes, use_direct)
    assert sink.frames == expected
    assert [header for header, _, _ in expected] == sink.begun
    assert parser.at_boundary


@given(frames(), st.integers(0, 200))
def test_byte_by_byte_is_no_different(made: tuple[bytes, list[Frame]], cut: int) -> None:
    stream, expected = made
    start = min(cut, len(stream))
    sink = Sink()
    parser = new_parser(sink)
    for position in range(start):
        parser.feed(memoryview(stream[position : position + 1]))
    parser.feed(memoryview(stream[start:]))
    assert sink.frames == expected


@given(frames(), st.integers(1, 10_000))
def test_a_stream_that_is_cut_gives_the_frames_before_the_cut(made: tuple[bytes, list[Frame]], missing: int) -> None:
    stream, expected = made
    cut = max(0, len(stream) - missing)
    sink = Sink()
    parser = new_parser(sink)
    parser.feed(memoryview(stream[:cut]))
    assert sink.frames == expected[: len(sink.frames)]
    ends = [0]
    for header, meta, _ in expected:
        ends.append(ends[-1] + HEADER_BYTES + len(meta) + header.payload_bytes)
    assert len(sink.frames) == sum(end <= cut for end in ends[1:])
    assert parser.at_boundary == (cut in ends)


@given(st.binary(max_size=3000), st.lists(st.integers(1, 50), min_size=1, max_size=5), st.booleans())
def test_garbage_is_refused_or_waited_for_and_raises_nothing_else(
    noise: bytes, sizes: list[int], looks_like_ours: bool
) -> None:
    stream = MAGIC.to_bytes(2, "little") + noise if looks_like_ours else noise
    sink = Sink()
    parser = new_parser(sink)
    with contextlib.suppress(ProtocolError):
        feed_in_pieces(parser, stream, sizes, [True, False])
    assert all(header.meta_bytes <= MAX_META_BYTES for header in sink.begun)
    assert all(header.payload_bytes <= MAX_PAYLOAD_BYTES for header in sink.begun)


@given(
    st.integers(0, 255), st.integers(0, 255), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1), st.integers(0, 9)
)
def test_a_header_is_accepted_only_within_the_limits(kind: int, flags: int, meta: int, payload: int, seq: int) -> None:
    packed = pack_header(kind, flags=flags, meta_bytes=meta, payload_bytes=payload, tag=-5, seq=2 * seq)
    assert len(packed) == HEADER_BYTES
    sink = Sink()
    allowed = kind in list(Kind) and meta <= MAX_META_BYTES and payload <= MAX_PAYLOAD_BYTES
    if not allowed:
        with pytest.raises(ProtocolError):
            new_parser(sink).feed(memoryview(packed))
        return
    new_parser(sink).feed(memoryview(packed + bytes(meta)))
    assert sink.begun == [Header(kind, flags, meta, payload, -5, 2 * seq)]


@given(frames(), st.binary(min_size=HEADER_BYTES, max_size=100).filter(lambda noise: noise[:2] != b"MW"))
def test_frames_before_garbage_count_and_none_behind_it(made: tuple[bytes, list[Frame]], noise: bytes) -> None:
    stream, expected = made
    sink = Sink()
    with pytest.raises(ProtocolError, match="not a multiworld frame"):
        new_parser(sink).feed(memoryview(stream + noise + pack_frame(Kind.HELLO, b"late")))
    assert sink.frames == expected
