"""Begin with what lies in the memory of hosts: each shard is read where it is, and sent to where it is needed."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from functools import partial

from ...wire.progress.waiting import run_in_thread, wait_blocking
from ...world.world import World
from ..recovery.records import Generation
from ..state import StateDict
from .carrying import SERVING_TAG, receive, send
from .memory import CopyDamagedError, HostMemory, check, state_of
from .plan import MemoryPlan, Serving

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Fetched:
    """A shard's state, in memory of its own. ``began``: on the monotonic clock. The rest: as ``events.CopyLoaded``.

    What another host sent counts as a copy.
    """

    state: StateDict
    is_copy: bool
    holder_rank: int
    size_bytes: int
    began: float


def fetch(
    memory: HostMemory, world: World, generation: Generation, plan: MemoryPlan, member: str, templates: StateDict
) -> Fetched | None:
    """Do a member's part of the plan: serve others, and return its own shard. None: it is no source.

    ``templates``: as of ``transfer.assemble``. Raises the world's error, CopyDamagedError, and ValueError if the shard
    does not fit the program's model.
    """
    serving = [
        run_in_thread(partial(_serve, memory, world, generation, plan, each), "multiworld-training-serve")
        for each in plan.servings
        if each.holder == member and each.source != member
    ]
    mine = [each for each in plan.servings if each.source == member]
    try:
        return _fetch(memory, world, generation, plan, mine[0], templates) if mine else None
    finally:
        for operation in serving:
            wait_blocking(operation)


def _fetch(
    memory: HostMemory, world: World, generation: Generation, plan: MemoryPlan, mine: Serving, templates: StateDict
) -> Fetched:
    began = time.monotonic()
    holder, is_copy = generation.place_of(mine.holder), True
    if mine.holder == mine.source:
        name, data = memory.read(plan.label, mine.shard)
        is_copy = name.is_copy
    else:
        received = receive(world, holder)
        if received is None:
            raise CopyDamagedError(f"{plan.label} of shard {mine.shard}", f"place {holder} cannot read it any more")
        data = check(received, f"{plan.label} of shard {mine.shard} from place {holder}")
    return Fetched(
        state=state_of(data, templates),
        is_copy=is_copy,
        holder_rank=generation.members[holder].rank,
        size_bytes=data.numel(),
        began=began,
    )


def _serve(memory: HostMemory, world: World, generation: Generation, plan: MemoryPlan, serving: Serving) -> None:
    place = generation.place_of(serving.source)
    try:
        _, data = memory.read(plan.label, serving.shard)
    except CopyDamagedError as error:
        logger.warning("%s", error)
        send(world, place, None, SERVING_TAG)
    else:
        send(world, place, data, SERVING_TAG)
