"""The two ends of a pipe, of the native core and of Python: what goes in comes out, and nobody sleeps for ever."""

from __future__ import annotations

import importlib.util
import platform
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple
from unittest.mock import MagicMock

import pytest

from multiworld import native
from multiworld.channel.shared_memory import pipe as pipe_module
from multiworld.channel.shared_memory.pipe import NativeEnd, PipeEnd, PythonEnd, open_reader, open_writer
from multiworld.errors import ProtocolError
from multiworld.testing import scaled
from multiworld.wire.progress.waiting import run_in_thread, wait_blocking
from tests.unit.channel.shared_memory.pipes import (
    CHUNK,
    ENDS,
    NEAR_THE_END,
    WINDOW,
    Ends,
    Memory,
    Pipe,
    make_small,
    noise,
)

HALF = WINDOW // 2
OF_ENDS = pytest.mark.parametrize("ends", ENDS, ids=lambda ends: f"{ends[0].__name__}-{ends[1].__name__}")


@pytest.fixture(params=[0, NEAR_THE_END], ids=["from-0", "past-2**64"])
def pipe(request: pytest.FixtureRequest, ends: Ends, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipe]:
    """A small pipe, whose counts may wrap around; ``ends`` says of which kinds."""
    make_small(monkeypatch)
    pipe = Pipe(ends, start=request.param)
    yield pipe
    pipe.check_guards()


def move(pipe: Pipe, data: bytes, *, skews: tuple[int, int] = (0, 0), past_caches: bool = False) -> bytes:
    """Let data through, as much as there is room for each time."""
    came, num_pushed = b"", 0
    while len(came) < len(data):
        pushed = pipe.push(data[num_pushed:], skew=skews[0])
        pulled = pipe.pull(len(data) - len(came), skew=skews[1], past_caches=past_caches)
        assert pushed == len(pulled) > 0
        came, num_pushed = came + pulled, num_pushed + pushed
    return came


# ---- data

AROUND = (CHUNK, 2 * CHUNK, WINDOW - CHUNK, WINDOW, WINDOW + CHUNK, 2 * WINDOW, 3 * WINDOW)
SIZES = (1, 7, *(size + more for size in AROUND for more in (-1, 0, 1)))


@OF_ENDS
def test_bytes_come_out_as_they_went_in(pipe: Pipe) -> None:
    for number, size in enumerate(SIZES):
        data = noise(size, seed=number)
        assert move(pipe, data, skews=(number % 17, number * 5 % 17)) == data, size
    assert pipe.writer.is_level()
    assert pipe.reader.is_level()


@OF_ENDS
@pytest.mark.parametrize("chunks_only", [False, True], ids=["windows", "chunks"])
def test_bytes_come_out_as_they_went_in_through_a_window_of_the_real_size(
    ends: Ends, chunks_only: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipe_module, "LIMIT_S", 1000.0)  # a busy machine may take long, and then an end takes a part
    pipe = Pipe(ends)
    chunks = (pipe_module.NATIVE_CHUNK_BYTES, pipe_module.PYTHON_CHUNK_BYTES)
    for number, size in enumerate(chunks if chunks_only else (pipe_module.WINDOW_BYTES,)):
        for more in (-1, 0, 1):
            data = noise(size + more, seed=number)
            assert move(pipe, data, skews=(3, 5), past_caches=more > 0) == data
    pipe.check_guards()


@OF_ENDS
def test_a_push_ends_when_the_window_is_full_and_a_pull_when_it_is_empty(pipe: Pipe) -> None:
    data = noise(WINDOW + 1)
    assert pipe.push(data) == WINDOW
    assert pipe.push(data[WINDOW:]) == 0
    assert not pipe.writer.is_level()
    assert pipe.pull(10) == data[:10]
    assert pipe.push(data[WINDOW:]) == 1
    assert pipe.pull(WINDOW) == data[10:]
    assert pipe.pull(WINDOW) == b""
    assert pipe.reader.is_level()


