"""What the ranks of one host lend each other: each one memory, with a ring for every other rank and an area for all.

A rank makes its memory when it is first needed, and hands it to all ranks that it reaches over a Unix socket. Each of
them answers whether it has mapped it. The area belongs to collectives (``collectives.flat``), which may use it once
every rank has mapped that of every other; the ranks agree on that once, on their first call that could.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from ..wire.operation import Operation, drive, settler
from ..wire.progress import ProgressThread
from ..wire.spinning import QuickWaits
from .collectives.port import Port, SharedSpace
from .flags import PAGE_BYTES, FlagBarrier, FlagPage, Waiter
from .shared_region import SharedRegion

__all__ = ["AREA_BYTES", "FORGET_S", "RING_BYTES", "HostMemory", "Lender"]

logger = logging.getLogger(__name__)

RING_BYTES = 4 * 1024 * 1024
HALF_BYTES = 1024 * 1024
AREA_BYTES = PAGE_BYTES + 2 * HALF_BYTES
FORGET_S = 1.0  # memory that was not used for so long is given back


class Lender(Protocol):
    """The stream to one peer, which carries the offer."""

    def can_lend(self) -> bool:
        """Whether descriptors can be handed to that peer."""

    def lend(self, descriptor: int) -> None:
        """Hand a descriptor over, then close it; the peer's answer goes to ``HostMemory.answered``."""

    def say_unused(self, num_uses: int) -> None:
        """Tell that peer that no area is in use here after so many collectives (``HostMemory.unused_by``)."""


