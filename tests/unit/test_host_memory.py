"""Who has the area that all ranks share: one collective after the other, in the order of the calls, or nobody."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from multiworld.channel import collectives
from multiworld.channel.collectives import SharedSpace
from multiworld.channel.host_memory import HostMemory
from multiworld.wire.operation import Operation
from multiworld.wire.progress import ProgressThread

from .collective_cases import ALWAYS_FLAT, premultiplied_sum
from .fake_ports import FakeNetwork, FakePort

Turn = Operation[SharedSpace | None]


class FakeLender:
    """The stream to a peer that maps what it gets, or cannot."""

    def __init__(self, *, can: bool = True) -> None:
        self.can = can
        self.lent: list[int] = []

    def can_lend(self) -> bool:
        return self.can

    def lend(self, descriptor: int) -> None:
        self.lent.append(descriptor)

    def say_unused(self, num_uses: int) -> None: ...


class SlowPort:
    """Rank 0 of two, whose peer answers when the test says so."""

    rank, size = 0, 2

    def __init__(self) -> None:
        self.received: list[tuple[Tensor, Operation[None]]] = []

    def send(self, tensor: Tensor, dst: int) -> Operation[None]:
        operation: Operation[None] = Operation()
        operation.succeed(None)
        return operation

    def recv(self, tensor: Tensor, src: int) -> Operation[None]:
        operation: Operation[None] = Operation()
        self.received.append((tensor, operation))
        return operation

    def answer(self, vote: int) -> None:
        tensor, operation = self.received.pop()
        tensor.fill_(vote)
        operation.succeed(None)


@pytest.fixture
def loop() -> Iterator[ProgressThread]:
    loop = ProgressThread("test-memory")
    yield loop
    loop.stop()


@pytest.fixture
def memory(loop: ProgressThread) -> HostMemory:
    memory = HostMemory(loop, "w", 0, 2)
    memory.add(1, FakeLender())
    return memory


def agreed(memory: HostMemory, port: Any, vote: int = 1) -> Turn:
    """Return the turn of a first call, on which the ranks have agreed."""
    turn = memory.take_area(port)
    memory.answered(1, "")
    port.answer(vote)
    return turn


def test_calls_have_the_area_one_after_the_other(memory: HostMemory) -> None:
    port: Any = SlowPort()
    first, second = agreed(memory, port), memory.take_area(port)
    assert first.result() is memory
    assert not second.done
    memory.leave_area(first)
    assert second.result() is memory


def test_a_call_that_is_made_while_the_ranks_agree_overtakes_no_earlier_one(memory: HostMemory) -> None:
    port: Any = SlowPort()
    first, second = memory.take_area(port), memory.take_area(port)
    late: list[Turn] = []
    first.add_callback(lambda _: late.append(memory.take_area(port)))
    memory.answered(1, "")
    port.answer(1)
    memory.leave_area(first)
    assert second.done
    assert not late[0].done
    memory.leave_area(second)
    assert late[0].done


def test_a_call_that_gives_up_before_the_ranks_agree_holds_nobody_up(memory: HostMemory) -> None:
    port: Any = SlowPort()
    first, second = memory.take_area(port), memory.take_area(port)
    first.cancel(RuntimeError("given up"))
    memory.leave_area(first)
    assert not second.done
    memory.answered(1, "")
    port.answer(1)
    assert second.result() is memory


@pytest.mark.parametrize(("problem", "vote"), [("no memory", 1), ("", 0)])
def test_without_the_memory_of_all_there_is_none_for_anybody(memory: HostMemory, problem: str, vote: int) -> None:
    port: Any = SlowPort()
    turns = [memory.take_area(port), memory.take_area(port)]
    memory.answered(1, problem)
    port.answer(vote)
    turns.append(memory.take_area(port))
    assert [turn.result() for turn in turns] == [None] * 3


def test_a_rank_without_neighbours_makes_no_memory(loop: ProgressThread) -> None:
    memory = HostMemory(loop, "w", 0, 2)
    lender = FakeLender(can=False)
    memory.add(1, lender)
    memory.offer()
    assert memory.own is None
    assert memory.ready(1) is False
    assert not lender.lent


def test_the_end_of_the_world_ends_who_waits_for_a_turn(memory: HostMemory) -> None:
    waiting = memory.take_area(SlowPort())  # type: ignore[arg-type]
    memory.close(RuntimeError("over"))
    assert isinstance(waiting.error, RuntimeError)


class RecordingPort(FakePort):
    """Writes down what is done first."""

    def __init__(self, network: FakeNetwork, rank: int) -> None:
        super().__init__(network, rank)
        self.calls: list[str] = []

    def share(self) -> Operation[SharedSpace | None]:
        self.calls.append("share")
        return super().share()

    def compute(self, work: Callable[[], None], size_bytes: int) -> Operation[None]:
        self.calls.append("compute")
        return super().compute(work, size_bytes)


@pytest.mark.parametrize("name", ["all_reduce", "reduce", "reduce_scatter"])
def test_premultiplied_sums_take_their_turn_before_they_compute(name: str) -> None:
    """Else a later call may be first on some ranks only."""
    tensor = torch.ones(8)
    arguments = {"all_reduce": (tensor,), "reduce": (tensor, 0), "reduce_scatter": (tensor, [torch.ones(8)] * 2)}[name]
    network = FakeNetwork(2)
    ports = [RecordingPort(network, rank) for rank in range(2)]
    network.ports = [*ports]
    network.run(getattr(collectives, name), *arguments, premultiplied_sum(0.5), tuning=ALWAYS_FLAT)
    assert [port.calls[0] for port in ports] == ["share", "share"]
