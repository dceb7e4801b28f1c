"""Frames: their layout on the wire, payloads that change their destination, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from multiworld.errors import ProtocolError
from multiworld.wire.connection.frames import (
    DIRECT_BYTES,
    HEADER_BYTES,
    FrameParser,
    Header,
    Kind,
    pack_frame,
    pack_header,
)


class Target:
    """A sink with one buffer for the payload."""

    def __init__(self, size: int) -> None:
        self.buffer = bytearray(size)
        self.ended: list[Header] = []

    def begin(self, header: Header, meta: bytes) -> memoryview | None:
        return memoryview(self.buffer)

    def end(self, header: Header, meta: bytes) -> None:
        self.ended.append(header)


class CallbackSink:
    """A sink for control connections: calls back with each frame; a payload is refused."""

    def __init__(self, on_frame: Callable[[Header, bytes], None]) -> None:
        self._on_frame = on_frame

    def begin(self, header: Header, meta: bytes) -> memoryview | None:
        if header.payload_bytes:
            raise ProtocolError(f"frame kind {header.kind} must not carry a payload here")
        return None

    def end(self, header: Header, meta: bytes) -> None:
        self._on_frame(header, meta)


def payload_header(size: int) -> bytes:
    return pack_header(Kind.MESSAGE, payload_bytes=size)


def test_a_header_is_little_endian_and_32_bytes_long() -> None:
    packed = pack_header(Kind.MESSAGE, flags=3, meta_bytes=4, payload_bytes=5, tag=-2, seq=7)
    assert packed.hex(" ") == (
        "4d 57 3c 03 04 00 00 00 05 00 00 00 00 00 00 00 fe ff ff ff ff ff ff ff 07 00 00 00 00 00 00 00"
    )
    assert len(packed) == HEADER_BYTES == 32


def test_a_large_payload_is_read_straight_into_place() -> None:
    size = 3 * DIRECT_BYTES
    target = Target(size)
    parser = FrameParser(target, max_meta_bytes=10)
    assert parser.direct() is None
    parser.feed(memoryview(payload_header(size) + b"a" * 100))
    assert parser.in_payload is not None
    assert parser.received_bytes == 100
    direct = parser.direct()
    assert direct is not None
    assert len(direct) == size - 100
    direct[: 2 * DIRECT_BYTES] = b"b" * (2 * DIRECT_BYTES)
    parser.advance(2 * DIRECT_BYTES)
    assert parser.direct() is None, "the small rest comes with what follows it"
    parser.feed(memoryview(b"c" * (DIRECT_BYTES - 100)))
    assert len(target.ended) == 1
    assert bytes(target.buffer) == b"a" * 100 + b"b" * (2 * DIRECT_BYTES) + b"c" * (DIRECT_BYTES - 100)
    assert parser.at_boundary


def test_the_rest_of_a_payload_can_go_elsewhere() -> None:
    size = 2 * DIRECT_BYTES
    target = Target(size)
    parser = FrameParser(target, max_meta_bytes=10)
    parser.feed(memoryview(payload_header(size) + b"a" * 1000))
    elsewhere = bytearray(size)
    elsewhere[:1000] = target.buffer[:1000]
    target.buffer[:1000] = b"x" * 1000
    parser.redirect(memoryview(elsewhere))
    parser.feed(memoryview(b"b" * (size - 1000)))
    assert bytes(elsewhere) == b"a" * 1000 + b"b" * (size - 1000)
    assert bytes(target.buffer) == b"x" * 1000 + bytes(size - 1000), "nothing was written after the redirection"


def test_the_rest_of_a_payload_can_be_dropped() -> None:
    target = Target(DIRECT_BYTES + 5)
    parser = FrameParser(target, max_meta_bytes=10)
    parser.feed(memoryview(payload_header(DIRECT_BYTES + 5)))
    parser.redirect(None)
    assert parser.direct() is None
    parser.feed(memoryview(b"b" * (DIRECT_BYTES + 5) + pack_frame(Kind.BYE)))
    assert [header.kind for header in target.ended] == [Kind.MESSAGE, Kind.BYE]
    assert not any(target.buffer)


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n", "not a multiworld frame: it starts with 0x4547"),
        (pack_header(200), "unknown frame kind 200"),
        (pack_header(Kind.HELLO, meta_bytes=11), "oversized header: 11 bytes of meta, at most 10"),
        (pack_header(Kind.MESSAGE, payload_bytes=2**60), "oversized payload"),
    ],
)
@pytest.mark.parametrize("in_pieces", [False, True])
def test_a_bad_header_is_refused_with_the_reason(header: bytes, reason: str, in_pieces: bool) -> None:
    parser = FrameParser(Target(0), max_meta_bytes=10)
    pieces = (header[:5], header[5:20], header[20:]) if in_pieces else (header,)

    def feed() -> None:
        for piece in pieces:
            parser.feed(memoryview(piece))

    with pytest.raises(ProtocolError, match=reason):
        feed()


def test_a_bad_header_is_refused_before_its_meta_comes() -> None:
    parser = FrameParser(Target(0), max_meta_bytes=10)
    with pytest.raises(ProtocolError):
        parser.feed(memoryview(pack_header(Kind.HELLO, meta_bytes=2**32 - 1)))


def test_control_frames_carry_no_payload() -> None:
    seen: list[tuple[int, bytes]] = []
    parser = FrameParser(CallbackSink(lambda header, meta: seen.append((header.kind, meta))), max_meta_bytes=10)
    parser.feed(memoryview(pack_frame(Kind.HEARTBEAT) + pack_frame(Kind.READY, b"abc")))
    assert seen == [(Kind.HEARTBEAT, b""), (Kind.READY, b"abc")]
    with pytest.raises(ProtocolError, match="must not carry a payload"):
        parser.feed(memoryview(pack_header(Kind.READY, payload_bytes=1)))


@pytest.mark.parametrize("takes", [False, True])
def test_a_frame_that_came_with_its_payload_is_offered_whole(takes: bool) -> None:
    offered: list[tuple[int, bytes, bytes]] = []

    def take(header: Header, meta: bytes, payload: memoryview) -> bool:
        offered.append((header.seq, meta, bytes(payload)))
        return takes

    target = Target(3)
    parser = FrameParser(target, max_meta_bytes=10)
    parser.take_whole = take
    whole = pack_header(Kind.MESSAGE, meta_bytes=2, payload_bytes=3, seq=5) + b"mmabc"
    parser.feed(memoryview(whole + pack_frame(Kind.BYE) + whole[:-1]))
    assert offered == [(5, b"mm", b"abc")], "not one without payload, nor one that is not all there"
    assert [header.kind for header in target.ended] == [Kind.BYE] if takes else [Kind.MESSAGE, Kind.BYE]
    parser.feed(memoryview(b"c"))
    assert parser.at_boundary
    assert target.ended[-1].kind == Kind.MESSAGE
    assert bytes(target.buffer) == b"abc"
