"""Who has the memory that all ranks share: one collective after the other, in the order of the calls, or nobody."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from multiworld.channel import collectives
from multiworld.channel.collectives import SharedWork
from multiworld.channel.shared_memory.host_memory import HostMemory
from multiworld.channel.shared_memory.shared_area import SharedArea, Turn
from multiworld.channel.shared_memory.shared_call import SharedCall
from multiworld.wire.progress.operation import Operation, drive, settler
from multiworld.wire.progress.thread import ProgressThread
from multiworld.wire.progress.waiting import wait_blocking
from tests.unit.channel.collectives.collective_cases import ALWAYS_FLAT, premultiplied_sum
from tests.unit.channel.collectives.fake_ports import FakeLender, FakeNetwork, FakePort


@pytest.fixture
def loop() -> Iterator[ProgressThread]:
    loop = ProgressThread("test-area")
    yield loop
    loop.stop()


@pytest.fixture
def memory() -> HostMemory:
    memory = HostMemory("w", 0, 2)
    memory.add(1, FakeLender())
    return memory


@pytest.fixture
def area(loop: ProgressThread, memory: HostMemory) -> SharedArea:
    return SharedArea(loop, memory)


def take(area: SharedArea, seq: int) -> Turn:
    turn = Turn(seq)
    area.reserve(turn)
    area.take(turn)
    return turn


def agree(loop: ProgressThread, memory: HostMemory, problem: str = "", *, peer: bool = True) -> None:
    """Let the peer answer our offer, and vote; whoever waited for that has been told then.

    On the thread of the calls that took a turn, after them: else it may be in the midst of taking part.
    """

    def answer() -> None:
        memory.take_part()
        memory.answered(1, problem)
        memory.voted(1, by_all=peer)

    told: Operation[None] = Operation()
    loop.call_soon(answer)
    loop.call_soon(settler(told))
    wait_blocking(told)


def test_calls_have_the_area_one_after_the_other(loop: ProgressThread, area: SharedArea, memory: HostMemory) -> None:
    agree(loop, memory)
    first, second = take(area, 1), take(area, 2)
    assert first.operation.result()
    assert not second.operation.done
    area.leave(first, failed=False)
    assert second.operation.result()


def test_a_call_waits_for_an_earlier_one_that_has_not_said_yet_whether_it_wants_the_area(
    loop: ProgressThread, area: SharedArea, memory: HostMemory
) -> None:
    agree(loop, memory)
    undecided = Turn(1)
    area.reserve(undecided)
    later = take(area, 2)
    assert not later.operation.done
    area.leave(undecided, failed=False)
    assert later.operation.result()


def test_a_call_that_is_made_while_the_ranks_agree_overtakes_no_earlier_one(
    loop: ProgressThread, area: SharedArea, memory: HostMemory
) -> None:
    first, second = take(area, 1), take(area, 2)
    late: list[Turn] = []
    first.operation.add_callback(lambda _: late.append(take(area, 3)))
    agree(loop, memory)
    area.leave(first, failed=False)
    assert second.operation.done
    assert not late[0].operation.done
    area.leave(second, failed=False)
    assert late[0].operation.done


def test_a_call_that_gives_up_before_the_ranks_agree_holds_nobody_up(
    loop: ProgressThread, area: SharedArea, memory: HostMemory
) -> None:
    first, second = take(area, 1), take(area, 2)
    first.operation.cancel(RuntimeError("given up"))
    area.leave(first, failed=True)
    assert not second.operation.done
    agree(loop, memory)
    assert second.operation.result()
    assert area.gave_up == 1


@pytest.mark.parametrize(("problem", "peer"), [("no memory", True), ("", False)])
def test_without_the_memory_of_all_there_is_none_for_anybody(
    loop: ProgressThread, area: SharedArea, memory: HostMemory, problem: str, *, peer: bool
) -> None:
    undecided = Turn(1)
    area.reserve(undecided)
    turns = [take(area, 2), take(area, 3)]
    agree(loop, memory, problem, peer=peer)
    turns.append(take(area, 4))
    assert [wait_blocking(turn.operation) for turn in turns] == [False] * 3
    assert not wait_blocking(area.take(undecided))


def test_who_calls_no_collective_tells_the_others_all_the_same(memory: HostMemory) -> None:
    """They may wait in one, and must find out that we are in another, or in none."""
    lender = FakeLender()
    memory.add(1, lender)
    memory.voted(1, by_all=True)
    assert not lender.said
    memory.answered(1, "")
    assert lender.said == [True]
    assert memory.agreement.result()


def test_the_end_of_the_world_ends_who_waits_for_a_turn(area: SharedArea) -> None:
    waiting = take(area, 1)
    area.close(RuntimeError("over"))
    assert isinstance(waiting.operation.error, RuntimeError)
    assert isinstance(take(area, 2).operation.error, RuntimeError)


class RecordingPort(FakePort):
    """Writes down what is done first."""

    def __init__(self, network: FakeNetwork, rank: int) -> None:
        super().__init__(network, rank)
        self.calls: list[str] = []

    async def share(self, work: SharedWork, size_bytes: int) -> bool:
        self.calls.append("share")
        return await super().share(work, size_bytes)

    def compute(self, work: Callable[[], None], size_bytes: int) -> Operation[None]:
        self.calls.append("compute")
        return super().compute(work, size_bytes)


@pytest.mark.parametrize("name", ["all_reduce", "reduce", "reduce_scatter"])
@pytest.mark.parametrize("shares", [True, False], ids=["shared memory", "messages"])
def test_premultiplied_sums_take_their_turn_before_they_compute(name: str, *, shares: bool) -> None:
    """Else a later call may be first on some ranks only."""
    tensor = torch.ones(8)
    arguments = {"all_reduce": (tensor,), "reduce": (tensor, 0), "reduce_scatter": (tensor, [torch.ones(8)] * 2)}[name]
    network = FakeNetwork(2, shares=shares)
    ports = [RecordingPort(network, rank) for rank in range(2)]
    network.ports = [*ports]
    network.run(getattr(collectives, name), *arguments, premultiplied_sum(0.5), tuning=ALWAYS_FLAT)
    assert [port.calls[0] for port in ports] == ["share", "share"]


# ---- calls of two ranks that share memory


class Mismatch(Exception):
    """What a call fails with whose peer is in another one, or gave up."""


class Context:
    """What a call knows about itself: here, what the test tells it."""

    def __init__(self) -> None:
        self.cancelled = threading.Event()
        self.expected: list[Operation[None]] = []

    def check(self) -> None:
        if self.cancelled.is_set():
            raise TimeoutError

    def expect_nothing(self, rank: int) -> Operation[None]:
        self.expected.append(Operation())
        return self.expected[-1]

    def mismatch(self, rank: int, signature: bytes) -> Exception:
        return Mismatch(rank, signature)


class Pair:
    """The areas of two ranks, and their calls, each on a thread of its own."""

    def __init__(self, loop: ProgressThread) -> None:
        memories = [HostMemory("w", rank, 2) for rank in range(2)]
        lenders = [FakeLender(), FakeLender()]
        for rank, memory in enumerate(memories):
            memory.add(1 - rank, lenders[rank])
            memory.offer()
        for rank, memory in enumerate(memories):
            assert memory.lent(1 - rank, lenders[1 - rank].lent[0]) == ""
        self.areas = [SharedArea(loop, memory) for memory in memories]
        self.contexts = [Context(), Context()]
        self.threads: list[threading.Thread] = []

    def call(self, rank: int, seq: int, work: SharedWork, signature: bytes = b"call") -> Operation[None]:
        """Let a rank make a call; returns when it is over, or waits."""
        operation: Operation[None] = Operation()
        thread = threading.Thread(target=self._run, args=(rank, seq, work, signature, operation), daemon=True)
        thread.start()
        self.threads.append(thread)
        return operation

    def _run(self, rank: int, seq: int, work: SharedWork, signature: bytes, operation: Operation[None]) -> None:
        call = SharedCall(self.areas[rank], self.contexts[rank], seq, signature)
        call.thread = threading.get_ident()

        async def steps() -> None:
            await call.begin()
            await work(call)

        inner = drive(steps())
        assert inner.done, "a thread that may block does so"
        if inner.error is not None:
            self.areas[rank].gave_up = seq
            self.areas[rank].pages[rank].give_up(seq)
            operation.fail(inner.error)
        else:
            operation.succeed(None)

    def join(self) -> None:
        for thread in self.threads:
            thread.join(20)
            assert not thread.is_alive(), "a call that never ends"
        self.threads.clear()


@pytest.fixture
def pair(loop: ProgressThread) -> Iterator[Pair]:
    pair = Pair(loop)
    yield pair
    for area in pair.areas:
        area.close(RuntimeError("over"))


def summing(tensor: Tensor) -> SharedWork:
    return lambda space: collectives.flat.flat_all_reduce(space, tensor, torch.distributed.ReduceOp.SUM)


@pytest.mark.parametrize("numel", [1, 1000, 300_000, 2_500_000], ids=["whole", "4 kB", "shares", "pieces"])
def test_calls_one_after_the_other_see_what_was_shown_for_them(pair: Pair, numel: int) -> None:
    for seq in range(1, 20):
        tensors = [torch.full((numel,), float(seq * 10 + rank)) for rank in range(2)]
        for rank in (0, 1) if seq % 2 else (1, 0):
            pair.call(rank, seq, summing(tensors[rank]))
        pair.join()
        assert all(bool((tensor == seq * 20 + 1).all()) for tensor in tensors)


def test_ranks_in_different_calls_learn_what_the_other_called(pair: Pair) -> None:
    calls = [pair.call(rank, 1, summing(torch.ones(8)), signature) for rank, signature in enumerate((b"this", b"that"))]
    pair.join()
    assert [call.error.args for call in calls if isinstance(call.error, Mismatch)] == [(1, b"that"), (0, b"this")]


def test_long_signatures_that_differ_at_their_end_differ(pair: Pair) -> None:
    texts = [b"x" * 5000 + last for last in (b"a", b"b")]
    calls = [pair.call(rank, 1, summing(torch.ones(8)), texts[rank]) for rank in range(2)]
    pair.join()
    assert [type(call.error) for call in calls] == [Mismatch, Mismatch]


def test_who_waits_for_a_rank_that_gave_up_is_told_and_the_next_call_is_right(pair: Pair) -> None:
    waiting = pair.call(0, 1, summing(torch.ones(8)))
    pair.areas[1].gave_up = 1
    pair.areas[1].pages[1].give_up(1)
    pair.join()
    assert isinstance(waiting.error, Mismatch)
    tensors = [torch.full((8,), 1.0 + rank) for rank in range(2)]
    calls = [pair.call(rank, 2, summing(tensors[rank])) for rank in range(2)]
    pair.join()
    assert [call.error for call in calls] == [None, None]
    assert [tensor[0].item() for tensor in tensors] == [3.0, 3.0]


def test_who_gave_up_waits_until_the_others_have_left_that_call(pair: Pair) -> None:
    """They may still read what it laid open: it must not write there before."""
    reading, may_leave = threading.Event(), threading.Event()
    seen: list[float] = []

    async def read_slowly(space: Any, tensor: Tensor) -> None:
        space.begin_piece()
        await space.show()
        reading.set()
        assert may_leave.wait(20)
        seen.append(space.area(1, tensor)[0].item())

    async def give_up(space: Any, tensor: Tensor) -> None:
        space.begin_piece()
        space.area(1, tensor).copy_(tensor)
        await space.show()
        raise TimeoutError

    numbers = torch.full((8,), 7.0)
    reader = pair.call(0, 1, partial(read_slowly, tensor=numbers))
    loser = pair.call(1, 1, partial(give_up, tensor=numbers))
    assert reading.wait(20)
    pair.threads.pop().join(20)
    assert isinstance(loser.error, TimeoutError)
    later = [pair.call(1, seq, summing(torch.full((8,), 9.0))) for seq in (2,)]
    threading.Event().wait(0.05)
    assert not later[0].done
    may_leave.set()
    pair.threads[0].join(20)
    assert (reader.error, seen) == (None, [7.0])
    second = torch.full((8,), 1.0)
    pair.call(0, 2, summing(second))
    pair.join()
    assert second[0].item() == 10.0


def test_a_cancelled_call_ends_though_it_never_waits(pair: Pair) -> None:
    pair.contexts[0].cancelled.set()
    call = pair.call(0, 1, summing(torch.ones(8)))
    pair.join()
    assert isinstance(call.error, TimeoutError)


def test_a_cancelled_call_ends_soon(pair: Pair) -> None:
    waiting = pair.call(0, 1, summing(torch.ones(8)))
    pair.contexts[0].cancelled.set()
    pair.join()
    assert isinstance(waiting.error, TimeoutError)


def test_who_waits_for_long_hears_of_a_rank_that_is_in_another_call(pair: Pair) -> None:
    """Which does not use the memory, and sends messages instead."""
    waiting = pair.call(0, 1, summing(torch.ones(8)))
    while not pair.contexts[0].expected:
        os.sched_yield()
    pair.contexts[0].expected[0].fail(Mismatch("other"))
    pair.join()
    assert isinstance(waiting.error, Mismatch)


def test_a_rank_that_was_in_another_call_and_went_on_has_not_come(pair: Pair) -> None:
    first = pair.call(0, 1, summing(torch.ones(8)))
    second = pair.call(1, 2, summing(torch.ones(8)))
    pair.threads.pop(0).join(20)
    assert isinstance(first.error, Mismatch)
    pair.call(0, 2, summing(torch.ones(8)))
    pair.join()
    assert second.error is None


def test_a_call_that_must_not_block_waits_elsewhere(pair: Pair) -> None:
    tensors = [torch.ones(8), torch.ones(8)]
    call = SharedCall(pair.areas[0], pair.contexts[0], 1, b"call")
    inner = drive(summing(tensors[0])(call))
    assert not inner.done
    pair.call(1, 1, summing(tensors[1]))
    pair.join()
    ended = threading.Event()
    inner.add_callback(lambda _: ended.set())
    assert ended.wait(20)
    assert inner.error is None
    assert [tensor[0].item() for tensor in tensors] == [2.0, 2.0]
