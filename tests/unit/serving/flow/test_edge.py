"""When an edge sends what, over a world that notes it: at once, at the end of a turn, or a little later."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import torch

from multiworld.errors import PeerDiedError, WorldBrokenError
from multiworld.serving.flow.edge import LAZY_S, PACKET_ITEMS, Edge
from multiworld.serving.flow.packets import Item, Kind, Note, decode
from multiworld.serving.flow.turn import Turn
from multiworld.serving.member.messages import UPSTREAM_RANK
from multiworld.testing import scaled
from multiworld.wire.progress.operation import Operation


class World:
    """Takes what is sent, as bytes if it is small, and refuses all once ``error`` is set."""

    rank = UPSTREAM_RANK

    def __init__(self) -> None:
        self.sent: list[tuple[list[Item], list[Note]]] = []
        self.kinds: list[str] = []
        self.error: WorldBrokenError | None = None

    def send_bytes(self, packed: bytearray, dst: int, tag: int) -> bool:
        if self.error is not None:
            raise self.error
        if len(packed) > 4096:
            return False
        self._take(torch.frombuffer(bytearray(packed), dtype=torch.uint8), "bytes")
        return True

    def start_send_tensors(self, payload: Any, dst: int, tag: int, timeout_s: float | None) -> Operation[None]:
        self._take(payload, "tensors")
        return Operation.succeeded(None)

    def _take(self, payload: Any, kind: str) -> None:
        self.sent.append(decode(payload, now=0.0))
        self.kinds.append(kind)

    def deliver(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("this edge only sends")

    def abort(self) -> None:
        pass


class Owner:
    def __init__(self) -> None:
        self.broke: list[Exception] = []

    def edge_brought(self, edge: Edge, items: list[Item], notes: list[Note]) -> None:
        raise AssertionError("this edge only sends")

    def edge_broke(self, edge: Edge, error: Exception) -> None:
        self.broke.append(error)


def edge_of(world: World, owner: Owner, turn: Turn | None = None) -> Edge:
    return Edge(owner, world, "b-1", "b", turn)  # type: ignore[arg-type]


def item(number: int, size: int = 1) -> Item:
    return Item(Kind.ITEM, number.to_bytes(16, "little"), 1).carry(torch.full((size,), float(number)))


async def until(holds: Callable[[], bool]) -> None:
    async def look() -> None:
        while not holds():  # noqa: ASYNC110 - nobody tells this test
            await asyncio.sleep(0.001)

    await asyncio.wait_for(look(), scaled(10))


async def test_small_packets_leave_as_bytes_and_all_else_as_tensors() -> None:
    world, owner = World(), Owner()
    edge = edge_of(world, owner)
    for number, size in enumerate((1, 5000, 50_000, 1)):
        edge.post(item(number, size))
        await until(lambda number=number: len(world.sent) > number)  # type: ignore[misc]
    assert world.kinds == ["bytes", "tensors", "tensors", "bytes"]
    assert [[got.id[0] for got in items] for items, _ in world.sent] == [[0], [1], [2], [3]]
    assert edge.is_idle


async def test_what_a_broken_world_refuses_is_unsent_and_its_owner_hears_of_it_once() -> None:
    world, owner = World(), Owner()
    edge = edge_of(world, owner)
    edge.post(item(1))
    await until(lambda: len(world.sent) == 1)
    world.error = PeerDiedError("w", 1, 1, "it was killed")
    edge.post(item(2))
    edge.post(item(3))
    await until(lambda: bool(owner.broke))
    edge.post(item(4))
    await asyncio.sleep(2 * LAZY_S)
    assert edge.is_over
    assert [id_[0] for id_ in edge.unsent()] == [2, 3, 4]
    assert owner.broke == [world.error]
    assert len(world.sent) == 1


@pytest.mark.parametrize("in_turn", [True, False])
async def test_what_is_mentioned_is_said_a_little_later_unless_something_takes_it_along(in_turn: bool) -> None:
    world, owner, turn = World(), Owner(), Turn()
    edge = edge_of(world, owner, turn)
    turn.is_on = in_turn
    edge.mention(Kind.RELEASED, b"1" * 16)
    edge.mention(Kind.ACCEPTED, b"2" * 16)
    turn.is_on = False
    edge.flush()
    edge.plan_notes()
    assert world.sent == []
    await until(lambda: len(world.sent) == 1)
    assert {note.kind: list(note.ids) for note in world.sent[0][1]} == {
        Kind.RELEASED: [b"1" * 16],
        Kind.ACCEPTED: [b"2" * 16],
    }
    turn.is_on = in_turn
    edge.mention(Kind.RELEASED, b"3" * 16)
    edge.post(item(4))
    turn.is_on = False
    edge.flush()
    edge.plan_notes()
    assert [(len(items), [list(note.ids) for note in notes]) for items, notes in world.sent[1:]] == [(1, [[b"3" * 16]])]
    await asyncio.sleep(2 * LAZY_S)
    assert len(world.sent) == 2, "nothing is said twice"
    assert edge.is_idle


async def test_a_turn_may_send_what_is_due_before_it_ends() -> None:
    world, owner = World(), Owner()
    edges: list[Edge] = []

    def flush() -> None:
        for edge in edges:
            edge.flush()

    turn = Turn(flush)
    edges.append(edge_of(world, owner, turn))
    turn.flush()
    turn.is_on = True
    edges[0].post(item(1))
    assert world.sent == []
    turn.flush()
    assert len(world.sent) == 1
    turn.is_on = False
    edges[0].post(item(2))
    turn.flush()  # no turn: the loop sends it
    assert len(world.sent) == 1
    await until(lambda: len(world.sent) == 2)


async def test_what_is_said_last_leaves_behind_all_items() -> None:
    world, owner = World(), Owner()
    edge = edge_of(world, owner)
    for number in range(PACKET_ITEMS + 3):
        edge.post(item(number))
    edge.say_last(Note(Kind.OPEN))
    assert not edge.is_idle
    await until(lambda: edge.is_idle)
    assert sum(len(items) for items, _ in world.sent) == PACKET_ITEMS + 3
    kinds = [[note.kind for note in notes] for _, notes in world.sent]
    assert len(kinds) > 1
    assert kinds == [*([[]] * (len(kinds) - 1)), [Kind.OPEN]]


async def test_what_was_to_be_said_last_can_be_taken_back() -> None:
    world, owner = World(), Owner()
    edge = edge_of(world, owner)
    edge.say_last(Note(Kind.OPEN))
    edge.withdraw_last()
    edge.say(Kind.OPEN, number=1)
    await until(lambda: edge.is_idle)
    assert [[(note.kind, note.number) for note in notes] for _, notes in world.sent] == [[(Kind.OPEN, 1.0)]]
