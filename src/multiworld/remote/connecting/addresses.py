"""Nodes at addresses: ``multiworld nodes serve`` has started them, and each hosts the store where its worlds form."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading

from ...errors import JoinRefusedError, MultiworldError, StoreError
from ...store.base import parse_store_url
from ...store.tcp import TCPStore
from ...wire.progress.waiting import wait_blocking
from ...world.manager import WorldManager
from ..errors import ConnectError
from ..master.nodes import Nodes
from ..master.roster import NodePlace
from ..served import JOB, MASTER_KEY, NUMBER_KEY
from .settings import Settings

logger = logging.getLogger(__name__)

PATIENCE_S = 5.0
SEPARATOR = "#"
"""Between the name of a master and what tells two claims of one process apart."""


def connect_to(addresses: str, settings: Settings, timeout_s: float) -> Nodes:
    """Return the nodes. Raises ConnectError for one that is not there, or that has a master; ValueError."""
    urls = urls_of(addresses)
    if settings.allow:
        raise ValueError("allow=: a node at an address allows for itself: multiworld nodes serve --allow NAMESPACE")
    if settings.calls:
        raise ValueError("calls=: a node at an address declares its own: multiworld nodes serve --call MODULE:FUNCTION")
    manager = WorldManager(job=JOB, token=settings.token, lease_s=settings.lease_s)
    bulk_manager = WorldManager(job=JOB, token=settings.token, lease_s=settings.lease_s)
    claims: list[TCPStore] = []
    try:
        for url in urls:
            claims.append(_claim(manager, url, timeout_s))  # noqa: PERF401 (those before one that fails are given back)
        return Nodes(
            [
                NodePlace(number=number, store=url, joins_as=_number_at(url, client, timeout_s))
                for number, (url, client) in enumerate(zip(urls, claims, strict=True), 1)
            ],
            manager,
            bulk_manager,
            backend=settings.bulk_backend,
            num_threads=settings.num_threads,
            release=lambda drop: _give_back(claims),
        )
    except BaseException:
        _give_back(claims)
        manager.close()
        bulk_manager.close()
        raise


def urls_of(addresses: str) -> list[str]:
    """Return ``tcp://HOST:PORT`` of each. Raises ValueError, TypeError."""
    if not isinstance(addresses, str):
        raise TypeError(f'addresses is one string, as "tcp://a:29500,b:29500", got {type(addresses).__name__}')
    parts = [part.strip() for part in addresses.split(",")]
    urls = [str(parse_store_url(part if "://" in part else f"tcp://{part}")) for part in parts]
    twice = {url for url in urls if urls.count(url) > 1}
    if twice:
        raise ValueError(f"{addresses!r}: {min(twice)} is named twice")
    return urls


def _claim(manager: WorldManager, url: str, timeout_s: float) -> TCPStore:
    """Be the one master of a node, for as long as the client that is returned is connected."""
    me = f"process {os.getpid()} on {socket.gethostname()}{SEPARATOR}{secrets.token_hex(8)}".encode()
    client = _client(manager, url, timeout_s)
    try:
        holder = wait_blocking(client.compare_set(MASTER_KEY, None, me, lease=True))
    except BaseException:
        client.close()
        raise
    if holder != me:
        client.close()  # which does not touch the claim of the other
        raise ConnectError(
            f"the node at {url} has a master already: {name_of(holder)}. A node serves one at "
            "a time: wait for its end, or start another node with multiworld nodes serve"
        )
    return client


def _client(manager: WorldManager, url: str, timeout_s: float) -> TCPStore:
    """Connect to the store of a node. It may be about to start: a wait of more than ``PATIENCE_S`` is told."""
    first_s = min(timeout_s, PATIENCE_S)
    rest_s = timeout_s - first_s
    try:
        if rest_s > 0:
            try:
                return wait_blocking(manager.start_store_client(url, first_s))
            except StoreError as error:
                logger.warning("no node answers at %s yet: %s. It has %g s more", url, error.reason, rest_s)
        return wait_blocking(manager.start_store_client(url, rest_s if rest_s > 0 else first_s))
    except StoreError as error:
        raise ConnectError(
            f"no node can be reached at {url}: {error.reason}. Start one there: {start_command(url)}"
        ) from None
    except JoinRefusedError as error:
        raise ConnectError(f"no node can be reached at {url}: {error.reason}") from None


def start_command(url: str) -> str:
    """Return the command that starts a node at an address."""
    place = parse_store_url(url)
    return f"multiworld nodes serve --host {place.host} --port {place.port}"


def _number_at(url: str, client: TCPStore, timeout_s: float) -> int:
    """Return the number that the node at an address has drawn."""
    waiting, answered = client.wait([NUMBER_KEY]), threading.Event()
    waiting.add_callback(lambda _: answered.set())
    if not answered.wait(timeout_s):
        waiting.cancel(StoreError(url, f"there was no number within {timeout_s:g} s"))
    try:
        return int((waiting.result() or [b""])[0])
    except (MultiworldError, ValueError) as error:
        raise ConnectError(f"a store answers at {url}, and no node: {error}") from None


def name_of(holder: bytes | None) -> str:
    """Return who holds a claim, for people; empty for none."""
    return (holder or b"").decode(errors="replace").partition(SEPARATOR)[0]


def _give_back(claims: list[TCPStore]) -> None:
    for client in claims:
        client.discard([MASTER_KEY])  # sooner than the store sees that the connection ended
        client.close()
