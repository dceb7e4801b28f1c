"""What nodes at addresses say of themselves: read from their stores, so no master is disturbed."""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import MultiworldError
from ...wire.progress.waiting import wait_blocking
from ...world.manager import WorldManager
from ..served import JOB, MASTER_KEY, STATE, STATE_KEY, NodeState
from .addresses import urls_of
from .claims import name_of


@dataclass(frozen=True, kw_only=True)
class Listed:
    """One node of a list. ``state``: None if there is no node, and ``problem`` says why. ``master``: empty for none."""

    number: int
    address: str
    state: NodeState | None = None
    master: str = ""
    problem: str = ""


def nodes_at(addresses: str, *, token: str | None = None, timeout_s: float = 5.0) -> list[Listed]:
    """Ask each node for its state, as of a second ago at most. Raises ValueError for bad addresses."""
    urls = urls_of(addresses)
    with WorldManager(job=JOB, token=token) as manager:
        return [_listed(manager, number, url, timeout_s) for number, url in enumerate(urls, 1)]


def _listed(manager: WorldManager, number: int, url: str, timeout_s: float) -> Listed:
    try:
        client = wait_blocking(manager.start_store_client(url, timeout_s))
        try:
            state, master = (wait_blocking(client.get(key)) for key in (STATE_KEY, MASTER_KEY))
        finally:
            client.close()
        if state is None:
            return Listed(number=number, address=url, problem="a store answers there, and no node")
        return Listed(number=number, address=url, state=STATE.decode(state), master=name_of(master))
    except MultiworldError as error:
        return Listed(number=number, address=url, problem=str(error))
