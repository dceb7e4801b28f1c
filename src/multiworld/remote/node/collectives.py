"""One node's part in a collective of several: a member that lacks an input takes part with zeros, and has told so."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor

from ...errors import ProtocolError
from ...wire.progress.operation import Operation
from ...wire.progress.waiting import while_blocked
from ...world.world import World
from ..protocol.between import Collective, Lacks
from ..protocol.specs import Spec
from .collective_parts import STARTS, Parts, Start, depends
from .copies import Records, of_session
from .peer_world import PeerWorld
from .table import Lost, Table, first_lost, lose_written

OPERATIONS: Final = {op: getattr(dist.ReduceOp, op) for op in ("SUM", "AVG", "PRODUCT", "MIN", "MAX")}


def take_part(records: Records, peer: PeerWorld, said: Collective) -> None:
    """Run this node's part of a collective. It blocks until all have come, or one is lost: then the outputs are.

    A member that lacks an input tells those whose outputs depend on it, waits until they have heard, and takes part
    with zeros. So a member whose part has ended knows of all that concern it, and those that lack nothing need no
    round in which they agree.
    """
    start = STARTS.get(said.name)
    if start is None or (said.op and said.op not in OPERATIONS):
        raise ProtocolError(f"no collective is called {said.name!r} with {said.op!r}")
    table = records.tensors.table
    records.arrive((*said.reads, *said.writes))
    records.tensors.wait_sends([table.get(id_) for id_ in said.writes])
    prepared = _prepare(said, records)
    lost = prepared if isinstance(prepared, Lost) else None
    try:
        # As the world's own blocking calls: what it starts runs on this thread, and none has to be woken for it.
        lost, failure = while_blocked(
            lambda: peer.run_in_turn(said.sequence, lambda world: _run(world, peer, said, start, prepared))
        )
    except Exception as error:  # their world did not form
        failure = error
    if failure is not None:  # a member was lost, or this node can't go on: then no other waits for it
        peer.spoil(failure, said.label)
        lost = lost or Lost(records.failed(peer.failure(failure, said.label, said.group)))
    if lost is not None:
        table.update(dict.fromkeys(said.makes, lost))
        lose_written(table, said.writes, lost)
    elif isinstance(prepared, Parts):
        table.update(zip(said.makes, prepared.makes, strict=True))


def _run(
    world: World, peer: PeerWorld, said: Collective, start: Start, prepared: Parts | Lost
) -> tuple[Lost | None, Exception | None]:
    """Return why the outputs here are lost, if a member lacked an input, and the error that ended this part."""
    failure: Exception | None = None
    staged = prepared
    try:
        if isinstance(prepared, Lost):
            others = [rank for rank in range(world.world_size) if rank != world.rank]
            dependent = [rank for rank in others if depends(said.name, said.root, rank, world.rank)]
            failed = of_session(prepared.failure, peer)
            peer.tell_and_wait(world, dependent, Lacks(sequence=said.sequence, failed=failed))
            parts = _zeros(said)
        else:
            parts = staged = Parts(_on_cpu(prepared.reads), _on_cpu(prepared.writes), prepared.makes)
        _wait_all(world, start(world, parts, said.root, OPERATIONS.get(said.op)))
    except Exception as error:
        failure = error
    lost = _first_cause(peer, said, prepared)  # before the next collective has its turn
    if lost is None and failure is None and isinstance(prepared, Parts) and isinstance(staged, Parts):
        _copy_back(prepared, staged)
    return lost, failure


def _first_cause(peer: PeerWorld, said: Collective, prepared: Parts | Lost) -> Lost | None:
    """Return why the outputs here are lost, if a member lacked an input that they depend on: of the highest rank."""
    told = peer.lacking.ended(said.sequence)
    told = {rank: failed for rank, failed in told.items() if depends(said.name, said.root, peer.rank, rank)}
    if isinstance(prepared, Lost):
        told[peer.rank] = prepared.failure
    if not told:
        return None
    failed = told[max(told)]
    return Lost(replace(failed, session=0) if failed.session == peer.sessions[peer.rank] else failed)


def _prepare(said: Collective, records: Records) -> Parts | Lost:
    """Return the tensors of this member, or why it can't take part."""
    table = records.tensors.table
    lost = first_lost(table[id_] for id_ in (*said.reads, *said.writes) if id_ in table)
    if lost is not None:
        return lost
    try:
        return Parts(_tensors(table, said.reads), _tensors(table, said.writes), _new(said.specs))
    except Exception as error:  # no memory, or an id that is none
        return Lost(records.failed(error))


def _tensors(table: Table, ids: Sequence[int]) -> list[Tensor]:
    found = [table[id_] for id_ in ids]
    return [each for each in found if isinstance(each, Tensor)]


def _new(specs: Iterable[Spec]) -> list[Tensor]:
    return [torch.empty(spec.size, dtype=spec.dtype) for spec in specs]


def _zeros(said: Collective) -> Parts:
    """Return tensors as this member's would be: nobody uses what comes out."""
    zeros = [torch.zeros(spec.size, dtype=spec.dtype) for spec in said.inputs]
    return Parts(zeros[: len(said.reads)], zeros[len(said.reads) :], _new(said.specs))


def _on_cpu(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [each.cpu() for each in tensors]


def _copy_back(parts: Parts, staged: Parts) -> None:
    for there, here in zip(parts.writes, staged.writes, strict=True):
        if there is not here:
            there.copy_(here)


def _wait_all(world: World, started: Iterable[Operation[None]]) -> None:
    for operation in started:
        world.wait_thread(operation, None, None)
