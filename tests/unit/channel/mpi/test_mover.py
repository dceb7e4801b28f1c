"""The mover over MPI, chunk by chunk: what it sends and takes, and that it lets go of tensors whenever it has to."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from multiworld.channel.mpi.chunks import CHUNK_BYTES, HEADER_BYTES, PROOF, Chunk, read_chunk
from multiworld.channel.mpi.mover import MpiMover
from multiworld.channel.mpi.pump import Sink, Source
from multiworld.channel.payload.tensors import memory_of, pack

NUMEL = 3 * CHUNK_BYTES // 8 + 5  # one and a half chunks of float32
PEER_KEY = b"the peer's key.."


class FakePump:
    """Keeps what it is given; the test does the work of the thread."""

    def __init__(self, *, has_thread: bool = True) -> None:
        self.sources: list[Source] = []
        self.sinks: dict[bytes, Sink] = {}
        self.num_expected = 0
        self._has_thread = has_thread

    def attach(self, key: bytes, sink: Sink) -> None:
        self.sinks[key] = sink

    def detach(self, key: bytes) -> None:
        del self.sinks[key]

    def send(self, source: Source) -> bool:
        self.sources.append(source)
        return self._has_thread

    def expect(self) -> bool:
        self.num_expected += 1
        return self._has_thread

    def settled(self, number: int = 1) -> None:
        self.num_expected -= number


class Rig:
    """A mover that has met its peer, and how its transfers ended."""

    def __init__(self, *, has_thread: bool = True) -> None:
        self.pump = FakePump(has_thread=has_thread)
        self.deferred: list[Callable[[], None]] = []
        self.ends: list[str] = []
        self.mover = MpiMover(self.deferred.append)
        self.mover.open(self.pump)
        self.mover.meet(3, PEER_KEY)
        self.proof = self.pump.sources.pop()
        self.mover.take(Chunk(self.mover.key, PROOF, 0, memoryview(b"")))

    def over(self, error: Exception | None) -> None:
        self.ends.append("ok" if error is None else str(error))

    def send(self, number: int, tensors: list[Tensor]) -> Source:
        size_bytes = tensors[0].nbytes if len(tensors) == 1 else sum(-(-each.nbytes // 64) * 64 for each in tensors)
        assert self.mover.send(number, tensors, size_bytes, self.over)
        return self.pump.sources.pop()

    def recv(self, number: int, tensor: Tensor) -> None:
        assert self.mover.recv(number, tensor, self.over)

    def take(self, number: int, offset: int, data: bytes) -> bool:
        return self.mover.take(Chunk(self.mover.key, number, offset, memoryview(bytearray(data))))


def next_chunk(source: Source) -> Chunk | None:
    buffer = memoryview(bytearray(HEADER_BYTES + CHUNK_BYTES))
    size_bytes = source.fill(buffer)
    assert size_bytes is not None
    return read_chunk(buffer[:size_bytes]) if size_bytes else None


def rest_of(source: Source) -> list[Chunk]:
    chunks = []
    while (chunk := next_chunk(source)) is not None:
        chunks.append(chunk)
    return chunks


def data_of(chunks: list[Chunk]) -> bytes:
    assert [chunk.offset for chunk in chunks] == [
        sum(len(each.data) for each in chunks[:i]) for i in range(len(chunks))
    ]
    return b"".join(bytes(chunk.data) for chunk in chunks)


def test_a_payload_goes_in_chunks_that_say_what_they_are_and_ends_when_it_is_copied() -> None:
    rig, payload = Rig(), torch.arange(float(NUMEL))
    source = rig.send(7, [payload])
    first = next_chunk(source)
    assert first is not None
    assert (first.key, first.number, len(first.data)) == (PEER_KEY, 7, CHUNK_BYTES)
    assert (source.destination, rig.ends) == (3, [])
    chunks = [first, *rest_of(source)]
    assert rig.ends == ["ok"]
    assert data_of(chunks) == bytes(memory_of(payload))
    assert rig.mover.copy_unsent(7), "it is over: nothing is to be copied"


def test_a_payload_of_several_tensors_is_padded_as_a_receiver_expects_it() -> None:
    rig = Rig()
    tensors = [torch.arange(float(NUMEL)), torch.empty(0), torch.arange(7), torch.ones(3, dtype=torch.bool)]
    size_bytes = sum(-(-each.nbytes // 64) * 64 for each in tensors)
    packed = pack(tensors, size_bytes)
    sent, expected = data_of(rest_of(rig.send(1, tensors))), bytes(memory_of(packed))
    assert len(sent) == size_bytes
    offset = 0
    for tensor in tensors:  # the padding may hold anything
        assert sent[offset:][: tensor.nbytes] == expected[offset:][: tensor.nbytes]
        offset += -(-tensor.nbytes // 64) * 64


@pytest.mark.parametrize("num_before", [0, 1])
def test_a_send_that_is_cancelled_goes_on_from_a_copy(num_before: int) -> None:
    rig, payload = Rig(), torch.arange(float(NUMEL))
    source, expected = rig.send(1, [payload]), bytes(memory_of(payload))
    before = [chunk for _ in range(num_before) if (chunk := next_chunk(source)) is not None]
    assert rig.mover.copy_unsent(1)
    payload.fill_(-1)
    assert data_of([*before, *rest_of(source)]) == expected


@pytest.mark.parametrize("error", [RuntimeError("no memory"), MemoryError("no memory")])
def test_a_cancelled_send_that_there_is_no_memory_to_copy_fails_and_lets_go_of_its_tensor(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def empty(*_: object, **__: object) -> Tensor:
        raise error

    rig = Rig()
    source = rig.send(1, [torch.arange(float(NUMEL))])
    assert next_chunk(source) is not None
    monkeypatch.setattr(torch, "empty", empty)
    assert rig.mover.copy_unsent(1)
    assert rest_of(source) == []
    assert rig.ends == ["the rest of a cancelled send cannot be copied: no memory"]
    source.failed(RuntimeError("no route"))
    assert len(rig.ends) == 1


def test_a_payload_is_received_whatever_the_order_of_its_chunks() -> None:
    rig, tensor = Rig(), torch.zeros(4, dtype=torch.uint8)
    rig.recv(5, tensor)
    assert rig.pump.num_expected == 1
    assert rig.take(5, 2, b"cd")
    assert not rig.ends
    assert rig.take(5, 0, b"ab")
    assert (rig.ends, bytes(memory_of(tensor)), rig.pump.num_expected) == (["ok"], b"abcd", 0)


def test_a_chunk_whose_header_has_not_come_is_not_taken_yet() -> None:
    rig, tensor = Rig(), torch.zeros(2, dtype=torch.uint8)
    assert not rig.take(5, 0, b"ab")
    rig.recv(5, tensor)
    assert rig.take(5, 0, b"ab")
    assert bytes(memory_of(tensor)) == b"ab"


def test_a_receive_that_is_diverted_goes_on_elsewhere_with_all_that_it_had() -> None:
    rig = Rig()
    tensor, buffer = torch.zeros(4, dtype=torch.uint8), torch.zeros(4, dtype=torch.uint8)
    rig.recv(5, tensor)
    rig.take(5, 0, b"ab")
    assert rig.mover.divert(5, buffer)
    rig.take(5, 2, b"cd")
    assert (bytes(memory_of(tensor)), bytes(memory_of(buffer))) == (b"ab\0\0", b"abcd")
    assert rig.ends == ["ok"]
    assert not rig.mover.divert(5, tensor), "it is over"


@pytest.mark.parametrize(("offset", "data"), [(3, b"ab"), (2**63, b"a"), (0, b"")])
def test_what_is_no_part_of_a_payload_ends_it_with_an_error(offset: int, data: bytes) -> None:
    rig, tensor = Rig(), torch.zeros(4, dtype=torch.uint8)
    rig.recv(5, tensor)
    assert rig.take(5, offset, data)
    assert "of a payload of 4 came over MPI" in rig.ends[0]
    assert rig.take(5, 0, b"abcd") is False
    assert tensor.sum() == 0
    assert rig.pump.num_expected == 0


def test_closing_lets_go_of_all_tensors_at_once_and_releasing_tells_it() -> None:
    rig = Rig()
    payload, tensor = torch.arange(float(NUMEL)), torch.zeros(4, dtype=torch.uint8)
    source = rig.send(1, [payload])
    rig.recv(5, tensor)
    next_chunk(source)
    assert not rig.mover.wait_closed(0)
    rig.mover.close(RuntimeError("over"))
    rig.mover.close(RuntimeError("over"))
    assert rig.mover.wait_closed(0)
    assert (rig.ends, rig.pump.num_expected, rig.pump.sinks) == ([], 0, {})
    assert not source.wanted
    assert next_chunk(source) is None
    assert rig.take(5, 0, b"abcd"), "it is dropped, not kept"
    assert tensor.sum() == 0
    rig.mover.release(RuntimeError("broken"))
    rig.mover.release(RuntimeError("broken"))
    assert rig.ends == ["broken", "broken"]
    assert not rig.mover.send(2, [payload], payload.nbytes, rig.over)
    assert not rig.mover.recv(6, tensor, rig.over)


def test_what_mpi_reports_ends_the_transfer_and_nothing_else() -> None:
    rig = Rig()
    payload, tensor = torch.arange(float(NUMEL)), torch.zeros(4, dtype=torch.uint8)
    failing, other = rig.send(1, [payload]), rig.send(2, [payload])
    failing.failed(RuntimeError("no route"))
    failing.failed(RuntimeError("no route"))
    assert rig.ends == ["no route"]
    rest_of(other)
    rig.recv(5, tensor)
    rig.mover.failed(RuntimeError("gone"))
    assert rig.ends == ["no route", "ok", "gone"]
    assert rig.pump.num_expected == 0


def test_what_mpi_reports_of_chunks_that_were_copied_is_told_though_the_send_has_ended() -> None:
    rig = Rig()
    sent = rig.send(1, [torch.arange(float(NUMEL))])
    rest_of(sent)
    assert rig.ends == ["ok"]
    sent.failed(RuntimeError("the fabric is down"))
    sent.failed(RuntimeError("the fabric is down"))
    assert rig.ends == ["ok", "the fabric is down"]
    after = rig.send(2, [torch.arange(float(NUMEL))])
    rest_of(after)
    rig.mover.close(RuntimeError("left"))
    after.failed(RuntimeError("the fabric is down"))
    assert rig.ends == ["ok", "the fabric is down", "ok"]


def test_without_a_thread_transfers_fail_soon_but_not_inside_the_call() -> None:
    rig = Rig(has_thread=False)
    rig.send(1, [torch.arange(float(NUMEL))])
    rig.recv(5, torch.zeros(4))
    assert not rig.ends
    for callback in rig.deferred:
        callback()
    assert len(rig.ends) == 2
    assert all("no thread" in end for end in rig.ends)


def test_two_movers_know_each_other_when_each_was_heard() -> None:
    rig = Rig()
    chunk = next_chunk(rig.proof)
    assert chunk is not None
    assert (chunk.key, chunk.number, bytes(chunk.data)) == (PEER_KEY, PROOF, b"")
    assert next_chunk(rig.proof) is None
    assert rig.mover.proved.done
    assert rig.mover.proved.error is None
    assert rig.pump.num_expected == 0


def test_a_mover_that_was_closed_before_mpi_was_there_never_uses_it() -> None:
    pump, mover = FakePump(), MpiMover(lambda callback: callback())
    mover.close(RuntimeError("over"))
    mover.open(pump)
    mover.meet(0, PEER_KEY)
    assert (pump.sinks, pump.sources, pump.num_expected) == ({}, [], 0)


def test_closing_ends_the_wait_for_the_peers_proof() -> None:
    pump, mover = FakePump(), MpiMover(lambda callback: callback())
    mover.open(pump)
    mover.close(RuntimeError("over"))
    assert mover.proved.error is not None
    assert pump.num_expected == 0
