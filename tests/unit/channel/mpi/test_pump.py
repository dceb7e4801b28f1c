"""The thread that looks after MPI: when it looks, what it gives whom, and what it does when a process is gone."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator

import pytest

from multiworld.channel.mpi import pump as mpi_pump
from multiworld.channel.mpi.chunks import CHUNK_BYTES, HEADER_BYTES, Chunk, new_key, read_chunk, write_header
from multiworld.channel.mpi.pump import WINDOW, MpiPump
from multiworld.testing import wait_until
from tests.unit.channel.mpi.fake_mpi import FakeNetwork

WAIT_S = 10.0


class Payload:
    """A source of ``num_chunks`` small chunks, numbered by their offsets."""

    def __init__(self, key: bytes, num_chunks: int, destination: int = 1, number: int = 1) -> None:
        self.key, self.num_left, self.destination, self.number = key, num_chunks, destination, number
        self.wanted = True
        self.busy = False
        self.errors: list[str] = []
        self._offset = 0

    def fill(self, buffer: memoryview) -> int | None:
        if self.busy:
            return None
        if not self.num_left:
            return 0
        self.num_left -= 1
        write_header(buffer, self.key, self.number, self._offset)
        self._offset += 1
        return HEADER_BYTES + 1

    def failed(self, error: Exception) -> None:
        self.errors.append(str(error))


class Collector:
    """A sink that keeps what it is given, once it is ``ready``."""

    def __init__(self, origin: int = 0) -> None:
        self.origin, self.ready = origin, True
        self.taken: list[tuple[int, int]] = []
        self.errors: list[str] = []

    def take(self, chunk: Chunk) -> bool:
        if self.ready:
            self.taken.append((chunk.number, chunk.offset))
        return self.ready

    def failed(self, error: Exception) -> None:
        self.errors.append(str(error))


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeNetwork]:
    monkeypatch.setattr(mpi_pump, "LINGER_S", 0.05)
    yield FakeNetwork(3)
    assert wait_until(lambda: not [t for t in threading.enumerate() if t.name == "multiworld-mpi"], WAIT_S)


def test_what_is_expected_is_given_to_the_sink_of_its_key_in_order(network: FakeNetwork) -> None:
    here, there = MpiPump(network.transports[0]), MpiPump(network.transports[1])
    keys, sinks = [new_key(), new_key()], [Collector(), Collector()]
    for key, sink in zip(keys, sinks, strict=True):
        there.attach(key, sink)
        there.expect()
        here.send(Payload(key, 10))
    assert wait_until(lambda: all(len(sink.taken) == 10 for sink in sinks), WAIT_S)
    assert all(sink.taken == [(1, offset) for offset in range(10)] for sink in sinks)
    for key in keys:
        there.settled()
        there.detach(key)
    assert there.join(WAIT_S)
    assert here.join(WAIT_S)


def test_nothing_looks_while_nothing_is_under_way(network: FakeNetwork) -> None:
    pump = MpiPump(network.transports[1])
    key, sink = new_key(), Collector()
    pump.attach(key, sink)
    assert network.num_looks == 0
    pump.expect()
    assert wait_until(lambda: network.num_looks > 3, WAIT_S)
    pump.settled()

    def has_stopped() -> bool:
        looks = network.num_looks
        time.sleep(0.05)
        return network.num_looks == looks

    assert wait_until(has_stopped, WAIT_S)
    pump.detach(key)


def test_what_waits_is_looked_for_more_and_more_rarely(network: FakeNetwork) -> None:
    pump = MpiPump(network.transports[1])
    pump.attach(key := new_key(), Collector())
    pump.expect()
    looks, at = 0, time.monotonic()

    def is_rare() -> bool:
        nonlocal looks, at
        before, began = looks, at
        time.sleep(0.05)
        looks, at = network.num_looks, time.monotonic()
        return looks - before <= (at - began) / mpi_pump.MAX_PAUSE_S + 1

    assert wait_until(is_rare, WAIT_S)
    pump.settled()
    pump.detach(key)


def test_a_chunk_that_comes_before_its_header_waits_for_it(network: FakeNetwork) -> None:
    here, there = MpiPump(network.transports[0]), MpiPump(network.transports[1])
    key, sink = new_key(), Collector()
    sink.ready = False
    there.attach(key, sink)
    there.expect()
    here.send(Payload(key, 2))
    assert wait_until(lambda: network.num_found == 2, WAIT_S)
    assert not sink.taken
    sink.ready = True
    there.expect()
    assert wait_until(lambda: len(sink.taken) == 2, WAIT_S)
    there.settled(2)
    there.detach(key)


def test_what_is_left_of_an_ended_world_reaches_nobody(network: FakeNetwork) -> None:
    """Its key is known no more; a new generation has another."""
    here, there = MpiPump(network.transports[0]), MpiPump(network.transports[1])
    old, new, sink = new_key(), new_key(), Collector()
    network.allow(0)
    here.send(stale := Payload(old, 2))
    assert wait_until(lambda: stale.num_left == 0, WAIT_S)
    there.attach(new, sink)
    there.expect()
    here.send(Payload(new, 3, number=9))
    network.allow(None)
    assert wait_until(lambda: len(sink.taken) == 3, WAIT_S)
    assert sink.taken == [(9, 0), (9, 1), (9, 2)]
    there.settled()
    there.detach(new)


def test_a_process_that_takes_nothing_gets_a_window_full_and_the_others_all(network: FakeNetwork) -> None:
    here, there = MpiPump(network.transports[0]), MpiPump(network.transports[1])
    key, sink = new_key(), Collector()
    there.attach(key, sink)
    there.expect()
    here.send(stuck := Payload(new_key(), 10, destination=2))
    here.send(Payload(key, 20, destination=1))
    assert wait_until(lambda: len(sink.taken) == 20, WAIT_S)
    assert stuck.num_left == 10 - WINDOW
    stuck.wanted = False  # its world breaks
    there.settled()
    there.detach(key)
    assert here.join(WAIT_S), "what can never end keeps no thread"
    assert len(network.queues[2]) == WINDOW


def test_payloads_to_one_process_take_turns(network: FakeNetwork) -> None:
    here, there = MpiPump(network.transports[0]), MpiPump(network.transports[1])
    key, sink = new_key(), Collector()
    there.attach(key, sink)
    network.allow(0)
    long, short = Payload(key, 50, number=1), Payload(key, 2, number=2)
    here.send(long)
    here.send(short)
    there.expect()
    network.allow(None)
    assert wait_until(lambda: len(sink.taken) == 52, WAIT_S)
    assert sink.taken.index((2, 1)) < 3 * WINDOW
    there.settled()
    there.detach(key)


def test_a_source_that_is_being_copied_does_not_hold_up_the_others(network: FakeNetwork) -> None:
    here, there = MpiPump(network.transports[0]), MpiPump(network.transports[1])
    key, sink = new_key(), Collector()
    there.attach(key, sink)
    there.expect()
    busy = Payload(key, 1, number=1)
    busy.busy = True
    here.send(busy)
    here.send(Payload(key, 5, number=2))
    assert wait_until(lambda: len(sink.taken) == 5, WAIT_S)
    busy.busy = False
    assert wait_until(lambda: sink.taken[-1] == (1, 0), WAIT_S)
    there.settled()
    there.detach(key)


def test_a_failed_send_is_told_to_the_sources_for_that_process(network: FakeNetwork) -> None:
    here = MpiPump(network.transports[0])
    network.send_failure = RuntimeError("no route")
    payloads = [Payload(new_key(), 5), Payload(new_key(), 5)]
    for payload in payloads:
        here.send(payload)
    assert wait_until(lambda: all(payload.errors for payload in payloads), WAIT_S)
    assert payloads[0].errors == ["MPI cannot send to its rank 1: no route"]
    assert here.join(WAIT_S)


def test_a_source_is_told_of_a_chunk_that_failed_when_it_had_no_more_to_send(network: FakeNetwork) -> None:
    network.allow(0)
    here = MpiPump(network.transports[0])
    payload = Payload(new_key(), 2)
    here.send(payload)
    assert wait_until(lambda: not payload.num_left and len(network.queues[1]) == 2, WAIT_S)
    network.queues[1][0].request.failure = RuntimeError("the fabric is down")
    assert wait_until(lambda: bool(payload.errors), WAIT_S)
    assert payload.errors == ["MPI cannot send to its rank 1: the fabric is down"]
    payload.wanted = False
    network.allow(None)
    assert here.join(WAIT_S)


def test_a_failed_receive_is_told_to_the_sinks_of_that_process(network: FakeNetwork) -> None:
    pump = MpiPump(network.transports[1])
    concerned, other = Collector(origin=0), Collector(origin=2)
    for sink in (concerned, other):
        pump.attach(new_key(), sink)
    network.receive_failure = RuntimeError("truncated")
    network.inject(bytes(HEADER_BYTES), source=0, destination=1)
    pump.expect()
    assert wait_until(lambda: bool(concerned.errors), WAIT_S)
    assert concerned.errors == ["MPI cannot receive from its rank 0: truncated"]
    assert not other.errors
    pump.settled()
    for key in list(pump._sinks):
        pump.detach(key)


def test_a_message_whose_sender_is_gone_keeps_nobody(network: FakeNetwork) -> None:
    here, there = MpiPump(network.transports[0]), MpiPump(network.transports[1])
    key = new_key()
    there.attach(key, Collector())
    there.expect()
    network.stuck = True
    payload = Payload(key, 1)
    here.send(payload)
    assert wait_until(lambda: network.num_found == 1, WAIT_S)
    payload.wanted = False
    there.settled()
    there.detach(key)
    assert here.join(WAIT_S)
    assert there.join(WAIT_S)


@pytest.mark.parametrize("size_bytes", [0, HEADER_BYTES - 1, HEADER_BYTES + CHUNK_BYTES + 1])
def test_messages_of_others_are_dropped_and_the_log_says_so_once(
    size_bytes: int, network: FakeNetwork, caplog: pytest.LogCaptureFixture
) -> None:
    pump = MpiPump(network.transports[1])
    key, sink = new_key(), Collector()
    pump.attach(key, sink)
    for _ in range(3):
        network.inject(bytes(size_bytes), source=2, destination=1)
    with caplog.at_level(logging.WARNING):
        pump.expect()
        assert wait_until(lambda: network.num_found == 3, WAIT_S)
        pump.settled()
        pump.detach(key)
        assert pump.join(WAIT_S)
    assert [record.getMessage() for record in caplog.records] == [
        "multiworld-mpi: rank 2 of the MPI job uses our tag; its message was lost"
    ]
    assert not sink.taken


def test_a_chunk_is_read_as_it_was_written() -> None:
    buffer, key = memoryview(bytearray(HEADER_BYTES + 3)), new_key()
    write_header(buffer, key, 7, 2**40)
    buffer[HEADER_BYTES:] = b"abc"
    chunk = read_chunk(buffer)
    assert chunk is not None
    assert (chunk.key, chunk.number, chunk.offset, bytes(chunk.data)) == (key, 7, 2**40, b"abc")
