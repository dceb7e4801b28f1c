"""The nodes of the launcher: rank 0 is the master, and every other rank is the node of its number."""

from __future__ import annotations

import os
import signal
import threading
import weakref
from typing import NoReturn

from ...world.launcher.launched import launched, token_of_environment
from ...world.launcher.process_link import process_link
from ...world.manager import WorldManager
from ..errors import ConnectError
from ..master.local import LocalNodes
from ..master.nodes import Nodes
from ..master.roster import NodePlace
from ..node.operators import ALLOWED
from ..node.serving import NodeOptions, serve_node
from .publishing import Publisher
from .settings import Settings

BESIDE = 0
"""The number of the node beside the master."""
TWICE = "this process is the master of the launcher's nodes already: close them first"
_last: weakref.ref[Nodes] | None = None
"""The launcher's ranks can serve one master: the worlds of a second one would wait for them in vain."""


def connect_launched(settings: Settings) -> Nodes:
    """Return the nodes of rank 0; on other ranks serve it, then raise SystemExit. Raises ConnectError."""
    global _last
    if launched() is None:
        raise ConnectError(
            "no launcher of multiworld started this process: start it by 'multiworld exec -n 3 python PROGRAM' "
            "(pytorch_exec) or 'multiworld run', or give the addresses of nodes, or use remote.local(2)"
        )
    if settings.token is not None:
        raise ConnectError("token=: the launcher has given all its ranks one already; leave it out")
    if _last is not None and (before := _last()) is not None and before.is_open:
        raise ConnectError(TWICE)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if rank > 0:
        _serve(rank, settings)
    nodes = _nodes_of(world_size, settings)
    _last = weakref.ref(nodes)
    return nodes


def _nodes_of(world_size: int, settings: Settings) -> Nodes:
    manager = WorldManager(lease_s=settings.lease_s)
    bulk_manager = WorldManager(lease_s=settings.lease_s)
    try:
        store = manager.serve_store("tcp://127.0.0.1:0")
        own = [each for each in settings.calls if not each.name.startswith("__main__:")]  # which no other process has
        beside = LocalNodes(store, token_of_environment(), settings.bulk_backend, manager.job, settings.allow, own)

        def prepare(number: int) -> None:
            if number == BESIDE:
                beside.start(number)

        publishing: list[Publisher] = []

        def release(drop: bool) -> None:
            for each in publishing:
                each.close()
            beside.close(drop)

        nodes = Nodes(
            [NodePlace(number=number, store=None) for number in range(1, world_size)],
            manager,
            bulk_manager,
            backend=settings.bulk_backend,
            num_threads=settings.num_threads,
            beside=NodePlace(number=BESIDE, store=store),
            prepare=prepare,
            release=release,
            launchers_store=_launchers_store,
        )
    except BaseException:
        manager.close()
        bulk_manager.close()
        raise
    if (link := process_link()) is not None:
        publisher = Publisher(
            rank=0,
            numbers=lambda: nodes.numbers,
            statistics=lambda: nodes.statistics,
            tell=link.tell,
            has_ended=lambda: nodes.has_ended,
        )
        publishing.append(publisher)
        publisher.start()
    return nodes


def _launchers_store() -> str | None:
    """Return the URL of the store at which the launcher's processes meet now."""
    link = process_link()
    place = None if link is None else link.place
    return None if place is None else place.store


def _serve(rank: int, settings: Settings) -> NoReturn:
    """Be node ``rank`` until the master is done: a master that is started again finds its node here."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # in the middle of an operation, too: there is nothing to save
    options = NodeOptions(
        number=rank,
        backend=settings.bulk_backend,
        allowed=ALLOWED | frozenset(settings.allow),
        calls=settings.calls,
        once=False,
    )
    with (
        WorldManager(lease_s=settings.lease_s) as manager,
        WorldManager(lease_s=settings.lease_s) as bulk_manager,
    ):
        serve_node(options, manager, bulk_manager)
    raise SystemExit(0)
