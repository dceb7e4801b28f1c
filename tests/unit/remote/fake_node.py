"""A node in this process: the real sessions of master and node, over worlds that are a few queues in memory.

No socket and no child: a test of remote tensors takes milliseconds. Commands leave with a wait, or with a full batch:
time never passes here, so ``run_timers`` stands for the moment after which a batch leaves by itself.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, cast

import torch
from torch import Tensor

from multiworld.channel.base import Payload
from multiworld.errors import WorldBrokenError
from multiworld.remote.master.node import Node
from multiworld.remote.node import serving
from multiworld.remote.node.peers import Join, refuse_to_join
from multiworld.remote.node.serving import NodeOptions
from multiworld.remote.protocol.calls import DeclaredCall
from multiworld.remote.protocol.messages import Welcome
from multiworld.remote.session.session import Session
from multiworld.remote.session.sync_points import SyncPoints
from multiworld.remote.tensor.remote_tensor import RemoteTensor
from multiworld.wire.progress.operation import Operation
from multiworld.wire.progress.waiting import OperationCancelled, wait_async
from multiworld.world.world import World

PATIENCE_S = 30.0


def remote_of(tensor: Tensor) -> RemoteTensor:
    """Return what operators on remote tensors return, by the type that it has."""
    assert isinstance(tensor, RemoteTensor)
    return tensor


def values(tensor: Tensor) -> Tensor:
    """Wait for the values of a remote tensor."""
    return remote_of(tensor).fetch()


class FakeWorld:
    """One end of a world of two: what the other sends is here at once. ``timers``: calls that wait for time to pass."""

    name, generation, backend = "fake", 0, "fake"
    peer: FakeWorld

    def __init__(self) -> None:
        self.error: WorldBrokenError | None = None
        self.timers: list[Callable[[], object]] = []
        self.blocking = FakeBlocking(self)
        self._broken: Operation[None] = Operation()
        self._lock = threading.Lock()  # guards the two lines below
        self._came: dict[int, deque[Payload]] = {}
        self._pending: dict[int, deque[Operation[Payload]]] = {}
        self._late: dict[int, list[Payload]] = {}  # by tag, of what is kept back
        self.interrupt_in = 0
        """The wait of that number from now on is interrupted, as by Ctrl-C; 0: none."""

    def send_bytes(self, packed: bytearray, dst: int, tag: int) -> bool:
        self.start_send_tensors(torch.frombuffer(packed, dtype=torch.uint8), dst, tag, None)
        return True

    def start_send_tensors(self, payload: Payload, dst: int, tag: int, timeout_s: float | None) -> Operation[None]:
        if self.error is not None:
            raise self.error
        copied = payload.clone() if isinstance(payload, Tensor) else [each.clone() for each in cast("Any", payload)]
        self.peer._deliver(tag, copied)
        return Operation.succeeded(None)

    def start_recv_tensors(self, src: int, tag: int, timeout_s: float | None) -> Operation[Payload]:
        with self._lock:
            if self._came.get(tag):
                payload = self._came[tag].popleft()
                return Operation.succeeded(payload, lambda: self._deliver(tag, payload))
            if self.error is not None:
                raise self.error
            operation: Operation[Payload] = Operation(lambda: self._no_longer_waits(tag))
            self._pending.setdefault(tag, deque()).append(operation)
        return operation

    start_recv_bytes = start_recv_tensors

    def start_recv(self, tensor: Tensor, src: int, tag: int, timeout_s: float | None) -> Operation[None]:
        written: Operation[None] = Operation()

        def write(operation: Operation[Payload]) -> None:
            if operation.error is not None:
                written.fail(operation.error)
                return
            with torch.no_grad():
                tensor.copy_(cast("Tensor", operation.result()))
            written.succeed(None)

        receive = self.start_recv_tensors(src, tag, timeout_s)
        written.on_cancel = lambda: receive.cancel_or_undo(OperationCancelled())
        receive.add_callback(write)
        return written

    async def wait_async(self, operation: Operation[Any], peer: int) -> Any:
        return await wait_async(operation)

    async def recv_tensors(self, src: int, tag: int) -> Payload:
        return await wait_async(self.start_recv_tensors(src, tag, None))

    async def recv(self, tensor: Tensor, src: int, tag: int) -> None:
        await wait_async(self.start_recv(tensor, src, tag, None))

    def wait_thread(self, operation: Operation[Any], peer: int, timeout_s: float | None) -> Any:
        if self.interrupt_in:
            self.interrupt_in -= 1
            if not self.interrupt_in:
                operation.cancel_or_undo(OperationCancelled())
                raise KeyboardInterrupt
        done = threading.Event()
        operation.add_callback(lambda _: done.set())
        assert done.wait(PATIENCE_S), "nothing came: was a record sent that nobody answers?"
        return operation.result()

    def wait_for(self, operation: Operation[Any], peer: int, timeout_s: float | None) -> None:
        """A node waits for as long as its master has nothing for it: the first use of a kernel may import much."""
        done = threading.Event()
        operation.add_callback(lambda _: done.set())
        done.wait()

    def later(self, after_s: float, call: Callable[[], object]) -> None:
        self.timers.append(call)

    def soon(self, call: Callable[[], object]) -> None:
        self.timers.append(call)

    def on_broken(self, call: Callable[[], None]) -> None:
        self._broken.add_callback(lambda _: call())

    def abort(self) -> None:
        self.lose("aborted")
        self.peer.lose("the peer aborted")

    def lose(self, reason: str) -> None:
        """This end finds that its world is broken."""
        with self._lock:
            if self.error is not None:
                return
            self.error = WorldBrokenError("fake", 0, -1, reason)
            pending = [each for several in self._pending.values() for each in several]
            self._pending.clear()
        for operation in pending:
            operation.fail(self.error)
        self._broken.succeed(None)

    def keep_back(self, tag: int) -> None:
        """What comes with this tag is handled only after ``deliver_late``: another thread is slow with it."""
        self._late[tag] = []

    def deliver_late(self, tag: int) -> None:
        for payload in self._late.pop(tag):
            self._deliver(tag, payload)

    def _no_longer_waits(self, tag: int) -> None:
        with self._lock:
            self._pending.pop(tag, None)  # one at a time waits for an answer

    def _deliver(self, tag: int, payload: Payload) -> None:
        if tag in self._late:
            self._late[tag].append(payload)
            return
        with self._lock:
            waiting = self._pending.get(tag)
            operation = waiting.popleft() if waiting else None
            if operation is None:
                self._came.setdefault(tag, deque()).append(payload)
        if operation is not None:
            operation.succeed(payload)


class FakeBlocking:
    """What a world offers to threads."""

    def __init__(self, world: FakeWorld) -> None:
        self._world = world

    def recv_tensors(self, src: int, tag: int) -> Payload:
        return cast("Payload", self._world.wait_thread(self._world.start_recv_tensors(src, tag, None), src, None))

    def recv(self, tensor: Tensor, src: int, tag: int) -> None:
        self._world.wait_thread(self._world.start_recv(tensor, src, tag, None), src, None)


def fake_pair() -> tuple[FakeWorld, FakeWorld]:
    """Return the two ends of a world."""
    one, other = FakeWorld(), FakeWorld()
    one.peer, other.peer = other, one
    return one, other


class FakeNode:
    """``node``: as ``nodes[1]``. ``session``: the master's end. ``there``: the node's own session, in a thread.

    ``reads_memory``: large tensors are read and written in memory, as between processes of one host.

    A context manager: at its end the node has executed all, and has raised nothing.
    """

    def __init__(
        self,
        number: int = 1,
        calls: Sequence[DeclaredCall] = (),
        join: Join = refuse_to_join,
        *,
        reads_memory: bool = False,
    ) -> None:
        self._join, self._reads_memory = join, reads_memory
        self.sync_points = SyncPoints()
        self._options = NodeOptions(number=number, calls=tuple(calls))
        greeted = threading.Event()
        theirs, their_bulk = self._pairs()
        self.session = Session(
            number, cast("World", self.world), cast("World", self.bulk), self.sync_points, lambda hello: greeted.set()
        )
        self.node = Node(number)
        self.node.take(self.session)
        self._start(theirs, their_bulk, greeted)

    def replace(self) -> None:
        """Another node comes for one that was lost, and is made what that was."""
        greeted = threading.Event()
        theirs, their_bulk = self._pairs()
        self.session.connect(cast("World", self.world), cast("World", self.bulk), lambda hello: greeted.set())
        self._start(theirs, their_bulk, greeted)
        recovery = self.session.recovery
        assert recovery is not None
        recovery.make_anew()
        self.node.take(self.session)

    def _pairs(self) -> tuple[FakeWorld, FakeWorld]:
        self.world, theirs = fake_pair()
        self.bulk, their_bulk = fake_pair()
        if self._reads_memory:
            self.bulk.backend = "auto"
        return theirs, their_bulk

    def _start(self, theirs: FakeWorld, their_bulk: FakeWorld, greeted: threading.Event) -> None:
        self.there = serving.Session(self._options, cast("World", theirs), cast("World", their_bulk), self._join)
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._serve, name=f"fake-node-{self._options.number}", daemon=True)
        self._thread.start()
        assert greeted.wait(PATIENCE_S)
        memory = self.session.link.memory
        assert (memory is not None) == self._reads_memory
        mark = "" if memory is None else memory.demand_mark()
        self.session.tell(Welcome(number=self._options.number, mark=mark))

    def __enter__(self) -> FakeNode:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
        if kind is None and self.failure is not None:
            raise self.failure

    @property
    def num_tensors(self) -> int:
        """How many ids are live on the node."""
        return len(self.there._shared.table)

    def run_timers(self) -> None:
        """Let the time pass after which a batch leaves by itself."""
        timers, self.world.timers = self.world.timers, []
        for call in timers:
            call()

    def lose(self, reason: str = "killed") -> None:
        """The node is gone, and both ends notice."""
        for world in (self.world, self.bulk):
            world.lose(reason)
            world.peer.lose(reason)
        self._thread.join(PATIENCE_S)

    def close(self) -> None:
        is_there = not self.session.is_over
        if is_there:
            self.session.flush()
        self.session.end("the test is over")
        if is_there:
            self.session.say_end()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the node does not end"

    def _serve(self) -> None:
        torch.set_grad_enabled(False)
        try:
            self.there.run()
            self.there.close()
        except WorldBrokenError:
            self.there.close()
        except Exception as error:  # a node that fails is lost for its master, which waits for it now
            self.failure = error
            self.world.lose(str(error))
            self.bulk.lose(str(error))