@OF_ENDS
def test_what_is_pulled_to_nowhere_is_gone(pipe: Pipe) -> None:
    data = noise(WINDOW)
    pipe.push(data)
    assert pipe.skip(2 * CHUNK) == 2 * CHUNK
    assert pipe.reader.pull(None, CHUNK + 1, 0.0, past_caches=True, not_yet=False) == CHUNK + 1
    assert pipe.pull(WINDOW) == data[3 * CHUNK + 1 :]


@OF_ENDS
def test_every_alignment_is_copied_past_the_caches(pipe: Pipe) -> None:
    """With the skew of the target goes a source in the window that is not aligned either."""
    for skew in range(16):
        for size in (1, 15, 16, 17, 63, 64, 65, 79, 127, 129, CHUNK - 1, CHUNK + 1, 1001):
            data = noise(size, seed=skew)
            assert move(pipe, data, skews=(0, skew), past_caches=True) == data, (skew, size)


@OF_ENDS
def test_positions_count_what_went_by(pipe: Pipe) -> None:
    start = pipe.writer.position
    pipe.push(noise(WINDOW))
    pipe.pull(WINDOW // 4)
    assert pipe.writer.position == pipe.written.value == (start + WINDOW) % 2**64
    assert pipe.reader.position == pipe.taken.value == (start + WINDOW // 4) % 2**64


# ---- bells


def fill(pipe: Pipe, size_bytes: int = WINDOW) -> None:
    assert pipe.push(bytes(size_bytes)) == size_bytes


@OF_ENDS
def test_nobody_rings_who_looks(pipe: Pipe) -> None:
    for _ in range(3):
        fill(pipe)
        assert not pipe.writer.bell
        assert pipe.skip(WINDOW) == WINDOW
        assert not pipe.reader.bell


@OF_ENDS
def test_a_reader_that_rests_is_rung_with_the_first_piece_and_once(pipe: Pipe) -> None:
    for _ in range(3):
        assert pipe.reader.rest_reading(early=False, end=0)
        assert not pipe.reader.bell
        assert 0 < pipe.push(bytes(WINDOW)) <= CHUNK
        assert pipe.writer.bell
        fill(pipe, HALF)
        assert not pipe.writer.bell, "it was rung before, and has not looked since"
        pipe.reader.wake()
        assert pipe.skip(WINDOW) > HALF


@OF_ENDS
def test_a_writer_that_rests_is_rung_when_half_of_the_window_is_free_and_once(pipe: Pipe) -> None:
    for _ in range(3):
        fill(pipe)
        assert pipe.writer.rest_writing(early=False)
        assert not pipe.writer.bell
        assert pipe.skip(HALF - 1) == HALF - 1
        assert not pipe.reader.bell
        assert pipe.skip(1) == 1
        assert pipe.reader.bell
        assert pipe.skip(WINDOW) == HALF
        assert not pipe.reader.bell, "it was rung before, and has not looked since"
        pipe.writer.wake()


@OF_ENDS
def test_who_has_looked_again_is_not_rung(pipe: Pipe) -> None:
    assert pipe.reader.rest_reading(early=False, end=0)
    pipe.reader.wake()
    fill(pipe)
    assert not pipe.writer.bell
    assert pipe.writer.rest_writing(early=False)
    pipe.writer.wake()
    pipe.writer.wake()  # although it looks
    assert pipe.skip(WINDOW) == WINDOW
    assert not pipe.reader.bell


@OF_ENDS
def test_a_writer_is_not_rung_before_its_time_has_come_but_when_the_reader_rests(pipe: Pipe) -> None:
    fill(pipe)
    assert pipe.writer.rest_writing(early=False)
    assert pipe.skip(WINDOW - 1, not_yet=True) == WINDOW - 1
    assert not pipe.reader.bell
    assert pipe.reader.rest_reading(early=True, end=pipe.writer.position + 1)
    assert pipe.reader.bell
    assert pipe.reader.rest_reading(early=True, end=pipe.writer.position + 1)
    assert not pipe.reader.bell, "it was rung before, and has not looked since"


@OF_ENDS
def test_a_reader_is_rung_when_the_writer_rests_too(pipe: Pipe) -> None:
    fill(pipe)
    assert pipe.reader.rest_reading(early=True, end=pipe.writer.position + 1)
    assert not pipe.reader.bell
    assert pipe.writer.rest_writing(early=False)
    assert pipe.writer.bell
    assert pipe.writer.rest_writing(early=False)
    assert not pipe.writer.bell


@OF_ENDS
def test_a_bell_is_of_the_last_call_only(pipe: Pipe) -> None:
    assert pipe.reader.rest_reading(early=False, end=0)
    pipe.push(b"1")
    assert pipe.writer.bell
    pipe.push(b"")
    assert not pipe.writer.bell


@OF_ENDS
def test_a_reader_does_not_rest_while_there_is_something(pipe: Pipe) -> None:
    fill(pipe, 1)
    assert not pipe.reader.rest_reading(early=False, end=pipe.writer.position + 100)
    fill(pipe, 1)
    assert not pipe.writer.bell, "it does not rest"
    pipe.skip(2)
    assert pipe.reader.rest_reading(early=False, end=0)


@OF_ENDS
def test_a_writer_does_not_rest_while_half_of_the_window_is_free(pipe: Pipe) -> None:
    fill(pipe, HALF)
    assert not pipe.writer.rest_writing(early=False)
    pipe.skip(1)
    assert not pipe.reader.bell, "it does not rest"
    fill(pipe, 2)
    assert pipe.writer.rest_writing(early=False)


@OF_ENDS
def test_a_reader_rests_early_only_while_more_is_to_be_written(pipe: Pipe) -> None:
    fill(pipe, 100)
    end = pipe.writer.position + 1
    assert pipe.reader.rest_reading(early=True, end=end)
    assert pipe.reader.rest_reading(early=True, end=end + 2 * WINDOW & 2**64 - 1)
    fill(pipe, 1)
    assert pipe.writer.bell
    assert not pipe.reader.rest_reading(early=True, end=end)
    assert not pipe.reader.rest_reading(early=True, end=end - 1)
    pipe.skip(101)
    assert pipe.reader.rest_reading(early=True, end=end), "there is nothing at all"


@OF_ENDS
def test_a_writer_rests_early_only_while_something_is_to_be_read(pipe: Pipe) -> None:
    assert not pipe.writer.rest_writing(early=True)
    fill(pipe, 2)
    assert pipe.writer.rest_writing(early=True)
    pipe.skip(1)
    assert pipe.reader.bell
    assert pipe.writer.rest_writing(early=True)
    pipe.writer.wake()
    pipe.skip(1)
    assert not pipe.writer.rest_writing(early=True)
    fill(pipe, 1)
    assert pipe.skip(1) == 1
    assert not pipe.reader.bell, "it does not rest"


# ---- an end that looks for a while


@OF_ENDS
def test_an_end_waits_a_moment_for_the_other_one(pipe: Pipe) -> None:
    """Nobody rests here: each sees the other's count while it looks."""
    data, came = noise(20 * WINDOW), bytearray()

    def read() -> None:
        while len(came) < len(data):
            part = pipe.pull(len(data) - len(came), spin_s=scaled(10))
            assert part
            came.extend(part)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    assert pipe.push(data, spin_s=scaled(10)) == len(data)
    reader.join(scaled(20))
    assert bytes(came) == data
    assert not pipe.writer.bell
    assert not pipe.reader.bell


@OF_ENDS
def test_an_end_looks_no_longer_than_it_may(pipe: Pipe) -> None:
    assert pipe.pull(1, spin_s=0.001) == b""
    fill(pipe)
    assert pipe.push(b"1", spin_s=0.001) == 0


# ---- the other process may be anybody


NONSENSE = (1, 2, WINDOW, 2**31, 2**32, 2**62, 2**63 - WINDOW - 1)


@OF_ENDS
@pytest.mark.parametrize("more", NONSENSE)
def test_a_reader_believes_in_no_more_than_the_window_holds(pipe: Pipe, more: int) -> None:
    fill(pipe, 100)
    pipe.skip(50)
    before = pipe.window.content
    pipe.written.value = pipe.reader.position + WINDOW + more & 2**64 - 1
    with pytest.raises(ProtocolError, match="counts more than there can be"):
        pipe.pull(2 * WINDOW)
    with pytest.raises(ProtocolError, match="counts more than there can be"):
        pipe.skip(2 * WINDOW)
    assert pipe.window.content == before
    assert pipe.taken.value == pipe.reader.position


@OF_ENDS
@pytest.mark.parametrize("more", NONSENSE)
def test_a_writer_does_not_believe_that_more_was_read_than_it_wrote(pipe: Pipe, more: int) -> None:
    fill(pipe, 100)
    before = pipe.window.content
    pipe.taken.value = pipe.writer.position + more & 2**64 - 1
    with pytest.raises(ProtocolError, match="counts more than there can be"):
        pipe.push(noise(2 * WINDOW))
    assert pipe.window.content == before
    assert pipe.written.value == pipe.writer.position


@OF_ENDS
@pytest.mark.parametrize("less", [1, WINDOW, 2**32, 2**62])
def test_counts_that_go_back_are_refused_and_move_nothing(pipe: Pipe, less: int) -> None:
    fill(pipe)
    before, position = pipe.window.content, pipe.writer.position
    pipe.taken.value = position - WINDOW - less & 2**64 - 1
    pipe.written.value = pipe.reader.position - less & 2**64 - 1
    assert not pipe.writer.rest_writing(early=False), "who rests would not see it"
    assert not pipe.reader.rest_reading(early=False, end=0)
    with pytest.raises(ProtocolError, match="counts more than there can be"):
        pipe.push(noise(WINDOW))
    with pytest.raises(ProtocolError, match="counts more than there can be"):
        pipe.pull(WINDOW)
    assert pipe.window.content == before


@OF_ENDS
def test_a_whole_window_is_no_nonsense(pipe: Pipe) -> None:
    fill(pipe)
    assert pipe.pull(2 * WINDOW) == bytes(WINDOW)
    fill(pipe)


# ---- the ends that streams use


def test_the_ends_of_a_pipe_find_each_others_words() -> None:
    pipe = Pipe((PythonEnd, PythonEnd))
    page, window = pipe.page.address, pipe.window.address
    writer, reader = open_writer(page, window), open_reader(page, window)
    source, target = Memory(b"abc"), Memory(bytes(3))
    assert reader.rest_reading(early=False, end=0)
    assert writer.push(source.address, 3, 0.0) == 3
    assert writer.bell
    assert writer.rest_writing(early=True)
    assert reader.pull(target.address, 3, 0.0, past_caches=False, not_yet=False) == 3
    assert reader.bell
    assert target.content == b"abc"
    assert pipe.window.content.startswith(b"abc")
    pipe.check_guards()


@pytest.mark.parametrize("with_core", [False, True])
def test_the_native_core_moves_pipes_where_there_is_one(with_core: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if with_core and native.core is None:
        pytest.skip(native.why_not)
    if not with_core:
        monkeypatch.setattr(native, "core", None)
    page, window = Memory(bytes(pipe_module.PAGE_BYTES)), Memory(b"")
    for end in (open_writer(page.address, window.address), open_reader(page.address, window.address)):
        assert type(end) is (NativeEnd if with_core else PythonEnd)


@pytest.mark.parametrize(
    ("has_core", "machine", "works"),
    [(True, "riscv64", True), (False, "x86_64", True), (False, "AMD64", True), (False, "aarch64", False)],
)
def test_python_moves_pipes_only_where_memory_is_ordered(
    has_core: bool, machine: str, works: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Elsewhere a count might be seen before the bytes that it counts."""
    monkeypatch.setattr(native, "core", MagicMock() if has_core else None)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    spec = importlib.util.spec_from_file_location("multiworld.channel.shared_memory.another_pipe", pipe_module.__file__)
    assert spec is not None
    assert spec.loader is not None
    another = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, another)
    spec.loader.exec_module(another)
    assert another.WORKS is works


# ---- two threads


STRESS_BYTES, STRESS_S = 64 * 1024 * 1024, 0.8


class Part(NamedTuple):
    """A payload: so many bytes of the noise, from there."""

    at: int
    size_bytes: int


class Side:
    """One end on a thread of its own, which rests at random, and then sleeps until its event is set."""

    def __init__(self, seed: int, end: PipeEnd, rest: Callable[[bool], bool]) -> None:
        self.random, self.end, self.num_rests = random.Random(seed), end, 0
        self.bell = threading.Event()
        self.other: Side
        self._rest = rest

    def spin_s(self) -> float:
        return self.random.choice((0.0, 0.0, 1e-6, 3e-5))

    def moved(self, *, all_possible: bool) -> None:
        """Ring; rest if there was nothing more to move, and early now and then."""
        if self.end.bell:
            self.other.bell.set()
        elif not all_possible or self.random.random() < 0.1:
            if self.random.random() < 0.05:
                time.sleep(self.random.random() * 1e-4)
            self.rest(early=all_possible or self.random.random() < 0.2)

    def rest(self, *, early: bool) -> None:
        if not self._rest(early):
            return
        self.num_rests += 1
        if self.end.bell:
            self.other.bell.set()
        assert self.bell.wait(scaled(10)), "nobody has rung"
        self.bell.clear()
        self.end.wake()


class Stress:
    """A thread that writes payloads of random sizes, and one that reads and checks them."""

    def __init__(self, ends: Ends, seed: int) -> None:
        window = pipe_module.WINDOW_BYTES
        self.pipe = Pipe(ends, start=2**64 - 3 * window)
        self.noise = noise(3 * window, seed=seed)
        self.source, self.target = Memory(self.noise), Memory(bytes(len(self.noise)))
        self.parts: list[Part] = []  # as the frames say that come beside the pipe
        self.is_over = threading.Event()
        self.end = 0  # of the payload that the reader expects
        self.writer = Side(seed, self.pipe.writer, lambda early: self.pipe.writer.rest_writing(early=early))
        self.reader = Side(seed + 1, self.pipe.reader, self._rest_reading)
        self.writer.other, self.reader.other = self.reader, self.writer

    def _rest_reading(self, early: bool) -> bool:
        return self.pipe.reader.rest_reading(early=early, end=self.end)

    def write(self) -> None:
        side, until, num_written = self.writer, time.monotonic() + STRESS_S, 0
        while num_written < STRESS_BYTES and time.monotonic() < until:
            size = side.random.randint(1, side.random.choice((10, len(self.noise) // 9, len(self.noise))))
            part = Part(side.random.randint(0, len(self.noise) - size), size)
            self.parts.append(part)
            moved = 0
            while moved < size:
                wanted = side.random.randint(1, size - moved)
                pushed = side.end.push(self.source.address + part.at + moved, wanted, side.spin_s())
                moved += pushed
                side.moved(all_possible=pushed == wanted)
            num_written += size
        self.is_over.set()
        self.reader.bell.set()

    def read(self) -> None:
        num_read = 0
        while True:
            if num_read < len(self.parts):
                self._read(self.parts[num_read])
                num_read += 1
            elif self.is_over.is_set():
                if num_read == len(self.parts):
                    return
            else:
                self.reader.rest(early=False)

    def _read(self, part: Part) -> None:
        side, moved = self.reader, 0
        self.end = side.end.position + part.size_bytes & 2**64 - 1
        while moved < part.size_bytes:
            wanted = side.random.randint(1, part.size_bytes - moved)
            pulled = side.end.pull(
                self.target.address + moved,
                wanted,
                side.spin_s(),
                past_caches=side.random.random() < 0.5,
                not_yet=side.random.random() < 0.2,
            )
            moved += pulled
            if moved < part.size_bytes or side.end.bell:
                side.moved(all_possible=pulled == wanted)
        assert self.target.content[: part.size_bytes] == self.noise[part.at : part.at + part.size_bytes]


@pytest.fixture
def quick_switches() -> Iterator[None]:
    """Threads take turns often."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


@OF_ENDS
@pytest.mark.parametrize("is_small", [True, False], ids=["small", "real"])
@pytest.mark.usefixtures("quick_switches")
def test_no_bell_is_lost_between_two_threads(ends: Ends, is_small: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if is_small:
        make_small(monkeypatch)
    stress = Stress(ends, seed=7)
    works = [run_in_thread(work, "test-pipe") for work in (stress.write, stress.read)]
    for work in works:
        wait_blocking(work)
    stress.pipe.check_guards()
    stress.target.check_guards()
    assert stress.pipe.reader.is_level()
    assert stress.writer.num_rests + stress.reader.num_rests > 10, "it was too slow to find anything"
