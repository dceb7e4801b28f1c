"""The agent's port for the workers of its host: it tells each its place, and hears of their worlds."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from functools import partial

from ...errors import MessageError, ProtocolError
from ...wire.connection.connection import Connection
from ...wire.connection.frames import Header, Kind, pack_frame
from ...wire.endpoints.addresses import CREDENTIALS, local_name
from ...wire.endpoints.listener import Listener, Pending
from ...wire.messages import encode
from ...wire.progress.thread import ProgressThread
from ...world.launcher.launched import Place, PlaceTold, WorkerHello
from ...world.launcher.news import WORKER_NEWS, News

PURPOSE = "worker"
MAX_CONNECTIONS = 256  # of one worker: its own and those of processes that it started
MAX_NEWS_BYTES = 16 * 1024  # three texts of 200 characters, however they are escaped
NAME_BYTES = 12


class WorkerPort:
    """Whoever knows ``address`` and proves the token may speak for any worker, so ids that are not known are ignored.

    A worker may have several connections: a process that it has started inherits its variables. ``on_hello`` is called
    with the first of them, ``on_news`` with what one of them says (``world.launcher.news``), ``on_gone`` when the last
    has ended, which need not mean that the worker has. All of it on the progress thread, as the methods are to be
    called.
    """

    def __init__(
        self,
        loop: ProgressThread,
        token: bytes,
        *,
        on_hello: Callable[[str], None],
        on_news: Callable[[str, News], None],
        on_gone: Callable[[str], None],
    ) -> None:
        """Bind and listen; raises OSError."""
        self._on_hello, self._on_news, self._on_gone = on_hello, on_news, on_gone
        self._places: dict[str, Place] = {}
        self._ends: dict[str, list[_WorkerEnd]] = {}
        self._closed = False
        name = local_name(f"agent-{os.urandom(NAME_BYTES).hex()}")
        self._listener = Listener(loop, name, 0, token, {PURPOSE: self._admit})

    @property
    def address(self) -> str:
        """What ``MULTIWORLD_AGENT`` tells the workers."""
        return self._listener.host[1:]

    def publish(self, worker_id: str, place: Place) -> None:
        """Tell a worker its place, now if it is connected, and whenever it connects."""
        if self._places.get(worker_id) == place:
            return
        self._places[worker_id] = place
        for end in self._ends.get(worker_id, []):
            end.tell(place)

    def pids(self, worker_id: str) -> list[int]:
        """Return the processes that are connected as this worker."""
        return [end.pid for end in self._ends.get(worker_id, [])]

    def forget(self, worker_id: str) -> None:
        """A worker is over: drop its place and its connections, without ``on_gone``."""
        self._places.pop(worker_id, None)
        for end in self._ends.pop(worker_id, []):
            end.abort("the worker is over")

    def close(self) -> None:
        """Idempotent."""
        self._closed = True
        self._listener.close()
        for worker_id in list(self._ends):
            self.forget(worker_id)

    def _admit(self, pending: Pending) -> None:
        try:
            worker_id = pending.hello(WorkerHello).worker
        except MessageError as error:
            pending.refuse(f"that is no worker's hello: {error}")
            return
        if len(self._ends.get(worker_id, [])) >= MAX_CONNECTIONS:
            pending.refuse(f"worker {worker_id} has {MAX_CONNECTIONS} connections already")
        else:
            end = _WorkerEnd(worker_id, pending.connection, on_news=self._heard, on_lost=self._lost)
            pending.accept(end)
            pending.connection.run(partial(self._greet, end))  # behind the acceptance

    def _greet(self, end: _WorkerEnd) -> None:
        """Answer at once, also that there is no place yet: the worker may wait for the answer."""
        if self._closed or end.closed:
            end.abort("the agent ends")
            return
        ends = self._ends.setdefault(end.worker_id, [])
        ends.append(end)
        end.tell(self._places.get(end.worker_id))
        if len(ends) == 1:
            end.defer(partial(self._on_hello, end.worker_id))

    def _heard(self, end: _WorkerEnd, news: News) -> None:
        if end in self._ends.get(end.worker_id, []):  # else it was forgotten
            self._on_news(end.worker_id, news)

    def _lost(self, end: _WorkerEnd) -> None:
        ends = self._ends.get(end.worker_id, [])
        if end not in ends:
            return
        ends.remove(end)
        if not ends:
            del self._ends[end.worker_id]
            if not self._closed:
                self._on_gone(end.worker_id)


class _WorkerEnd:
    """A connection sink: the agent's end of one connection."""

    def __init__(
        self,
        worker_id: str,
        connection: Connection,
        *,
        on_news: Callable[[_WorkerEnd, News], None],
        on_lost: Callable[[_WorkerEnd], None],
    ) -> None:
        self.worker_id = worker_id
        self.pid = _pid_of(connection.sock)
        self._connection = connection
        self._on_news, self._on_lost = on_news, on_lost

    @property
    def closed(self) -> bool:
        return self._connection.closed

    def tell(self, place: Place | None) -> None:
        self._connection.send(pack_frame(Kind.WORKER_PLACE, encode(PlaceTold(place=place))))

    def abort(self, reason: str) -> None:
        self._connection.abort(reason)

    def defer(self, call: Callable[[], None]) -> None:
        """With the read side held: call when it is free again, before what the worker says."""
        self._connection.defer(call)

    # connection sink
    def opened(self, connection: Connection) -> None:
        connection.parser.max_meta_bytes = MAX_NEWS_BYTES

    def begin(self, header: Header, meta: bytes) -> memoryview | None:
        if header.payload_bytes or header.kind != Kind.WORKER_NEWS:
            raise ProtocolError(f"frame kind {header.kind} from a worker")
        return None

    def end(self, header: Header, meta: bytes) -> None:
        self._connection.defer(partial(self._on_news, self, WORKER_NEWS.decode(meta)))

    def lost(self, reason: str) -> None:
        self._on_lost(self)


def _pid_of(sock: socket.socket) -> int:
    """Return which process has connected, as the kernel saw it then."""
    pid, _, _ = CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))
    return int(pid)
