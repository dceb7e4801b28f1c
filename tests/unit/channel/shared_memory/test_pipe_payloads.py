"""Payloads that wait at the ends of a pipe: they come in order and whole, and nobody goes on for too long."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from multiworld.channel.shared_memory import pipe_payloads
from multiworld.channel.shared_memory.pipe import WINDOW_BYTES, PipeEnd
from multiworld.channel.shared_memory.pipe_payloads import Payload, PipeReads, PipeWrites, Spin
from multiworld.errors import ProtocolError
from multiworld.wire.progress.waiting import while_blocked
from tests.unit.channel.shared_memory.pipes import CHUNK, ENDS, TURN, WINDOW, Memory, Pipe, make_small, noise


class Both:
    """The payloads at both ends of a small pipe. Bells come when they are delivered."""

    def __init__(self, pipe: Pipe, *, writer: PipeEnd | None = None, reader: PipeEnd | None = None) -> None:
        self.pipe = pipe
        self.to_writer = self.to_reader = 0  # bells that are on their way
        self.written: list[int | None] = []
        self.came: list[int] = []
        self.again: list[str] = []
        self.writes: PipeWrites[int] = PipeWrites(
            writer or pipe.writer,
            ring=self._ring_reader,
            written=self.written.append,
            again=lambda rests: None if rests else self.again.append("write"),
            memory=pipe,
        )
        self.reads = PipeReads(
            reader or pipe.reader,
            ring=self._ring_writer,
            came=self.came.append,
            again=lambda rests: None if rests else self.again.append("read"),
            memory=pipe,
        )
        self.targets: dict[int, Memory] = {}

    def _ring_reader(self) -> None:
        self.to_reader += 1

    def _ring_writer(self) -> None:
        self.to_writer += 1

    def add(self, owner: int, *segments: bytes) -> Payload[int]:
        """Queue a payload without writing any of it."""
        payload = Payload(owner, [memoryview(bytearray(segment)) for segment in segments])
        self.writes.waiting.append(payload)
        return payload

    def expect(self, seq: int, size_bytes: int) -> None:
        self.targets[seq] = Memory(bytes(size_bytes))
        self.reads.expect(seq, size_bytes, self.targets[seq].view)

    def deliver(self) -> None:
        """Let all bells come until there are no more."""
        while self.to_writer or self.to_reader:
            if self.to_reader:
                self.to_reader -= 1
                self.reads.read()
            if self.to_writer:
                self.to_writer -= 1
                self.writes.write()

    def content(self, seq: int) -> bytes:
        self.targets[seq].check_guards()
        return self.targets[seq].content


@pytest.fixture(params=ENDS, ids=lambda ends: f"{ends[0].__name__}-{ends[1].__name__}")
def pipe(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipe]:
    make_small(monkeypatch)
    pipe = Pipe(request.param)
    yield pipe
    pipe.check_guards()


@pytest.fixture
def both(pipe: Pipe) -> Both:
    return Both(pipe)


def test_payloads_come_in_their_order_whatever_their_sizes(both: Both) -> None:
    sizes = (1, CHUNK, WINDOW - 1, 3, TURN + 1, 5 * TURN, WINDOW, 2, 7 * WINDOW + 5)
    payloads = [noise(size, seed=size) for size in sizes]
    for number, payload in enumerate(payloads):
        both.add(number, payload)
        both.expect(number, len(payload))
    both.writes.write()
    both.deliver()
    assert both.came == both.written == list(range(len(sizes)))
    assert [both.content(number) for number in range(len(sizes))] == payloads
    assert both.writes.is_idle


def test_the_segments_of_a_payload_follow_each_other(both: Both) -> None:
    segments = [noise(size, seed=size) for size in (10, 0, 2 * WINDOW + 1, 1, 0, TURN)]
    both.add(1, *segments)
    both.add(2, b"behind")
    both.expect(1, sum(map(len, segments)))
    both.expect(2, 6)
    both.writes.write()
    both.deliver()
    assert both.content(1) == b"".join(segments)
    assert both.content(2) == b"behind"
    assert both.written == both.came == [1, 2]


def test_empty_payloads_take_their_turn(both: Both) -> None:
    both.add(1)
    both.add(2, b"abc")
    both.add(3, b"", b"")
    both.writes.write()
    assert both.written == [1, 2, 3]
    for seq, size in ((1, 0), (2, 3), (3, 0)):
        both.expect(seq, size)
    assert both.came == [1, 2, 3]
    assert both.content(2) == b"abc"


@pytest.mark.parametrize("turn", [TURN, 3], ids=["within a turn", "at its end"])
def test_an_empty_payload_comes_with_the_last_byte_before_it(
    both: Both, turn: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody rings for it."""
    both.expect(1, 3)
    both.expect(2, 0)
    assert both.came == []
    both.add(1, b"abc")
    both.writes.write()
    monkeypatch.setattr(pipe_payloads, "TURN_BYTES", turn)
    both.deliver()
    assert both.came == [1, 2]


