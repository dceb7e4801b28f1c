"""Where the agents of a job meet at first: ``host:port``, resolved, and whether that is this host."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from ...wire.addresses import family_of
from ...wire.names import is_address

__all__ = ["Endpoint", "find_endpoints", "local_address", "split_endpoint"]

DEFAULT_PORT = 29400  # as torchrun has it


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """``host`` is numeric. ``is_here``: it is an address of this host, so this agent may listen there."""

    host: str
    port: int
    is_here: bool
    named: str
    """As the user gave it."""

    def __str__(self) -> str:
        return self.named


def find_endpoints(text: str, *, is_host: bool | None = None, default_port: int = DEFAULT_PORT) -> list[Endpoint]:
    """Parse and resolve ``host[:port][,host[:port]…]``; blocks for DNS. Raises ValueError for what means nothing.

    ``is_host``: whether this agent may listen there, if the user says so; None: wherever the address is this host's.
    """
    endpoints = [_find(part.strip(), is_host, default_port) for part in text.split(",") if part.strip()]
    if not endpoints:
        raise ValueError("no rendezvous endpoint: give --rdzv-endpoint HOST:PORT, or --standalone for one host")
    return endpoints


def split_endpoint(text: str, default_port: int = DEFAULT_PORT) -> tuple[str, int]:
    """Return host, as it was given, and port of one endpoint. Raises ValueError."""
    host, separator, port = text.rpartition(":")
    if (text.startswith("[") and text.endswith("]")) or not separator or (":" in host and not host.startswith("[")):
        host, port = text, str(default_port)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 <= int(port) < 65536:
        raise ValueError(f"--rdzv-endpoint {text}: expected HOST:PORT with a port from 0 to 65535")
    return host, int(port)


def local_address(endpoint: Endpoint, given: str | None) -> str:
    """Return the numeric address at which the other agents reach this one: what leads to the endpoint, or ``given``."""
    if given is not None:
        return given if is_address(given) else _resolve(given)
    if endpoint.is_here:
        return endpoint.host
    with socket.socket(family_of(endpoint.host), socket.SOCK_DGRAM) as probe:  # nothing is sent
        try:
            probe.connect((endpoint.host, endpoint.port or DEFAULT_PORT))
        except OSError as error:
            raise ValueError(f"--rdzv-endpoint {endpoint}: no route to {endpoint.host}: {error.strerror}") from error
        return str(probe.getsockname()[0])


def _find(text: str, is_host: bool | None, default_port: int) -> Endpoint:
    host, port = split_endpoint(text, default_port)
    address = host if is_address(host) else _resolve(host)
    here = _is_here(address) if is_host is None else is_host
    return Endpoint(host=address, port=port, is_here=here, named=text)


def _resolve(host: str) -> str:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ValueError(f"--rdzv-endpoint {host}: the name cannot be resolved: {error.strerror}") from error
    return str(min(found, key=lambda each: each[0] != socket.AF_INET)[4][0])


def _is_here(address: str) -> bool:
    with socket.socket(family_of(address), socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True