class HostMemory:
    """The memory of one rank and world, and what the others have lent to it. Any thread."""

    def __init__(self, loop: ProgressThread, world: str, rank: int, world_size: int) -> None:
        self.rank = rank
        self._loop = loop
        self._world, self._world_size = world, world_size
        self._lenders: dict[int, Lender] = {}
        self._lock = threading.Lock()
        self._offered = False
        self.own: SharedRegion | None = None
        self.theirs: dict[int, SharedRegion] = {}
        self._answers: dict[int, Operation[bool]] = {}
        self._agreement: Operation[bool] | None = None
        self._error: Exception | None = None
        self._turns: deque[Operation[SharedSpace | None]] = deque()  # the first one has the area
        self._num_uses = 0
        self._unused_by: dict[int, int] = {}  # after how many uses each peer has said that it uses no area
        self._idle_timer = False
        self._quick_waits = QuickWaits()
        self._own_page: FlagPage | None = None
        self.count = 0  # of barriers, of the call that had the area last

    def add(self, rank: int, lender: Lender) -> None:
        self._lenders[rank] = lender
        self._answers[rank] = Operation()

    def ring_offset(self, writer: int, reader: int) -> int:
        """Return where the ring of what one rank sends to another begins, in the memory of the first."""
        return RING_BYTES * (reader - (reader > writer))

    @property
    def _size_bytes(self) -> int:
        return RING_BYTES * (self._world_size - 1) + AREA_BYTES

    @property
    def _area_offset(self) -> int:
        return RING_BYTES * (self._world_size - 1)

    # ---- lending

    def offer(self) -> None:
        """Make the memory, if it was not made, and hand it to all that can take it."""
        with self._lock:
            if self._offered or self._error is not None:
                return
            self._offered = True
            lenders = {rank: lender for rank, lender in self._lenders.items() if lender.can_lend()}
            descriptor = self._make() if lenders else None
        for rank in self._lenders:
            if descriptor is None or rank not in lenders:
                self._answers[rank].succeed(False)
        if descriptor is None:
            return
        for rank, lender in lenders.items():
            try:
                copy = os.dup(descriptor)
            except OSError as error:
                self.answered(rank, f"cannot hand shared memory over: {error}")
            else:
                lender.lend(copy)
        os.close(descriptor)

    def _make(self) -> int | None:
        try:
            self.own, descriptor = SharedRegion.create(self._size_bytes)
        except OSError as error:
            self._warn(f"cannot make shared memory: {error}")
            return None
        return descriptor

    def answered(self, rank: int, problem: str) -> None:
        """A peer has mapped our memory, or has a problem."""
        if problem:
            self._warn(problem)
        self._answers[rank].succeed(not problem)

    def lent(self, rank: int, descriptor: int | None) -> str:
        """Map what a peer hands over. Return what went wrong, if anything did."""
        if descriptor is None:
            return f"rank {self.rank} could not take the descriptor of shared memory; raise its limit of open files"
        try:
            self.theirs[rank] = SharedRegion(descriptor, self._size_bytes)
        except OSError as error:
            return f"rank {self.rank} could not map shared memory: {error}"
        finally:
            os.close(descriptor)
        return ""

    def ready(self, rank: int) -> bool | None:
        """Whether a peer has mapped our memory; None: it has not answered."""
        answer = self._answers[rank]
        return answer.result() if answer.done and answer.error is None else None

    def _warn(self, problem: str) -> None:
        logger.warning("world %s: tensors go through a socket, which is slower: %s", self._world, problem)

    # ---- the area, for one collective at a time

    def take_area(self, port: Port) -> Operation[SharedSpace | None]:
        """Wait for the turn of a collective, in the order of the calls; None: the ranks do not share memory."""
        turn: Operation[SharedSpace | None] = Operation()
        with self._lock:
            self._turns.append(turn)  # now: the order must be the same on all ranks
            agreement, is_first = self._agreement, self._agreement is None
            if agreement is None:
                agreement = self._agreement = Operation()
        if is_first:
            _pass_on(drive(self._agree(port)), agreement)
        agreement.add_callback(lambda _: self._grant())
        return turn

    def _grant(self) -> None:
        """Let the first in the row have the area, or all of them know that there is none."""
        with self._lock:
            agreement = self._agreement
            if agreement is None or not agreement.done:
                return
            agreed = agreement.error is None and agreement.result()
            granted = list(self._turns)[:1] if agreed else list(self._turns)
            if not agreed:
                self._turns.clear()
        for turn in granted:
            if agreement.error is not None:
                turn.fail(agreement.error)
            else:
                turn.succeed(self if agreed else None)

    async def _agree(self, port: Port) -> bool:
        """Exchange with all others whether all have mapped our memory."""
        self.offer()
        mapped = True
        for answer in self._answers.values():
            settled: Operation[None] = Operation()
            answer.add_callback(settler(settled))
            await settled
            mapped = answer.result() and mapped
        votes = torch.tensor([mapped] * self._world_size, dtype=torch.uint8).unbind()
        vote = torch.tensor(mapped, dtype=torch.uint8)
        receives = [port.recv(votes[rank], rank) for rank in self._lenders]
        sends = [port.send(vote, rank) for rank in self._lenders]
        for operation in (*receives, *sends):
            await operation
        return all(bool(each) for each in votes)

    def leave_area(self, turn: Operation[SharedSpace | None]) -> None:
        """A collective has ended, and nothing of it is under way."""
        with self._lock:
            if turn not in self._turns:
                return
            self._turns.remove(turn)
            self._num_uses += 1
            starts_timer = not self._idle_timer
            self._idle_timer = True
        if starts_timer:
            self._loop.call_later(FORGET_S, partial(self._check_idle, self._num_uses))
        self._grant()

    def _check_idle(self, num_uses: int) -> None:
        """On the progress thread, while the area is used now and then: is it still?"""
        with self._lock:
            if self._error is not None:
                return
            self._idle_timer = bool(self._turns) or num_uses != self._num_uses
        if self._idle_timer:
            self._loop.call_later(FORGET_S, partial(self._check_idle, self._num_uses))
        else:
            for lender in self._lenders.values():
                lender.say_unused(num_uses)
            self._forget_if_unused()

    def unused_by(self, rank: int, num_uses: int) -> None:
        """A peer has used no area for a while, after so many collectives."""
        with self._lock:
            self._unused_by[rank] = num_uses
        self._forget_if_unused()

    def _forget_if_unused(self) -> None:
        """Give the area's pages back, once nobody can be reading them."""
        with self._lock:
            if self.own is None or self._turns or self._idle_timer:
                return
            if all(self._unused_by.get(rank) == self._num_uses for rank in self._lenders):
                self.own.forget(self._area_offset + PAGE_BYTES, 2 * HALF_BYTES)

    # ---- barriers in the area, of the collective that has it

    def flag_barrier(self, waiter: Waiter, count: int) -> FlagBarrier:
        """Return a barrier of all ranks, which have agreed to use it and on what to count from."""
        with self._lock:
            regions = {**self.theirs, self.rank: self.own}
            if self._error is not None:
                raise self._error
        pages = {}
        for rank, region in regions.items():
            assert region is not None
            pages[rank] = FlagPage(region, region.address + self._area_offset)
        own = self._own_page = pages.pop(self.rank)
        return FlagBarrier(waiter, own, sorted(pages.items()), self._quick_waits, count)

    def give_up(self, seq: int) -> None:
        """Tell the others, who may wait for us at a barrier, that we gave a call up."""
        if self._own_page is not None:
            self._own_page.give_up(seq)

    def check(self) -> None:
        """Raise what ended the world, if anything did."""
        if self._error is not None:
            raise self._error

    @property
    def half_bytes(self) -> int:
        return HALF_BYTES

    def area(self, rank: int, half: int, like: Tensor, offset_bytes: int = 0) -> Tensor:
        region = self.own if rank == self.rank else self.theirs.get(rank)
        assert region is not None, "shared memory used after the end of its world"
        return region.tensor(self._area_offset + PAGE_BYTES + half * HALF_BYTES + offset_bytes, like)

    # ---- the end

    def close(self, error: Exception) -> None:
        """Nothing is lent or taken any more. The memory ends with its last user."""
        with self._lock:
            self._error = error
            self.own = self._own_page = None
            self.theirs = {}
        for answer in self._answers.values():
            answer.fail(error)


def _pass_on(source: Operation[bool], target: Operation[bool]) -> None:
    def complete(_: Operation[bool]) -> None:
        if source.error is not None:
            target.fail(source.error)
        else:
            target.succeed(source.result())

    source.add_callback(complete)