def test_who_is_in_the_window_whole_has_been_written(both: Both) -> None:
    """Although nobody reads; what has no room waits."""
    both.add(1, bytes(WINDOW))
    both.add(2, b"1")
    both.writes.write()
    assert both.written == [1]
    assert [payload.owner for payload in both.writes.waiting] == [2]
    assert not both.writes.is_idle
    both.expect(1, WINDOW)
    both.deliver()
    assert both.written == [1, 2]
    assert not both.writes.is_idle, "one byte lies in the window"
    both.expect(2, 1)
    assert both.writes.is_idle


def test_a_detached_payload_stops_those_behind_it_until_it_goes_on(both: Both) -> None:
    data = noise(3 * WINDOW)
    first, second = both.add(1, data), both.add(2, b"behind")
    both.writes.write()
    rest = first.segments[0]
    assert bytes(rest) == data[WINDOW:]
    first.detached = threading.Event()
    both.expect(1, len(data))
    both.expect(2, len(b"behind"))
    both.deliver()
    assert both.written == []
    assert both.pipe.writer.position == WINDOW
    copy = memoryview(bytearray(rest))
    rest[:] = bytes(len(rest))
    first.owner, first.detached = None, None
    first.segments.clear()
    first.segments.append(copy)
    both.writes.write()
    both.deliver()
    assert both.written == [None, 2]
    assert both.content(1) == data
    assert both.content(2) == b"behind"
    assert not second.segments


def test_payloads_before_a_detached_one_are_written(both: Both) -> None:
    both.add(1, b"abc")
    both.add(2, b"def").detached = threading.Event()
    both.writes.write()
    assert both.written == [1]


def test_what_nobody_wants_is_dropped(both: Both) -> None:
    data = noise(2 * TURN)
    both.add(1, bytes(3 * WINDOW))
    both.add(2, data)
    both.reads.expect(1, 3 * WINDOW, None)
    both.expect(2, len(data))
    both.writes.write()
    both.deliver()
    assert both.came == [1, 2]
    assert both.content(2) == data


def test_a_payload_may_go_on_elsewhere(both: Both) -> None:
    data = noise(3 * WINDOW)
    both.add(1, data)
    both.writes.write()
    both.expect(1, len(data))
    incoming = both.reads.find(1)
    assert incoming is not None
    assert incoming.received == WINDOW
    elsewhere = Memory(bytes(len(data)))
    incoming.target = elsewhere.view
    both.deliver()
    assert both.came == [1]
    assert both.content(1) == data[:WINDOW] + bytes(2 * WINDOW)
    assert elsewhere.content == bytes(WINDOW) + data[WINDOW:]
    elsewhere.check_guards()
    assert both.reads.find(1) is None


def test_those_that_are_to_come_can_be_found(both: Both) -> None:
    for seq in (3, 4, 7):
        both.expect(seq, 10)
    assert [incoming.seq for incoming in both.reads] == [3, 4, 7]
    found = both.reads.find(4)
    assert found is not None
    assert (found.seq, found.size_bytes, found.received) == (4, 10, 0)
    assert both.reads.find(5) is None


def test_memory_of_another_size_is_refused(both: Both) -> None:
    with pytest.raises(ProtocolError, match="a payload of 11 bytes for 10 bytes"):
        both.reads.expect(1, 11, Memory(bytes(10)).view)
    assert not list(both.reads)


