"""Where the agents of a job meet at first: ``host:port``, resolved, and whether and where this host listens there."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from ...observe.sites import is_loopback
from ...wire.endpoints.addresses import addresses_of, can_listen_at, family_of, is_address

DEFAULT_PORT, STATIC_PORT = 29400, 29500  # as torchrun has them
WILDCARDS = ("0.0.0.0", "::")
ANYWHERE = "192.0.2.1"  # an address for documentation, which a default route leads to like any other


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """``host`` is numeric. ``is_here``: it is an address of this host, so this agent may listen there."""

    host: str
    port: int
    is_here: bool
    named: str
    """As the user gave it."""
    is_own: bool = True
    """Whether ``host``, where ``is_here``, is what other hosts call this one; else it is only what leads here."""

    @property
    def listens_at(self) -> str:
        """The address at which an agent of this host listens for those that come to the endpoint."""
        return self.host if self.is_own else WILDCARDS[":" in self.host]

    def __str__(self) -> str:
        return self.named


def find_endpoints(
    text: str, *, is_host: bool | None = None, default_port: int = DEFAULT_PORT, for_others: bool = False
) -> list[Endpoint]:
    """Parse and resolve ``host[:port][,host[:port]…]``; blocks for DNS. Raises ValueError for what means nothing.

    ``is_host``: whether this agent may listen there, if the user says so; None: wherever the address is this host's.
    ``for_others``: agents of other hosts come there too.
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    endpoints = [_find(part, is_host, default_port, for_others=for_others) for part in parts]
    if not endpoints:
        raise ValueError("no rendezvous endpoint: give --rdzv-endpoint HOST:PORT, or --standalone for one host")
    return endpoints


def split_endpoint(text: str, default_port: int = DEFAULT_PORT) -> tuple[str, int]:
    """Return host, as it was given, and port of one endpoint. Raises ValueError."""
    host, separator, port = text.rpartition(":")
    # as torchrun, we take the last part of fd00::1:29400 for the port; but that of fd00::1 is a part of the address
    is_bare = ":" in host and not host.startswith("[") and not (is_address(host) and port.isdecimal())
    if (text.startswith("[") and text.endswith("]")) or not separator or is_bare:
        host, port = text, str(default_port)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 <= int(port) < 65536:
        raise ValueError(f"--rdzv-endpoint {text}: expected HOST:PORT with a port from 0 to 65535")
    return host, int(port)


def local_address(endpoint: Endpoint, given: str | None) -> str:
    """Return the numeric address at which the other agents reach this one: what leads to the endpoint, or ``given``."""
    if given is not None:
        return given if is_address(given) else _resolve(given, "--local-addr")
    if endpoint.is_here and endpoint.is_own:
        return endpoint.host
    if endpoint.is_here and is_loopback(endpoint.host):  # the name of this host, as it knows itself
        return _outward_address() or endpoint.host
    with socket.socket(family_of(endpoint.host), socket.SOCK_DGRAM) as probe:  # nothing is sent
        try:
            probe.connect((endpoint.host, endpoint.port or DEFAULT_PORT))
        except OSError as error:
            raise ValueError(f"--rdzv-endpoint {endpoint}: no route to {endpoint.host}: {error.strerror}") from error
        return str(probe.getsockname()[0])


def _find(text: str, is_host: bool | None, default_port: int, *, for_others: bool) -> Endpoint:
    host, port = split_endpoint(text, default_port)
    address = host if is_address(host) else _resolve(host, "--rdzv-endpoint")
    is_ours = can_listen_at(address)
    # Many hosts have their name at 127.0.1.1, and a service or a NAT has an address that no host has: others come to
    # what leads here from there.
    is_only_for_us = for_others and is_loopback(address) and host != "localhost" and not is_address(host)
    return Endpoint(
        host=address,
        port=port,
        is_here=is_ours if is_host is None else is_host,
        named=text,
        is_own=is_ours and not is_only_for_us,
    )


def _outward_address() -> str | None:
    """Return the address that this host has for others; None if it knows no way to any."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:  # nothing is sent
        try:
            probe.connect((ANYWHERE, DEFAULT_PORT))
        except OSError:
            return None
        return str(probe.getsockname()[0])


def _resolve(host: str, option: str) -> str:
    try:
        return addresses_of(host)[0]
    except OSError as error:
        raise ValueError(f"{option} {host}: the name cannot be resolved: {error.strerror}") from error
