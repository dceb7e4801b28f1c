"""The two ends of a pipe, in any order of steps, never both sleep while there is something to move."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multiworld.channel.shared_memory import pipe, pipe_payloads
from multiworld.channel.shared_memory.pipe import PythonEnd
from multiworld.channel.shared_memory.pipe_payloads import Payload, PipeReads, PipeWrites
from tests.property.stepping import Actor, flags, play_in_turns
from tests.unit.channel.shared_memory.pipes import ENDS, NEAR_THE_END, WINDOW, Ends, Memory, Pipe, make_small, noise

MAX_PAYLOAD = 3 * WINDOW
NOISE = noise(MAX_PAYLOAD)
sizes = st.integers(1, MAX_PAYLOAD)
ends_of_pipes = st.sampled_from(ENDS)
starts = st.sampled_from([0, NEAR_THE_END])


@pytest.fixture(autouse=True, scope="module")
def small_pipes() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patches:
        make_small(patches)
        patches.setattr(pipe_payloads, "TURN_BYTES", WINDOW // 2)
        yield


# ---- the ends, which act one at a time


class Model:
    """One payload that goes from a writer to a reader. Bells are on their way until they are delivered."""

    def __init__(self, ends: Ends, start: int, total: int) -> None:
        self.pipe = Pipe(ends, start=start)
        self.data, self.came = noise(total, seed=total), b""
        self.end = start + total & 2**64 - 1
        self.unwritten = total
        self.to_writer = self.to_reader = 0
        self.writer_rests = self.reader_rests = False
        self.rung: set[tuple[str, int]] = set()

    @property
    def unread(self) -> int:
        return len(self.data) - len(self.came)

    def ring_reader(self) -> None:
        if self.pipe.writer.bell:
            self.to_reader += 1
            self.rang("reader", self.pipe.reader_rests.value)

    def ring_writer(self) -> None:
        if self.pipe.reader.bell:
            self.to_writer += 1
            self.rang("writer", self.pipe.writer_rests.value)

    def rang(self, who: str, rest: int) -> None:
        assert rest % 2 == 1, f"the {who} was rung, but does not rest"
        assert (who, rest) not in self.rung, f"the {who} was rung twice"
        self.rung.add((who, rest))

    def push(self, size_bytes: int) -> None:
        if not self.writer_rests:
            at = len(self.data) - self.unwritten
            self.unwritten -= self.pipe.push(self.data[at : at + size_bytes])
            self.ring_reader()

    def pull(self, size_bytes: int, *, not_yet: bool = False) -> None:
        if not self.reader_rests:
            self.came += self.pipe.pull(min(size_bytes, self.unread), not_yet=not_yet)
            self.ring_writer()

    def rest_writing(self, *, early: bool) -> None:
        if self.unwritten and not self.writer_rests and self.pipe.writer.rest_writing(early=early):
            self.writer_rests = True
            self.ring_reader()

    def rest_reading(self, *, early: bool) -> None:
        if self.unread and not self.reader_rests and self.pipe.reader.rest_reading(early=early, end=self.end):
            self.reader_rests = True
            self.ring_writer()

    def deliver_to_writer(self) -> None:
        if self.to_writer:
            self.to_writer -= 1
            self.wake_writer()

    def deliver_to_reader(self) -> None:
        if self.to_reader:
            self.to_reader -= 1
            self.wake_reader()

    def wake_writer(self) -> None:
        self.pipe.writer.wake()
        self.writer_rests = False

    def wake_reader(self) -> None:
        self.pipe.reader.wake()
        self.reader_rests = False

    def check(self) -> None:
        in_window = len(self.data) - self.unwritten - len(self.came)
        writer_sleeps = self.writer_rests and not self.to_writer
        reader_sleeps = self.reader_rests and not self.to_reader
        assert not (writer_sleeps and reader_sleeps), "both sleep, and nobody is told"
        assert not (reader_sleeps and in_window and not self.unwritten), "all is written, and the reader sleeps"
        assert not (writer_sleeps and self.unread == 0), "all is read, and the writer sleeps"
        assert self.data.startswith(self.came)
        self.pipe.check_guards()

    def finish(self) -> None:
        """Both go on as they should: who can move nothing rests, and bells are delivered."""
        for _ in range(100):
            self.deliver_to_writer()
            self.push(MAX_PAYLOAD)
            self.rest_writing(early=False)
            self.deliver_to_reader()
            self.pull(MAX_PAYLOAD)
            self.rest_reading(early=False)
            self.check()
        assert self.came == self.data


Step: TypeAlias = Callable[[Model, int], None]
STEPS: dict[str, Step] = {
    "push": lambda model, size: model.push(size),
    "pull": lambda model, size: model.pull(size),
    "pull, and ring later": lambda model, size: model.pull(size, not_yet=True),
    "rest writing": lambda model, _: model.rest_writing(early=False),
    "rest writing early": lambda model, _: model.rest_writing(early=True),
    "rest reading": lambda model, _: model.rest_reading(early=False),
    "rest reading early": lambda model, _: model.rest_reading(early=True),
    "ring the writer": lambda model, _: model.deliver_to_writer(),
    "ring the reader": lambda model, _: model.deliver_to_reader(),
    "wake the writer": lambda model, _: model.wake_writer(),
    "wake the reader": lambda model, _: model.wake_reader(),
}


@given(ends_of_pipes, starts, sizes, st.lists(st.tuples(st.sampled_from(sorted(STEPS)), sizes), max_size=60))
@settings(max_examples=300)
def test_ends_never_both_sleep(ends: Ends, start: int, total: int, steps: list[tuple[str, int]]) -> None:
    model = Model(ends, start, total)
    for name, size in steps:
        STEPS[name](model, size)
        model.check()
    model.finish()


# ---- payloads, whose frames and bells go through a connection in order


class Line:
    """Two queues of payloads, and what is on its way between them: calls that the other side is to make."""

    def __init__(self, ends: Ends, start: int) -> None:
        self.pipe = Pipe(ends, start=start)
        self.to_reader: deque[Callable[[], object]] = deque()
        self.to_writer: deque[Callable[[], object]] = deque()
        self.written: list[int | None] = []
        self.came: list[int] = []
        self.writes: PipeWrites[int] = PipeWrites(
            self.pipe.writer,
            ring=lambda: self.to_reader.append(self.reads.read),
            written=self.written.append,
            again=lambda _: self.to_writer.append(self.writes.write),
            memory=self.pipe,
        )
        self.reads = PipeReads(
            self.pipe.reader,
            ring=lambda: self.to_writer.append(self.writes.write),
            came=self.came.append,
            again=lambda _: self.to_reader.append(self.reads.read),
            memory=self.pipe,
        )
        self.sent: list[bytes] = []
        self.targets: list[Memory | None] = []

    def send(self, size: int, *, to_nowhere: bool) -> None:
        seq = len(self.sent)
        self.sent.append(NOISE[len(NOISE) - size :])
        target = None if to_nowhere else Memory(bytes(size))
        self.targets.append(target)
        self.to_reader.append(lambda: self.reads.expect(seq, size, None if target is None else target.view))
        segments = [memoryview(bytearray(self.sent[-1][at : at + WINDOW])) for at in range(0, size, WINDOW)]
        self.writes.waiting.append(Payload(seq, segments))
        if len(self.writes.waiting) == 1:
            self.writes.write()

    def detach(self) -> None:
        """The first one that waits goes on from a copy, a moment later."""
        payload = next((each for each in self.writes.waiting if each.detached is None), None)
        if payload is not None:
            payload.detached = threading.Event()
            self.to_writer.append(lambda: self.attach(payload))

    def attach(self, payload: Payload[int]) -> None:
        payload.segments = deque(memoryview(bytearray(segment)) for segment in payload.segments)
        payload.detached = None
        self.writes.write()

    def deliver(self, calls: deque[Callable[[], object]]) -> None:
        if calls:
            calls.popleft()()

    def check(self) -> None:
        assert self.came == list(range(len(self.came)))
        assert self.written == list(range(len(self.written)))
        for seq in self.came:
            target = self.targets[seq]
            assert target is None or target.content == self.sent[seq]
            if target is not None:
                target.check_guards()
        self.pipe.check_guards()


CALLS: dict[str, Callable[[Line, int], None]] = {
    "send": lambda line, size: line.send(size, to_nowhere=False),
    "send what nobody wants": lambda line, size: line.send(size, to_nowhere=True),
    "send nothing": lambda line, _: line.send(0, to_nowhere=False),
    "detach": lambda line, _: line.detach(),
    "to the reader": lambda line, _: line.deliver(line.to_reader),
    "to the writer": lambda line, _: line.deliver(line.to_writer),
}
calls = st.lists(st.tuples(st.sampled_from(sorted(CALLS)), sizes), max_size=40)


@given(ends_of_pipes, starts, calls)
@settings(max_examples=300)
def test_all_payloads_come_once_all_bells_have(ends: Ends, start: int, calls: list[tuple[str, int]]) -> None:
    line = Line(ends, start)
    for name, size in calls:
        CALLS[name](line, size)
    while line.to_reader or line.to_writer:
        line.deliver(line.to_reader)
        line.deliver(line.to_writer)
    line.check()
    assert len(line.came) == len(line.written) == len(line.sent)
    assert line.writes.is_idle


@given(ends_of_pipes, starts, calls)
def test_whoever_leaves_once_all_is_written_loses_nothing(ends: Ends, start: int, calls: list[tuple[str, int]]) -> None:
    """The reader answers nothing any more when it has read the last frame."""
    line = Line(ends, start)
    for name, size in calls:
        CALLS[name](line, size)
    while line.writes.waiting:
        assert line.to_reader or line.to_writer, "nobody is told"
        line.deliver(line.to_writer if line.to_writer else line.to_reader)
    while line.to_reader:
        line.deliver(line.to_reader)
    line.reads.read(to_the_end=True)
    line.check()
    assert len(line.came) == len(line.sent)


# ---- ends that act at the same time: one look at a word, or one change of it, after the other


TINY_WINDOW = 4


class PipeActor(Actor):
    """A thread at one end of a pipe."""

    def __init__(self, end: PythonEnd) -> None:
        super().__init__(end)
        self.end = end
        self.is_early = False
        self.other: PipeActor

    def ring(self) -> None:
        if self.end.bell:
            self.other.bells += 1

    def rest(self, rests: bool, *, early: bool = False) -> None:
        if rests:
            self.ring()
            self.is_early = early
            self.sleep()
            self.end.wake()

    @property
    def sleeps_for_long(self) -> bool:
        """Whether it sleeps until half of the window is free, if it is a writer, and nobody has rung."""
        return self.sleeps and not self.bells and not self.is_early


def play(total: int, early: int, schedule: int) -> None:
    """Move so many bytes. ``early``, ``schedule``: who rests early, and who goes on, in bits."""
    tiny = Pipe((PythonEnd, PythonEnd))
    data = noise(total)
    source, target = Memory(data), Memory(bytes(total))
    assert isinstance(tiny.writer, PythonEnd)
    assert isinstance(tiny.reader, PythonEnd)
    writer, reader = PipeActor(tiny.writer), PipeActor(tiny.reader)
    writer.other, reader.other = reader, writer
    earlies = flags(early)

    def write() -> None:
        moved = 0
        while moved < total:
            moved_now = writer.end.push(source.address + moved, total - moved, 0.0)
            moved += moved_now
            if writer.end.bell:
                writer.ring()
            elif moved < total:
                writer.rest(writer.end.rest_writing(early=False))

    def write_early() -> None:
        moved = 0
        while moved < total:
            moved += writer.end.push(source.address + moved, 1, 0.0)
            writer.ring()
            if moved < total and not writer.end.bell:
                is_early = next(earlies)
                writer.rest(writer.end.rest_writing(early=is_early), early=is_early)

    def read() -> None:
        moved = 0
        while moved < total:
            not_yet = next(earlies)
            wanted = min(total - moved, 1 + next(earlies))
            pulled = reader.end.pull(target.address + moved, wanted, 0.0, past_caches=False, not_yet=not_yet)
            moved += pulled
            reader.ring()
            if pulled and not not_yet and writer.sleeps_for_long:
                assert writer.end.position - moved > TINY_WINDOW // 2, "half is free, and the writer is not told"
            if moved < total and not reader.end.bell:
                reader.rest(reader.end.rest_reading(early=not_yet, end=total))

    play_in_turns(writer, write_early if next(earlies) else write, reader, read, schedule)
    assert target.content == data
    tiny.check_guards()


@given(st.integers(1, 3 * TINY_WINDOW), st.integers(0, 2**60), st.integers(0, 2**120))
@settings(max_examples=300)
def test_ends_that_act_at_once_never_both_sleep(total: int, early: int, schedule: int) -> None:
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(pipe, "WINDOW_BYTES", TINY_WINDOW)
        patches.setattr(pipe, "PYTHON_CHUNK_BYTES", 1)
        play(total, early, schedule)