# ---- the end of the stream


def test_all_that_was_written_is_read_to_the_end(both: Both) -> None:
    for seq in range(1, 4):
        both.expect(seq, CHUNK)
        both.add(seq, noise(CHUNK, seed=seq))
    both.writes.write()
    both.reads.read(to_the_end=True)
    assert both.came == [1, 2, 3]
    assert [both.content(seq) for seq in both.came] == [noise(CHUNK, seed=seq) for seq in both.came]
    both.reads.read(to_the_end=True)
    assert both.came == [1, 2, 3]


def test_without_its_end_a_payload_is_an_error(both: Both) -> None:
    for seq in (1, 2):
        both.expect(seq, CHUNK)
    both.add(1, bytes(CHUNK))
    both.add(2, bytes(CHUNK - 1))
    both.writes.write()
    with pytest.raises(ProtocolError, match="the end of message 2 is missing"):
        both.reads.read(to_the_end=True)
    assert both.came == [1]


def test_nonsense_of_the_other_side_is_an_error_at_both_ends(both: Both) -> None:
    both.expect(1, 2 * WINDOW)
    both.pipe.written.value += WINDOW + 1
    with pytest.raises(ProtocolError, match="counts more than there can be"):
        both.reads.read()
    both.pipe.taken.value += 1
    both.add(1, bytes(WINDOW))
    with pytest.raises(ProtocolError, match="counts more than there can be"):
        both.writes.write()


# ---- turns


class Meanwhile:
    """An end whose other side acts whenever it has moved something: only its turn can end what it does."""

    def __init__(self, end: PipeEnd, act: Callable[[], object]) -> None:
        self._end, self._act = end, act
        self.num_moved = 0
        self.spins: list[float] = []

    @property
    def bell(self) -> bool:
        return self._end.bell

    @property
    def position(self) -> int:
        return self._end.position

    def push(self, source: int, size_bytes: int, spin_s: float) -> int:
        return self._count(self._end.push(source, size_bytes, spin_s), spin_s)

    def pull(self, target: int | None, size_bytes: int, spin_s: float, *, past_caches: bool, not_yet: bool) -> int:
        moved = self._end.pull(target, size_bytes, spin_s, past_caches=past_caches, not_yet=not_yet)
        return self._count(moved, spin_s)

    def _count(self, moved: int, spin_s: float) -> int:
        self.num_moved += moved
        self.spins.append(spin_s)
        self._act()
        return moved

    def rest_writing(self, *, early: bool) -> bool:
        return self._end.rest_writing(early=early)

    def rest_reading(self, *, early: bool, end: int) -> bool:
        return self._end.rest_reading(early=early, end=end)

    def wake(self) -> None:
        self._end.wake()

    def is_level(self) -> bool:
        return self._end.is_level()


def emptied(pipe: Pipe, *, but: int) -> Meanwhile:
    """Return a writer whose reader reads all, but for so many bytes."""
    return Meanwhile(pipe.writer, lambda: pipe.skip(pipe.writer.position - pipe.reader.position - but))


def filled(pipe: Pipe, size_bytes: int) -> Meanwhile:
    """Return a reader whose writer writes so much in all, as there is room."""

    def write() -> None:
        room = WINDOW - (pipe.writer.position - pipe.reader.position)
        assert pipe.push(bytes(min(room, size_bytes - pipe.writer.position))) <= room

    write()
    return Meanwhile(pipe.reader, write)


def test_a_turn_of_writing_ends_and_goes_on_with_a_bell(pipe: Pipe) -> None:
    writer = emptied(pipe, but=1)
    both = Both(pipe, writer=writer)
    both.add(1, bytes(3 * TURN))
    for num_turns in (1, 2):
        both.writes.write()
        assert num_turns * TURN <= writer.num_moved < num_turns * (TURN + CHUNK)
        assert both.to_reader == 0, "it does not rest"
        assert both.written == []
        assert pipe.skip(1) == 1
        assert pipe.reader.bell, "what is left was read"
    both.writes.write()
    assert both.written == [1]


