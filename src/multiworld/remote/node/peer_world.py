"""A world of several nodes, as one of them has it: it forms while the node works, and ends without ending the node."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

import torch

from ...errors import JoinError, MultiworldError, StoreError, WorldBrokenError, WorldClosedError
from ...wire.progress.operation import Operation, pass_on, settler
from ...wire.progress.waiting import run_in_thread, wait_blocking
from ...world.world import World
from ..lane import listen
from ..protocol.between import FAILURES, FIRST_COPY, HEARD, TO_PEER, Lacks, NotSent, ToPeer
from ..protocol.messages import Failed, Meet
from .lacking import Lacking

T = TypeVar("T")
LEAVE_S: Final = 1.0


class PeerFailedError(MultiworldError):
    """What this node does with others failed, because of them or of the way to them.

    ``group``: the same on all nodes that fail with it; 0: only this one does. ``peer``: the session of the lost node.
    """

    def __init__(self, reason: str, group: int = 0, peer: int = 0) -> None:
        super().__init__(reason, group, peer)
        self.reason, self.group, self.peer = reason, group, peer

    def __str__(self) -> str:
        return self.reason


class NotSentError(MultiworldError):
    """A tensor does not come, because it is lost at its source, too (``failed``)."""

    def __init__(self, failed: Failed) -> None:
        super().__init__(failed)
        self.failed = failed


class GivenUpError(MultiworldError):
    """The operation was ended here: nobody waits for it."""


_OF_WORLDS: Final = (WorldBrokenError, WorldClosedError, JoinError, GivenUpError, StoreError, OSError)


class PeerWorld:
    """``joining``: done once the world stands, or does not form. All methods work from any thread."""

    def __init__(self, said: Meet, joining: Operation[World], on_broken: Callable[[int, str], object]) -> None:
        """``on_broken`` is called if the world does not form, or breaks, before it is ended here: with the session of
        the member that is lost, or 0, and the reason.
        """
        self.rank, self.nodes, self.sessions = said.rank, said.nodes, said.sessions
        self.joining = joining
        self.lacking = Lacking()
        self._on_broken = on_broken
        self._lock = threading.Lock()  # guards the lines below
        self._given_up: tuple[int, str] | None = None  # the lost session, and why
        self._spoiled = ""  # what this node could not do, if that ended the world
        self._is_leaving = False
        self._pending: set[Operation[None]] = set()
        self._not_sent: dict[int, Failed] = {}  # by target, of copies that nobody has asked for yet
        self._not_taken: set[int] = set()
        self._copies: dict[int, Operation[None]] = {}  # under way, by target
        self._turn = threading.Condition()  # guards the lines below
        self._sequence = 0  # of the next collective
        self._is_over = False
        joining.add_callback(self._joined)

    # ---- copies

    def send(self, elements: torch.Tensor, rank: int, target: int) -> Operation[None]:
        """Start to send what becomes the tensor ``target`` of a rank."""
        operation = self._started(lambda world: world.start_send(elements, rank, FIRST_COPY + target, None))
        self._note(target, operation)
        with self._lock:
            was_refused = target in self._not_taken
            self._not_taken.discard(target)
        if was_refused:
            self._give_up(target, GivenUpError())
        return operation

    def receive(self, elements: torch.Tensor, rank: int, target: int) -> Operation[None]:
        """Start to receive the tensor ``target``. It fails with NotSentError if that is lost at its source."""
        operation = self._started(lambda world: world.start_recv(elements, rank, FIRST_COPY + target, None))
        self._note(target, operation)
        with self._lock:
            failed = self._not_sent.pop(target, None)
        if failed is not None:
            operation.cancel(NotSentError(failed))
        return operation

    def tell(self, rank: int, message: ToPeer) -> None:
        packed = torch.frombuffer(bytearray(TO_PEER.encode(message)), dtype=torch.uint8)
        self._started(lambda world: world.start_send_tensors(packed, rank, FAILURES, None))

    def wait(self, operation: Operation[T], rank: int | None) -> T:
        """Block until it is done; this thread reads what comes from the rank, or from all. Raises its error."""
        if not self.joining.done:
            settled: Operation[None] = Operation()
            self.joining.add_callback(settler(settled))
            wait_blocking(settled)
        if self.joining.error is None:
            return self.joining.result().wait_thread(operation, rank, None)
        return wait_blocking(operation)

    def wait_ended(self, operation: Operation[None]) -> None:
        """As ``wait``, however it ends."""
        with suppress(Exception):
            self.wait(operation, None)

    # ---- collectives

    def run_in_turn(self, sequence: int, run: Callable[[World], T]) -> T:
        """Call ``run`` with the world, once all collectives before this one have ended here."""
        with self._turn:
            self._turn.wait_for(lambda: self._sequence >= sequence or self._is_over)
        try:
            formed: Operation[World] = Operation()
            pass_on(self.joining, formed)
            return run(wait_blocking(formed))
        finally:
            with self._turn:
                self._sequence = sequence + 1
                self._turn.notify_all()

    def tell_and_wait(self, world: World, ranks: Iterable[int], message: Lacks) -> None:
        """Return once these ranks have noted it. Their threads that execute may be busy meanwhile."""
        heard = {rank: world.start_recv_bytes(rank, HEARD, None) for rank in ranks}
        for rank in heard:
            self.tell(rank, message)
        for rank, each in heard.items():
            world.wait_thread(each, rank, None)

    # ---- its end

    def failure(self, error: Exception, doing: str, group: int = 0) -> Exception:
        """Return what to say of an error of this world: which node was lost, if one was. Others stay as they are."""
        if not isinstance(error, _OF_WORLDS):
            return error
        with self._lock:
            known = (0, self._spoiled) if self._spoiled else self._given_up
        peer, reason = known or self._why(error)
        return PeerFailedError(f"{doing}: {reason}", group, peer)

    def _why(self, error: BaseException | None) -> tuple[int, str]:
        """Return the session of the member that is lost, 0 if none is, and what happened."""
        if isinstance(error, WorldBrokenError) and 0 <= error.rank < len(self.nodes) and error.rank != self.rank:
            if type(error) is WorldBrokenError:  # it is alive
                return 0, f"node {self.nodes[error.rank]} gave up what these nodes do together: {error.cause}"
            return self.sessions[error.rank], f"node {self.nodes[error.rank]} is lost: {error.cause}"
        others = ", ".join(str(number) for rank, number in enumerate(self.nodes) if rank != self.rank)
        return 0, f"the connection to node {others} failed: {error or 'it was left'}"

    def spoil(self, error: Exception, doing: str) -> None:
        """This node can't go on in it because of an error: the others learn that their operations failed.

        A world that is broken has told them itself, and keeps the first cause for what comes later.
        """
        if not self.joining.done or self.joining.error is not None or self.joining.result().error is not None:
            return
        with self._lock:
            if not self._spoiled and not isinstance(error, _OF_WORLDS):
                self._spoiled = f"{doing} failed before on this node: {type(error).__name__}: {error}"
        self.joining.result().abort()

    def part(self, session: int, reason: str) -> None:
        """Give it up: what is under way fails at once. Never blocks."""
        with self._lock:
            if self._given_up is None:
                self._given_up = session, reason
        self._abort()

    def leave(self) -> None:
        """Leave once what was begun has ended."""
        with self._lock:
            self._is_leaving = True
            is_idle = not self._pending
        if is_idle:
            self._leave_now()

    def abort(self) -> None:
        with self._lock:
            self._is_leaving = True
        self._abort()

    def close(self) -> Operation[None]:
        """Leave now, within LEAVE_S."""
        with self._lock:
            self._is_leaving = True
        if not self.joining.done:
            self._abort()
        if self.joining.error is not None:
            return Operation.succeeded(None)
        return run_in_thread(lambda: self.joining.result().blocking.leave(LEAVE_S), "multiworld-leave")

    def _leave_now(self) -> None:
        if self.joining.done and self.joining.error is None:
            run_in_thread(lambda: self.joining.result().blocking.leave(LEAVE_S), "multiworld-leave")
        elif not self.joining.done:
            self._abort()

    def _abort(self) -> None:
        with self._turn:
            self._is_over = True
            self._turn.notify_all()
        if not self.joining.done:
            run_in_thread(lambda: self.joining.cancel(GivenUpError()), "multiworld-part")  # it may take a while
        elif self.joining.error is None:
            self.joining.result().abort()

    # ---- how it goes on

    def _joined(self, joining: Operation[World]) -> None:
        if joining.error is not None:
            self._broke(joining.error)
            return
        world = joining.result()
        for rank in range(len(self.nodes)):
            if rank != self.rank:
                listen(world, FAILURES, rank, partial(self._told, rank))
        world.on_broken(lambda: self._broke(world.error))
        with self._lock:
            is_over = self._given_up is not None or (self._is_leaving and not self._pending)
        if is_over:  # in the moment in which it was formed
            world.abort()

    def _broke(self, error: BaseException | None) -> None:
        with self._lock:
            is_news = self._given_up is None and not self._is_leaving
        if is_news:
            self._on_broken(*self._why(error))

    def _started(self, issue: Callable[[World], Operation[None]]) -> Operation[None]:
        """Start an operation now, or when the world stands. It fails if that does not form."""
        outer: Operation[None] = Operation()
        with self._lock:
            self._pending.add(outer)
        outer.add_callback(self._ended)
        self.joining.add_callback(partial(_start, issue, outer))
        return outer

    def _ended(self, operation: Operation[None]) -> None:
        with self._lock:
            self._pending.discard(operation)
            leaves = self._is_leaving and not self._pending
        if leaves:
            self._leave_now()

    def _note(self, target: int, operation: Operation[None]) -> None:
        with self._lock:
            self._copies[target] = operation
        operation.add_callback(partial(self._forget, target))

    def _forget(self, target: int, _: Operation[None]) -> None:
        with self._lock:
            self._copies.pop(target, None)

    def _told(self, rank: int, message: memoryview) -> None:
        said = TO_PEER.decode(message)
        if isinstance(said, Lacks):
            self.lacking.note(said.sequence, rank, said.failed)
            noted = torch.zeros(1, dtype=torch.uint8)
            self._started(lambda world: world.start_send_tensors(noted, rank, HEARD, None))
            return
        with self._lock:
            is_known = said.target in self._copies
            if not is_known and isinstance(said, NotSent):
                self._not_sent[said.target] = said.failed
            elif not is_known:
                self._not_taken.add(said.target)
        if is_known:
            self._give_up(said.target, NotSentError(said.failed) if isinstance(said, NotSent) else GivenUpError())

    def _give_up(self, target: int, error: MultiworldError) -> None:
        operation = self._copies.get(target)
        if operation is not None:
            run_in_thread(partial(operation.cancel, error), "multiworld-give-up")  # it may take a while


def _start(issue: Callable[[World], Operation[None]], outer: Operation[None], joining: Operation[World]) -> None:
    if outer.done:
        return
    if joining.error is not None:
        outer.fail(joining.error)
        return
    try:
        inner = issue(joining.result())
    except Exception as error:
        outer.fail(error)
        return
    outer.on_cancel = lambda: inner.cancel(GivenUpError())  # type: ignore[assignment]
    pass_on(inner, outer)
