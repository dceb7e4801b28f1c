"""Collectives that differ between the ranks: an error for each, and never a hang."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import torch

import multiworld as mw

from ..catalogue import SEVERAL, by_members
from ..stage import Stage

HANG_S = 6.0
Issue = Callable[[mw.World], Coroutine[Any, Any, None]]


@by_members(sizes=SEVERAL)
async def collectives_that_differ_fail_everywhere(stage: Stage) -> None:
    """Where ranks call different collectives as their n-th, or with other shapes, dtypes, roots or operations, every
    rank that waits for all others gets CollectiveMismatchError; nobody hangs or gets data, and the world stands.
    """
    cases = _waiting_for_all(stage)
    what, one, others = cases[-1]
    fresh = await stage.join("fresh")  # whose ranks have not agreed on anything yet
    first = stage.in_time((one if stage.rank == 0 else others)(fresh), HANG_S, what)
    await stage.must_raise(first, mw.CollectiveMismatchError, f"{what}, the first call of a world")
    world = await stage.join()
    for number, (what, one, others) in enumerate(cases):
        odd = number % stage.size
        call = one if stage.rank == odd else others
        await stage.must_raise(
            stage.in_time(call(world), HANG_S, what), mw.CollectiveMismatchError, f"{what} (the odd one is rank {odd})"
        )
        await _check_works(stage, world, what)


@by_members(sizes=SEVERAL)
async def roots_that_differ_hang_nobody(stage: Stage) -> None:
    """Where ranks disagree on a collective with a root, those that wait for all others get CollectiveMismatchError, and
    nobody hangs; who only sends may be done before.
    """
    world = await stage.join()
    for number, (what, one, others) in enumerate(_with_a_root(stage)):
        call, waits = one if stage.rank == number % stage.size else others
        try:
            await stage.in_time(call(world), HANG_S, what)
        except mw.CollectiveMismatchError:
            await _check_works(stage, world, what)
            continue
        stage.check(not waits, f"{what} succeeded on a rank that has to hear from all others")
        await _check_works(stage, world, what)


def _waiting_for_all(stage: Stage) -> list[tuple[str, Issue, Issue]]:
    def reduce(numel: int, dtype: torch.dtype = torch.float32, op: Any = mw.ReduceOp.SUM) -> Issue:
        return lambda world: world.all_reduce(torch.ones(numel, dtype=dtype, device=stage.device), op)

    def gather(numel: int) -> Issue:
        return lambda world: world.all_gather([stage.full(numel, 0) for _ in stage.ranks], stage.full(numel, 1))

    def exchange(numel: int, dtype: torch.dtype = torch.float32) -> Issue:
        outputs, inputs = ([stage.full(numel, value).to(dtype) for _ in stage.ranks] for value in range(2))
        return lambda world: world.all_to_all(outputs, inputs)

    return [
        ("all_reduce of 4 and of 5 elements", reduce(4), reduce(5)),
        ("all_reduce of 300000 and of 300001 elements", reduce(300_000), reduce(300_001)),
        ("all_reduce of 4 and of 3000000 elements", reduce(4), reduce(3_000_000)),
        ("all_reduce of float32 and of int32", reduce(4), reduce(4, torch.int32)),
        ("all_reduce by SUM and by MAX", reduce(4), reduce(4, op=mw.ReduceOp.MAX)),
        ("all_reduce and all_gather", reduce(4), gather(4)),
        ("barrier and all_reduce", lambda world: world.barrier(), reduce(1)),
        ("all_gather of 4 and of 6 elements", gather(4), gather(6)),
        ("all_to_all of 4 and of 300000 elements", exchange(4), exchange(300_000)),
        ("all_to_all of float32 and of int32", exchange(4), exchange(4, torch.int32)),
        ("all_to_all and barrier", exchange(4), lambda world: world.barrier()),
    ]


def _with_a_root(stage: Stage) -> list[tuple[str, tuple[Issue, bool], tuple[Issue, bool]]]:
    """Return what one rank and what the others call, and whether it has to hear from all others."""

    def broadcast(root: int, numel: int = 4) -> tuple[Issue, bool]:
        return lambda world: world.broadcast(stage.full(numel, 1), root), False

    def reduce(root: int, numel: int = 4) -> tuple[Issue, bool]:
        return lambda world: world.reduce(stage.full(numel, 1), root), stage.rank == root

    def gather(root: int, numel: int = 4) -> tuple[Issue, bool]:
        parts = [stage.full(numel, 0) for _ in stage.ranks] if stage.rank == root else None
        return lambda world: world.gather(stage.full(numel, 1), parts, root), stage.rank == root

    return [
        ("broadcast from rank 0 and from rank 1", broadcast(0), broadcast(1)),
        ("broadcast of 4 and of 5 elements", broadcast(0), broadcast(0, 5)),
        ("broadcast of 1000000 and of 1000001 elements", broadcast(0, 1_000_000), broadcast(0, 1_000_001)),
        ("reduce to rank 0 and to rank 1", reduce(0), reduce(1)),
        ("reduce of 4 and of 5 elements", reduce(0), reduce(0, 5)),
        ("gather of 4 and of 300000 elements", gather(0), gather(0, 300_000)),
        ("gather and reduce to one root", gather(1), reduce(1)),
        ("reduce and broadcast", reduce(0), broadcast(0)),
    ]


async def _check_works(stage: Stage, world: mw.World, what: str) -> None:
    tensor = stage.full(100, 1)
    await stage.in_time(world.all_reduce(tensor), HANG_S, f"the all_reduce after {what}")
    stage.check_full(tensor, stage.size, f"the all_reduce after {what}")
