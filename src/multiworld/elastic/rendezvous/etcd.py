"""The etcd rendezvous: a key, under a lease of its owner's, says which agent coordinates the job."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Mapping

from ...wire.progress.thread import ProgressThread
from ..job.options import JobOptions
from .base import Address, Advice, Rendezvous
from .endpoint import find_endpoints, local_address, split_endpoint
from .etcd_claim import Claim
from .etcd_gateway import EtcdAccess, EtcdAwayError
from .etcd_keeper import EtcdKeeper

logger = logging.getLogger(__name__)

DEFAULT_PORT = 2379
TTL_S = 5.0
TIMEOUT_S = 2.0


class EtcdRendezvous(Rendezvous):
    """The first agent that finds the key absent creates it, and coordinates; it vanishes with its owner.

    etcd introduces agents, and no more: while it is away, those that know each other go on.
    """

    def __init__(self, access: EtcdAccess, key: str, ttl_s: int) -> None:
        self._access, self._key, self._ttl_s = access, key, ttl_s
        self._keeper: EtcdKeeper | None = None
        self._me: Address | None = None
        self._why = "etcd has not answered yet"

    def attach(self, loop: ProgressThread, me: Address) -> None:
        self._me = me
        self._keeper = EtcdKeeper(loop, self._access, self._key, self._ttl_s, me)

    async def look(self, listen: Callable[[Address], bool]) -> Advice:
        assert self._keeper is not None
        try:
            claim = await self._keeper.look()
        except EtcdAwayError as error:
            self._why = str(error)
            return Advice()
        if claim.address == self._me:
            return Advice(leads=True)
        shown = f"{claim.address.host}:{claim.address.port}"
        self._why = f"the agent at {shown}, which it names, does not answer: can it be reached from here?"
        return Advice(call=[claim.address])

    def announce(self, me: Address, term: int) -> None:
        if self._keeper is not None:
            self._keeper.announce(Claim(me, term))

    def withdraw(self) -> None:
        if self._keeper is not None:
            self._keeper.withdraw()

    def lookouts(self) -> list[Address]:
        rival = None if self._keeper is None else self._keeper.rival
        return [] if rival is None else [rival]

    def why_nobody(self) -> str:
        return self._why

    def close(self) -> None:
        if self._keeper is not None:
            self._keeper.close()

    def wait_closed(self, timeout_s: float) -> None:
        if self._keeper is not None:
            self._keeper.wait_closed(timeout_s)

    def __str__(self) -> str:
        return f"etcd {self._access}"


def from_options(options: JobOptions) -> tuple[Rendezvous, str]:
    """Return the rendezvous, and this host's address. Raises ValueError for what means nothing.

    What ``--rdzv-conf`` may say goes by the names that torchrun's two etcd rendezvous have for it.
    """
    config = {key.strip("'\" "): value.strip("'\" ") for key, value in options.rdzv_config.items()}
    named, protocol = _without_scheme(options.rdzv_endpoint, config.get("protocol", "").lower())
    found = find_endpoints(named, is_host=None, default_port=DEFAULT_PORT)
    ttl_s = _seconds(config, "lease_ttl", TTL_S)
    if config.get("password") and not config.get("username"):
        raise ValueError("--rdzv-conf password=...: whose? give username=NAME, too")
    access = EtcdAccess(
        endpoints=tuple(split_endpoint(each.named, DEFAULT_PORT) for each in found),
        tls=_tls(config, protocol),
        username=config.get("username"),
        password=config.get("password"),
        timeout_s=min(_seconds(config, "read_timeout", TIMEOUT_S), ttl_s / 2),
    )
    prefix = config.get("etcd_prefix", "multiworld").rstrip("/")
    key = f"{prefix}/{options.run_id}/coordinator"
    return EtcdRendezvous(access, key, round(ttl_s)), local_address(found[0], options.local_addr)


def _without_scheme(text: str, protocol: str) -> tuple[str, str]:
    """Return the endpoints, given as ``host:port`` or as URLs, and the protocol for all of them."""
    endpoints = []
    for part in text.split(","):
        scheme, separator, rest = part.strip().rpartition("://")
        if separator and protocol and scheme != protocol:
            raise ValueError(
                f"--rdzv-endpoint {part.strip()}: expected {protocol}, as for the others or in --rdzv-conf"
            )
        protocol = scheme or protocol
        endpoints.append(rest.rstrip("/"))
    if protocol not in ("", "http", "https"):
        raise ValueError(f"--rdzv-conf protocol={protocol}: expected http or https")
    return ",".join(endpoints), protocol


def _tls(config: Mapping[str, str], protocol: str) -> ssl.SSLContext | None:
    ca_file = config.get("cacert", config.get("ca_cert"))
    certificate = config.get("cert", config.get("ssl_cert"))
    key = config.get("key", config.get("ssl_cert_key"))
    if protocol != "https":
        if ca_file or certificate or key:
            logger.warning("certificates in --rdzv-conf are only for protocol=https: they are ignored")
        return None
    try:
        context = ssl.create_default_context(cafile=ca_file)
        if certificate is not None:
            context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        files = ", ".join(each for each in (ca_file, certificate, key) if each is not None)
        raise ValueError(f"--rdzv-conf: the certificates for etcd ({files}) cannot be read: {error}") from error
    return context


def _seconds(config: Mapping[str, str], key: str, default: float) -> float:
    given = config.get(key)
    if given is None:
        return default
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds <= 86400:
        raise ValueError(f"--rdzv-conf {key}={given}: expected seconds, from 1 to 86400")
    return seconds