def test_a_turn_of_writing_goes_on_if_nothing_is_left_to_be_read(pipe: Pipe) -> None:
    """Whose end would ring the bell."""
    writer = emptied(pipe, but=0)
    both = Both(pipe, writer=writer)
    both.add(1, bytes(3 * TURN))
    both.writes.write()
    assert both.written == [1]


def test_a_turn_of_reading_ends_and_goes_on_with_a_bell(pipe: Pipe) -> None:
    reader = filled(pipe, 3 * TURN)
    both = Both(pipe, reader=reader)
    both.expect(1, 3 * TURN)
    for num_turns in (1, 2):
        assert reader.num_moved == num_turns * TURN
        assert both.came == []
        assert pipe.reader_rests.value % 2 == 1
        both.reads.read()
    assert both.came == [1]
    assert pipe.reader_rests.value % 2 == 0


def test_a_turn_of_reading_goes_on_if_all_is_written(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody would ring the bell."""
    both.add(1, bytes(WINDOW))
    both.writes.write()
    monkeypatch.setattr(pipe_payloads, "TURN_BYTES", CHUNK)
    both.expect(1, WINDOW)
    assert both.came == [1]


def test_a_writer_that_rests_hears_of_room_at_the_end_of_a_turn(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    both.add(1, bytes(2 * WINDOW))
    both.writes.write()
    monkeypatch.setattr(pipe_payloads, "TURN_BYTES", CHUNK)
    both.expect(1, 2 * WINDOW)
    assert both.pipe.reader.position == CHUNK
    assert both.to_writer == 1
    both.deliver()
    assert both.came == both.written == [1]


def test_a_thread_that_blocks_has_longer_turns(pipe: Pipe) -> None:
    reader = filled(pipe, 6 * TURN)
    both = Both(pipe, reader=reader)
    while_blocked(lambda: both.expect(1, 6 * TURN))
    assert reader.num_moved == 4 * TURN


def test_who_waits_for_a_payload_hears_of_it_before_much_of_the_next_is_read(both: Both) -> None:
    both.expect(1, CHUNK)
    both.expect(2, 3 * TURN)
    both.add(1, bytes(CHUNK))
    both.add(2, bytes(3 * TURN))
    both.writes.write()
    both.reads.read()
    assert both.came == [1]
    assert both.pipe.reader.position == CHUNK + WINDOW // 2
    both.deliver()
    assert both.came == [1, 2]


def test_whoever_waits_for_a_payload_to_be_written_hears_of_it_before_the_next_one_waits_for_room(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipe_payloads, "MAX_SPIN_S", 1e-6)
    writer = Meanwhile(pipe.writer, lambda: None)
    both = Both(pipe, writer=writer)
    both.add(1, bytes(WINDOW))
    both.add(2, bytes(WINDOW))
    both.writes.write()
    assert writer.spins == [1e-6, 0.0]


def test_a_writer_without_room_rings_a_reader_that_has_begun_to_rest(pipe: Pipe) -> None:
    """Before it looked at what was written last: else both would sleep."""
    end = 2 * WINDOW
    writer = Meanwhile(pipe.writer, lambda: pipe.reader.rest_reading(early=True, end=end))
    both = Both(pipe, writer=writer)
    both.add(1, bytes(end))
    both.writes.write()
    assert writer.num_moved == WINDOW
    assert both.to_reader == 1
    both.expect(1, end)
    both.deliver()
    assert both.came == both.written == [1]


# ---- how long an end looks


def test_an_end_looks_for_less_time_when_that_does_not_pay_and_longer_when_it_does() -> None:
    spin = Spin()
    assert spin.seconds == pipe_payloads.MAX_SPIN_S
    spin.rested()
    spin.rested()
    assert spin.seconds == pipe_payloads.MAX_SPIN_S / 4
    spin.moved(WINDOW_BYTES - 1)
    assert spin.seconds == pipe_payloads.MAX_SPIN_S / 4
    spin.moved(WINDOW_BYTES)
    assert spin.seconds == pipe_payloads.MAX_SPIN_S / 2
    for _ in range(3):
        spin.moved(WINDOW_BYTES)
    assert spin.seconds == pipe_payloads.MAX_SPIN_S
    for _ in range(100):
        spin.rested()
    assert spin.seconds == pipe_payloads.MIN_SPIN_S


def test_a_turn_ends_by_the_clock_too(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the other end does, and however slowly: who rests is rung for, who may not is called again."""
    content = noise(3 * CHUNK)
    both.add(1, content)
    both.writes.write()
    monkeypatch.setattr(pipe_payloads, "TURN_S", -1.0)
    both.expect(1, len(content))
    assert not both.came or both.again == []
    for _ in range(10):
        if both.again:
            assert both.again.pop() == "read"
            both.reads.read()
    assert both.came == [1]
    assert both.content(1) == content


def test_a_writer_whose_time_is_over_rests_or_is_called_again(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipe_payloads, "TURN_S", -1.0)
    content = noise(2 * WINDOW)
    both.add(1, content[:CHUNK], content[CHUNK:])
    both.writes.write()
    both.expect(1, len(content))
    for _ in range(100):
        both.deliver()
        for end in [both.again.pop() for _ in range(len(both.again))]:
            (both.reads.read if end == "read" else both.writes.write)()
    assert both.came == both.written == [1]
    assert both.content(1) == content


def test_a_payload_that_is_in_the_window_whole_is_written_although_the_time_is_over(
    both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its reader, who finds the end of it there, reads on without ringing."""
    content = noise(WINDOW)
    both.add(1, content)
    monkeypatch.setattr(pipe_payloads, "TURN_S", -1.0)
    both.writes.write()
    monkeypatch.setattr(pipe_payloads, "TURN_S", 1000.0)
    monkeypatch.setattr(pipe_payloads, "TURN_BYTES", CHUNK)
    both.expect(1, len(content))
    both.deliver()
    assert both.came == both.written == [1]
    assert both.again == []
    assert both.content(1) == content


def test_a_writer_that_rests_amid_the_next_payload_goes_on_when_that_is_expected(
    both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although its reader, to whom nobody has said that it comes, has read all before it without ringing."""
    both.add(1, bytes(WINDOW // 2))
    both.add(2, bytes(2 * WINDOW))
    both.writes.write()
    assert both.written == [1]
    monkeypatch.setattr(pipe_payloads, "TURN_BYTES", CHUNK)
    both.expect(1, WINDOW // 2)
    assert (both.came, both.to_writer) == ([1], 0)
    both.expect(2, 2 * WINDOW)
    for _ in range(100):
        both.deliver()
        for end in [both.again.pop() for _ in range(len(both.again))]:
            (both.reads.read if end == "read" else both.writes.write)()
    assert both.came == both.written == [1, 2]


def test_what_is_closed_meanwhile_moves_nothing_more(pipe: Pipe) -> None:
    """As by a signal handler that aborts the world, which runs on the thread that moves."""

    class Closing:
        def __init__(self, end: PipeEnd) -> None:
            self._end = end
            self.close: Callable[[], None] = lambda: None

        def __getattr__(self, name: str) -> object:
            return getattr(self._end, name)

        def push(self, source: int, size_bytes: int, spin_s: float) -> int:
            self.close()
            return self._end.push(source, CHUNK, spin_s)

        def pull(self, target: int | None, size_bytes: int, spin_s: float, **how: bool) -> int:
            self.close()
            return self._end.pull(target, CHUNK, spin_s, **how)

    writer, reader = Closing(pipe.writer), Closing(pipe.reader)
    both = Both(pipe, writer=writer, reader=reader)  # type: ignore[arg-type]
    both.add(1, noise(4 * CHUNK))
    writer.close = both.writes.close
    both.writes.write()
    assert pipe.writer.position == CHUNK
    assert not both.written
    reader.close = both.reads.close
    both.expect(1, 4 * CHUNK)
    assert pipe.reader.position == CHUNK
    assert not both.came


def test_memory_that_cannot_be_written_is_sent_from_a_copy(both: Both) -> None:
    both.writes.waiting.append(Payload(1, [memoryview(b"abc"), memoryview(bytearray(b"def"))]))
    both.writes.write()
    both.expect(1, 6)
    assert both.content(1) == b"abcdef"
