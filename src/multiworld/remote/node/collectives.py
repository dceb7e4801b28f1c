"""One node's part in a collective of several: a member that lacks an input says so, and the others do not wait."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ...errors import ProtocolError
from ...wire.progress.operation import Operation
from ...wire.progress.waiting import while_blocked
from ...world.world import World
from ..protocol.between import Collective
from ..protocol.messages import TO_MASTER, Failed
from .copies import Records, of_session
from .peer_world import PeerWorld
from .table import Lost, Table, first_lost, lose_written

OPERATIONS: Final = {op: getattr(dist.ReduceOp, op) for op in ("SUM", "AVG", "PRODUCT", "MIN", "MAX")}
_RANK: Final = 1 << 32
"""A failure is told as (rank + 1) × _RANK + the number of its bytes: all take the one of the highest rank."""


class Parts(NamedTuple):
    """The tensors of one member: what it reads, what it writes in place, what it makes."""

    reads: list[Tensor]
    writes: list[Tensor]
    makes: list[Tensor]


Start = Callable[[World, Parts, int, object], list[Operation[None]]]


def take_part(records: Records, peer: PeerWorld, said: Collective) -> None:
    """Run this node's part of a collective. It blocks until all have come, or one is lost: then the outputs are."""
    start = STARTS.get(said.name)
    if start is None or (said.op and said.op not in OPERATIONS):
        raise ProtocolError(f"no collective is called {said.name!r} with {said.op!r}")
    table = records.tensors.table
    records.arrive((*said.reads, *said.writes))
    records.tensors.wait_sends([table.get(id_) for id_ in said.writes])
    prepared = _prepare(said, records)
    try:
        # As the world's own blocking calls: what it starts runs on this thread, and none has to be woken for it.
        lost = while_blocked(
            lambda: peer.run_in_turn(said.sequence, lambda world: _run(world, peer, said, start, prepared))
        )
    except Exception as error:  # a member was lost, or this node can't go on: then no other waits for it
        peer.spoil(error, said.label)
        lost = Lost(records.failed(peer.failure(error, said.label, said.group)))
    if lost is not None:
        table.update(dict.fromkeys(said.makes, lost))
        lose_written(table, said.writes, lost)
    elif isinstance(prepared, Parts):
        table.update(zip(said.makes, prepared.makes, strict=True))


def _run(world: World, peer: PeerWorld, said: Collective, start: Start, prepared: Parts | Lost) -> Lost | None:
    lost = _agree(world, prepared if isinstance(prepared, Lost) else None, peer)
    if lost is None and isinstance(prepared, Parts):
        staged = Parts(_on_cpu(prepared.reads), _on_cpu(prepared.writes), prepared.makes)
        _wait_all(world, start(world, staged, said.root, OPERATIONS.get(said.op)))
        _copy_back(prepared, staged)
    return lost


def _prepare(said: Collective, records: Records) -> Parts | Lost:
    """Return the tensors of this member, or why it can't take part."""
    table = records.tensors.table
    lost = first_lost(table[id_] for id_ in (*said.reads, *said.writes) if id_ in table)
    if lost is not None:
        return lost
    try:
        makes = [torch.empty(spec.size, dtype=spec.dtype) for spec in said.specs]
        return Parts(_tensors(table, said.reads), _tensors(table, said.writes), makes)
    except Exception as error:  # no memory, or an id that is none
        return Lost(records.failed(error))


def _tensors(table: Table, ids: Sequence[int]) -> list[Tensor]:
    found = [table[id_] for id_ in ids]
    return [each for each in found if isinstance(each, Tensor)]


def _agree(world: World, lost: Lost | None, peer: PeerWorld) -> Lost | None:
    """Return a failure of which all members learn, if one has one: then nobody begins."""
    told = b"" if lost is None else TO_MASTER.encode(of_session(lost.failure, peer))
    code = torch.tensor([(world.rank + 1) * _RANK + len(told) if told else 0], dtype=torch.int64)
    _wait_all(world, [world.start_all_reduce(code, dist.ReduceOp.MAX, None)])
    rank, num_bytes = divmod(int(code), _RANK)
    if rank == 0:
        return None
    source = rank - 1
    message = torch.frombuffer(bytearray(told if source == world.rank else bytes(num_bytes)), dtype=torch.uint8)
    _wait_all(world, [world.start_broadcast(message, source, None)])
    failed = TO_MASTER.decode(message.numpy().tobytes())
    if not isinstance(failed, Failed):
        raise ProtocolError(f"a member of a collective told {type(failed).__name__} as its failure")
    mine = peer.sessions[peer.rank]
    return Lost(replace(failed, session=0) if failed.session == mine else failed)


def _on_cpu(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [each.cpu() for each in tensors]


def _copy_back(parts: Parts, staged: Parts) -> None:
    for there, here in zip(parts.writes, staged.writes, strict=True):
        if there is not here:
            there.copy_(here)


def _wait_all(world: World, started: Iterable[Operation[None]]) -> None:
    for operation in started:
        world.wait_thread(operation, None, None)


def _broadcast(world: World, parts: Parts, root: int, op: object) -> list[Operation[None]]:
    return [world.start_broadcast(each, root, None) for each in parts.writes]


def _all_reduce(world: World, parts: Parts, root: int, op: object) -> list[Operation[None]]:
    return [world.start_all_reduce(each, op, None) for each in parts.writes]


def _reduce(world: World, parts: Parts, root: int, op: object) -> list[Operation[None]]:
    return [world.start_reduce(each, root, op, None) for each in (*parts.writes, *parts.reads)]


def _all_gather(world: World, parts: Parts, root: int, op: object) -> list[Operation[None]]:
    return [world.start_all_gather(parts.makes, parts.reads[0], None)]


def _gather(world: World, parts: Parts, root: int, op: object) -> list[Operation[None]]:
    return [world.start_gather(parts.reads[0], parts.makes or None, root, None)]


def _scatter(world: World, parts: Parts, root: int, op: object) -> list[Operation[None]]:
    return [world.start_scatter(parts.writes[0], parts.reads or None, root, None)]


def _reduce_scatter(world: World, parts: Parts, root: int, op: object) -> list[Operation[None]]:
    return [world.start_reduce_scatter(parts.makes[0], parts.reads, op, None)]


def _all_to_all(world: World, parts: Parts, root: int, op: object) -> list[Operation[None]]:
    return [world.start_all_to_all(parts.makes, parts.reads, None)]


STARTS: Final[dict[str, Start]] = {
    "all_gather": _all_gather,
    "all_reduce": _all_reduce,
    "all_to_all": _all_to_all,
    "broadcast": _broadcast,
    "gather": _gather,
    "reduce": _reduce,
    "reduce_scatter": _reduce_scatter,
    "scatter": _scatter,
}
