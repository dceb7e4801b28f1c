"""``remote.connect()``: the nodes of the launcher, or those at given addresses."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from ...world.liveness import DEFAULT_LEASE_S
from ..backends import check_backend
from ..master.nodes import Nodes
from ..protocol.calls import DeclaredCall, declared
from ..session.open_connections import check_single
from ..tensor.naming import DeviceName
from .addresses import connect_to
from .launched import connect_launched
from .settings import Settings

TIMEOUT_S = 60.0


def connect(
    addresses: str | None = None,
    *,
    token: str | None = None,
    backend: str = "auto",
    allow: Iterable[str] = (),
    calls: Iterable[str | DeclaredCall] = (),
    num_threads: int | None = None,
    lease_s: float = DEFAULT_LEASE_S,
    timeout_s: float = TIMEOUT_S,
) -> Nodes:
    """Return the nodes of this master, once all are there.

    Without ``addresses``: those of ``multiworld run`` or ``multiworld exec`` (``pytorch_exec``). Rank 0 is the master,
    and rank N is node N: there this call serves the master, and ends the program when the master is done. Node 0 is a
    process beside the master, which starts at its first use.

    ``addresses``: of nodes that ``multiworld nodes serve`` has started, as ``"tcp://a:29500,b:29500"``, where 29500
    may be left out; they get the numbers from 1. ``token``: their secret; default: ``MULTIWORLD_TOKEN``.
    ``backend``: the channel of large tensors.
    ``allow``: namespaces of operators that the launcher's nodes execute besides PyTorch's.
    ``calls``: functions for ``nodes[1].call``, as ``"package.module:function"``: each rank calls those that its own
    program declares here. ``num_threads``: of each node's operations; default: as many as this process has; 0: as many
    as the node likes.

    Raises ConnectError, TimeoutError; ValueError for a backend that is not there.
    """
    check_backend(backend)
    check_single(has_name=DeviceName.in_use)
    settings = Settings(
        token=token,
        backend=backend,
        allow=tuple(allow),
        num_threads=torch.get_num_threads() if num_threads is None else num_threads,
        lease_s=lease_s,
        calls=tuple(declared(calls).values()),
    )
    nodes = connect_launched(settings) if addresses is None else connect_to(addresses, settings, timeout_s)
    try:
        nodes.wait_alive(timeout_s)
    except BaseException:
        nodes.abandon()
        raise
    return nodes
