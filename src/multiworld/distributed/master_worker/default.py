"""The nodes of this program by the original names: one set per process, and the node on which tensors are made."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ...remote.connecting.connect import TIMEOUT_S, connect
from ...remote.master.node import Node
from ...remote.master.nodes import Nodes
from ...world.liveness import DEFAULT_LEASE_S
from .sending import add_dist_send, remove_dist_send

NEVER = "there is no master-worker mode: call init_master_worker() first"

_lock = threading.Lock()  # guards the change of ``_nodes``
_nodes: Nodes | None = None
_current: ContextVar[int] = ContextVar("multiworld_current_node", default=0)


def init_master_worker(
    backend: str = "auto",
    addresses: str | None = None,
    *,
    token: str | None = None,
    num_threads: int | None = None,
    lease_s: float = DEFAULT_LEASE_S,
    timeout_s: float = TIMEOUT_S,
) -> None:
    """Make rank 0 of the launcher (``pytorch_exec``) the master; rank N serves it as node N, and never returns.

    ``backend``: the channel of large tensors. The other arguments and the errors are those of ``remote.connect``;
    RuntimeError if it was called before. From here on local tensors have ``dist_send``.
    """
    global _nodes
    with _lock:
        if _nodes is not None:
            raise RuntimeError("this program has its nodes already: call end_master_worker() first")
        _nodes = connect(
            addresses, token=token, backend=backend, num_threads=num_threads, lease_s=lease_s, timeout_s=timeout_s
        )
        add_dist_send(current_node)


def end_master_worker() -> None:
    """Wait for all that was issued, and let the nodes end; else the end of the program does it.

    Raises the first error that nobody has seen: RemoteOperationError.
    """
    global _nodes
    with _lock:
        nodes, _nodes = present_nodes(), None
        remove_dist_send()
    unseen = nodes.close()
    if unseen:
        raise unseen[0]


def present_nodes() -> Nodes:
    """Return the nodes by number. Raises RuntimeError if there are none."""
    nodes = _nodes
    if nodes is None:
        raise RuntimeError(NEVER)
    return nodes


@contextmanager
def node(number: int) -> Iterator[None]:
    """Inside, the typed factories and ``dist_send`` use that node: else node 0, which is beside the master.

    Operations run where their operands are. Raises ConnectError if there is no such node.
    """
    nodes = present_nodes()
    if number not in nodes:
        nodes[number]  # it raises, and names those that there are
    before = _current.set(number)
    try:
        yield
    finally:
        _current.reset(before)


def current_node() -> Node:
    """Return the node that ``node(n)`` has chosen. Node 0 starts at its first use. Raises RuntimeError."""
    return present_nodes()[_current.get()]
