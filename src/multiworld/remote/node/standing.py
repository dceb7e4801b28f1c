"""A node that stands at an address: it hosts its own store there, and serves one master after the other."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable

from ...errors import MultiworldError
from ...process.facts import resident_bytes
from ...store.tcp import TCPStore
from ...wire.progress.waiting import wait_blocking
from ...world.liveness import DEFAULT_LEASE_S
from ...world.manager import WorldManager
from ..protocol.calls import DeclaredCall, declared
from ..served import JOB, NUMBER_KEY, NUMBERS, STATE, STATE_KEY, NodeState
from .functions import Functions
from .operators import ALLOWED
from .serving import NodeOptions, Session, hello_of_this_process, serve_node

EVERY_S = 1.0
CLIENT_S = 10.0


def serve_at(
    url: str,
    on_ready: Callable[[str, NodeState], object],
    *,
    allow: frozenset[str] = frozenset(),
    calls: tuple[DeclaredCall, ...] = (),
    backend: str = "auto",
    lease_s: float = DEFAULT_LEASE_S,
) -> None:
    """Serve masters until the process is ended. ``on_ready`` is called with the URL that they connect to.

    ``allow``: namespaces of operators besides PyTorch's. ``calls``: functions for masters; they are imported first.
    Raises StoreError if the port is taken, CallRefusedError for a function that is not there.
    """
    Functions(declared(calls)).check()
    with (
        WorldManager(job=JOB, lease_s=lease_s) as manager,
        WorldManager(job=JOB, lease_s=lease_s) as bulk_manager,
    ):
        store = manager.serve_store(url)
        with Publisher(wait_blocking(manager.start_store_client(store, CLIENT_S))) as publisher:
            on_ready(store, publisher.state())
            options = NodeOptions(
                number=publisher.number,
                store=store,
                backend=backend,
                allowed=ALLOWED | allow,
                calls=calls,
                once=False,
                forever=True,
            )
            serve_node(options, manager, bulk_manager, publisher.use)


class Publisher:
    """Keeps the state of the node in its store, for ``multiworld nodes``: it asks nothing of a node that works."""

    def __init__(self, client: TCPStore) -> None:
        self.number = secrets.randbelow(NUMBERS)
        self._client, self._hello = client, hello_of_this_process()
        self._session: Session | None = None
        self._ends = threading.Event()
        self._publish()
        wait_blocking(client.set(NUMBER_KEY, str(self.number).encode()))
        self._thread = threading.Thread(target=self._run, name="multiworld-node-state", daemon=True)

    def __enter__(self) -> Publisher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()
        self._client.close()

    def use(self, session: Session | None) -> None:
        """This is the session now; None: there is no master."""
        self._session = session

    def state(self) -> NodeState:
        session, hello = self._session, self._hello
        return NodeState(
            host=hello.host,
            pid=hello.pid,
            multiworld=hello.multiworld,
            torch=hello.torch,
            devices=hello.devices,
            num_tensors=0 if session is None else session.num_tensors,
            memory_bytes=resident_bytes(),
        )

    def _publish(self) -> None:
        wait_blocking(self._client.set(STATE_KEY, STATE.encode(self.state())))

    def _run(self) -> None:
        while not self._ends.wait(EVERY_S):
            try:
                self._publish()
            except MultiworldError:
                return  # the store was closed, and the node ends
