"""Nodes at addresses: ``multiworld nodes serve`` has started them, and each hosts the store where its worlds form."""

from __future__ import annotations

from functools import partial

from ...store.base import parse_store_url
from ...wire.endpoints.addresses import is_address
from ...wire.endpoints.ports import NODES_PORT
from ...world.manager import WorldManager
from ..master.nodes import Nodes
from ..master.roster import NodePlace
from ..served import JOB
from .claims import Claims
from .settings import Settings


def connect_to(addresses: str, settings: Settings, timeout_s: float) -> Nodes:
    """Return the nodes. Raises ConnectError for one that is not there, or that has a master; ValueError."""
    urls = urls_of(addresses)
    if settings.allow:
        raise ValueError("allow=: a node at an address allows for itself: multiworld nodes serve --allow NAMESPACE")
    if settings.calls:
        raise ValueError("calls=: a node at an address declares its own: multiworld nodes serve --call MODULE:FUNCTION")
    manager = WorldManager(job=JOB, token=settings.token, lease_s=settings.lease_s)
    bulk_manager = WorldManager(job=JOB, token=settings.token, lease_s=settings.lease_s)
    claims = Claims(manager)
    try:
        for number, url in enumerate(urls, 1):
            claims.take(number, url, timeout_s)
        return Nodes(
            [
                NodePlace(number=number, store=url, joins_as=partial(claims.drawn, number))
                for number, url in enumerate(urls, 1)
            ],
            manager,
            bulk_manager,
            backend=settings.bulk_backend,
            num_threads=settings.num_threads,
            prepare=claims.renew,
            release=lambda drop: claims.give_back(),
        )
    except BaseException:
        claims.give_back()
        manager.close()
        bulk_manager.close()
        raise


def urls_of(addresses: str) -> list[str]:
    """Return ``tcp://HOST:PORT`` of each; without a port it is that of ``multiworld nodes serve``.

    Raises ValueError, TypeError.
    """
    if not isinstance(addresses, str):
        raise TypeError(f'addresses is one string, as "tcp://a:29500,b:29500", got {type(addresses).__name__}')
    urls = [_url_of(part.strip()) for part in addresses.split(",")]
    twice = {url for url in urls if urls.count(url) > 1}
    if twice:
        raise ValueError(f"{addresses!r}: {min(twice)} is named twice")
    return urls


def _url_of(address: str) -> str:
    url = address if "://" in address else f"tcp://{address}"
    scheme, _, place = url.partition("://")
    host = place.rstrip("/")
    if ":" in host and is_address(host):
        raise ValueError(f"{address!r}: put an IPv6 address in brackets, as tcp://[fd00::7]:{NODES_PORT}")
    has_port = ":" in host.rpartition("]")[2]
    return str(parse_store_url(url if has_port or not host else f"{scheme}://{host}:{NODES_PORT}"))
