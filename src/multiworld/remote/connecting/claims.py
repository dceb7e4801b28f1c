"""Which nodes at addresses this process is the master of, and again after a node was lost."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
from dataclasses import dataclass

from ...errors import JoinRefusedError, MultiworldError, StoreError
from ...store.base import parse_store_url
from ...store.tcp import TCPStore
from ...wire.progress.waiting import wait_blocking
from ...world.manager import WorldManager
from ..errors import ConnectError
from ..served import MASTER_KEY, NUMBER_KEY

logger = logging.getLogger(__name__)

PATIENCE_S = 5.0
RENEW_S = 1.0
SEPARATOR = "#"
"""Between the name of a master and what tells two claims of one process apart."""


@dataclass(frozen=True)
class Claim:
    """It lasts as long as ``client`` is connected. ``drawn``: the number that the node's process drew at its start."""

    url: str
    client: TCPStore
    drawn: int


class Claims:
    """Those of one connection, by the numbers of the nodes. From any thread."""

    def __init__(self, manager: WorldManager) -> None:
        self._manager = manager
        self._lock = threading.Lock()  # guards the two lines below: the connection may end while one is renewed
        self._held: dict[int, Claim] = {}
        self._is_over = False

    def take(self, number: int, url: str, timeout_s: float) -> None:
        """Be the master of the node at an address. Raises ConnectError if it is not there, or has a master."""
        client = _claim(self._manager, url, timeout_s)
        try:
            claim = Claim(url, client, _number_at(url, client, timeout_s))
        except BaseException:
            _give_back(client)
            raise
        with self._lock:
            before, is_over = self._held.get(number), self._is_over
            if not is_over:
                self._held[number] = claim
        if is_over:
            _give_back(client)
        elif before is not None:
            before.client.close()

    def renew(self, number: int) -> None:
        """Take a node again if a new process is there, or the connection to it was lost. Raises StoreError for now."""
        claim = self._held[number]
        try:
            if _number_at(claim.url, claim.client, RENEW_S) == claim.drawn:
                return
        except ConnectError as error:
            logger.debug("node %d is claimed again: %s", number, error)
        try:
            self.take(number, claim.url, RENEW_S)
        except ConnectError as error:  # it may come yet, or be free when the end of the old connection is noticed
            raise StoreError(claim.url, error.reason) from error

    def drawn(self, number: int) -> int:
        return self._held[number].drawn

    def give_back(self) -> None:
        """Let others be masters of all these nodes."""
        with self._lock:
            self._is_over = True
            held = list(self._held.values())
            self._held.clear()
        for claim in held:
            _give_back(claim.client)


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


def name_of(holder: bytes | None) -> str:
    """Return who holds a claim, for people; empty for none."""
    return (holder or b"").decode(errors="replace").partition(SEPARATOR)[0]


def _give_back(client: TCPStore) -> None:
    client.discard([MASTER_KEY])  # sooner than the store sees that the connection ended
    client.close()
