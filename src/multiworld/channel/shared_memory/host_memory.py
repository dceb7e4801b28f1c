"""What the ranks of one host lend each other: each one memory, with a way to every other rank and an area for all.

A rank makes its memory when it is first needed, and hands it to all ranks that it reaches over a Unix socket. Each of
them answers whether it has mapped it. Once collectives want to know, each rank tells all others whether all have mapped
its own: only then may all areas be used. The ways, each a ring with its slots, a pipe and lent memory, belong to the
streams, the area to collectives (``shared_area``).
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import NamedTuple, Protocol

from ...wire.memory import futex
from ...wire.memory.shared_region import SharedRegion
from ...wire.progress.operation import Operation
from .flags import PAGE_BYTES
from .lent import lent_bytes
from .pipe import PAGE_BYTES as PIPE_PAGE_BYTES
from .pipe import WINDOW_BYTES
from .slots import SLOTS_BYTES

logger = logging.getLogger(__name__)

RING_BYTES = 4 * 1024 * 1024
HALF_BYTES = 4 * 1024 * 1024
AREA_BYTES = PAGE_BYTES + 2 * HALF_BYTES
FORGET_S = 1.0  # memory that was not used for so long is given back


class Offsets(NamedTuple):
    """Where the parts of a rank's memory begin that lead to one peer."""

    ring: int
    window: int
    page: int
    slots: int
    lent: int


class Lender(Protocol):
    """The stream to one peer, which carries the offer."""

    def can_lend(self) -> bool:
        """Whether descriptors can be handed to that peer."""

    def lend(self, descriptor: int) -> None:
        """Hand a descriptor over, then close it; the peer's answer goes to ``HostMemory.answered``."""

    def say_mapped(self, *, by_all: bool) -> None:
        """Tell that peer whether every rank has mapped our memory (``HostMemory.voted``)."""

    def say_unused(self, seq: int) -> None:
        """Tell that peer that no area is in use here after the call of that number (``HostMemory.unused_by``)."""


class HostMemory:
    """The memory of one rank and world, and what the others have lent to it. Any thread."""

    def __init__(self, world: str, rank: int, world_size: int) -> None:
        self.rank = rank
        self._world, self.world_size = world, world_size
        self.lent_bytes = lent_bytes(world_size - 1)
        self._way_bytes = (RING_BYTES, WINDOW_BYTES, PIPE_PAGE_BYTES, SLOTS_BYTES, self.lent_bytes)
        """Of the parts that lead to one peer, as in ``Offsets``."""
        self._lenders: dict[int, Lender] = {}
        self._lock = threading.Lock()
        self._offered = False
        self.own: SharedRegion | None = None
        self.theirs: dict[int, SharedRegion] = {}
        self._answers: dict[int, Operation[bool]] = {}
        self._votes: dict[int, bool] = {}  # of each rank: whether all have mapped its memory
        self._takes_part = False
        self.agreement: Operation[bool] = Operation()
        """Whether every rank has mapped the memory of every other; done some time after ``take_part``."""
        self._error: Exception | None = None
        self.on_unused: Callable[[int, int], None] = lambda *_: None

    def add(self, rank: int, lender: Lender) -> None:
        self._lenders[rank] = lender
        self._answers[rank] = Operation()

    def offsets(self, writer: int, reader: int) -> Offsets:
        """Return where what one rank sends to another goes, in the memory of the first."""
        index, count = reader - (reader > writer), self.world_size - 1
        begin, begins = 0, []
        for size in self._way_bytes:
            begins.append(begin + size * index)
            begin += size * count
        return Offsets(*begins)

    @property
    def _size_bytes(self) -> int:
        return self.area_offset + AREA_BYTES

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
            region = SharedRegion(descriptor, self._size_bytes)
        except OSError as error:
            return f"rank {self.rank} could not map shared memory: {error}"
        finally:
            os.close(descriptor)
        with self._lock:
            if self._error is not None:  # what was closed would keep it mapped
                return f"rank {self.rank} takes no more shared memory: its world has ended"
            self.theirs[rank] = region
        return ""

    def ready(self, rank: int) -> bool | None:
        """Whether a peer has mapped our memory; None: it has not answered."""
        answer = self._answers[rank]
        return answer.result() if answer.done and answer.error is None else None

    # ---- agreeing on whether all share

    def take_part(self) -> None:
        """Find out, with all others, whether all have mapped the memory of all. With no lock held; idempotent."""
        with self._lock:
            if self._takes_part or self._error is not None:
                return
            self._takes_part = True
        self.offer()
        for answer in self._answers.values():
            answer.add_callback(lambda _: self._vote())

    def _vote(self) -> None:
        """Tell all others once all have answered."""
        answers = self._answers.values()
        with self._lock:
            if self.rank in self._votes or not all(answer.done and answer.error is None for answer in answers):
                return
            by_all = futex.WORKS and all(answer.result() for answer in answers)
            self._votes[self.rank] = by_all
        for lender in self._lenders.values():
            lender.say_mapped(by_all=by_all)
        self._count()

    def voted(self, rank: int, *, by_all: bool) -> None:
        """A peer has told whether all have mapped its memory, and waits for our word. With nothing held."""
        with self._lock:
            self._votes[rank] = by_all
        self.take_part()
        self._count()

    def _count(self) -> None:
        with self._lock:
            votes = list(self._votes.values())
        if not all(votes) or len(votes) == self.world_size:
            self.agreement.succeed(all(votes))

    def _warn(self, problem: str) -> None:
        logger.warning("world %s: tensors go through a socket, which is slower: %s", self._world, problem)

    # ---- the areas, which ``shared_area`` manages

    @property
    def area_offset(self) -> int:
        """Where the area begins in each rank's memory."""
        return sum(self._way_bytes) * (self.world_size - 1)

    def region(self, rank: int) -> SharedRegion | None:
        return self.own if rank == self.rank else self.theirs.get(rank)

    def forget(self, offset: int, size_bytes: int) -> None:
        """Give pages of our memory back."""
        own = self.own
        if own is not None:
            own.forget(offset, size_bytes)

    def say_unused(self, seq: int) -> None:
        """Tell all peers that no area is in use here after the call of that number."""
        for lender in self._lenders.values():
            lender.say_unused(seq)

    def unused_by(self, rank: int, seq: int) -> None:
        """A peer says so."""
        self.on_unused(rank, seq)

    # ---- the end

    def close(self, error: Exception) -> None:
        """Nothing is lent or taken any more. The memory ends with its last user."""
        with self._lock:
            self._error = error
            self.own = None
            self.theirs = {}
        self._lenders = {}  # which refer to us: what has ended should not wait for the garbage collector
        self.on_unused = lambda *_: None
        for answer in self._answers.values():
            answer.fail(error)
        self.agreement.fail(error)
