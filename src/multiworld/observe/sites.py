"""Decide whether a request that a web page may have caused is answered. Pure.

A browser sends what pages of any site ask it to send, also to servers that only this host or network reaches. It says
where the page came from (``Origin``, ``Sec-Fetch-Site``); a program that is no browser says nothing, and is let in.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

ANY_ORIGIN = "*"
ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(?:[a-z0-9_.-]+|\[[0-9a-f:.]+\])(?::\d{1,5})?")
HOST_NAME = re.compile(r"[a-z0-9_.-]+|\[?[0-9a-f:.]+\]?")
NUMBER = re.compile(r"0x[0-9a-f]{1,16}|[0-9]{1,16}")  # of one part of an address
DEFAULT_PORTS = {"http": ":80", "https": ":443"}
READING = ("GET", "HEAD")
OF_PROXIES = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip")
"""What only a proxy says, about those whose requests it passes on."""


@dataclass(frozen=True, kw_only=True)
class SiteRule:
    """The rule of one server.

    ``is_open``: others than this host reach it. ``hosts``: names besides localhost by which it may be called; without
    any, an open server may be called by every name. ``origins``: sites whose pages may ask it, ``"*"`` for all.
    """

    is_open: bool = False
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()

    def refusal(self, method: str, headers: Mapping[str, str]) -> str:
        """Return why a request is refused, as a sentence, or nothing. ``headers``: with names in lower case."""
        host = headers.get("host", "")
        if host and not self._is_called(host):
            return f"{host!r:.80} is no name of this server; call it localhost"
        origin = headers.get("origin")
        if origin is not None:
            if self.allows(origin) or _is_same(origin, host):
                return ""
            return f"pages of {origin!r:.80} may not ask this server"
        site = headers.get("sec-fetch-site", "none")
        if site in ("none", "same-origin"):
            return ""
        if method in READING and headers.get("sec-fetch-mode") == "navigate":  # a link: the other page sees nothing
            return ""
        return f"a page of another site ({site!r:.20}) may not ask this server"

    def allows(self, origin: str) -> bool:
        """Whether pages of another site with that origin may ask, and read the answers."""
        return ANY_ORIGIN in self.origins or origin.lower() in self.origins

    def preflight(self, headers: Mapping[str, str]) -> dict[str, str] | None:
        """Return the headers of the answer to a browser that asks beforehand, for an origin that is allowed."""
        origin, method = headers.get("origin"), headers.get("access-control-request-method")
        if origin is None or method is None or not self.allows(origin):
            return None
        allowed = {"access-control-allow-methods": method, "access-control-max-age": "600"}
        if "access-control-request-headers" in headers:
            allowed["access-control-allow-headers"] = headers["access-control-request-headers"]
        if headers.get("access-control-request-private-network") == "true":
            allowed["access-control-allow-private-network"] = "true"
        return allowed

    def sharing(self, headers: Mapping[str, str]) -> dict[str, str]:
        """Return what each answer's head says, so that a page of the origin that asked may read it.

        Where some origin may, also an answer to none says that it depends on that: a cache would give it to all.
        """
        if not self.origins:
            return {}
        origin = headers.get("origin")
        if origin is None or not self.allows(origin):
            return {"vary": "origin"}
        return {"access-control-allow-origin": origin, "access-control-expose-headers": "*", "vary": "origin"}

    def is_from_here(self, headers: Mapping[str, str]) -> bool:
        """Whether a program of this host asks by itself, and not on behalf of others, as a proxy does.

        Who reaches only a proxy is a stranger, though the proxy's connection comes from this host.
        """
        if self.is_open or any(name in headers for name in OF_PROXIES):
            return False
        host = headers.get("host", "")
        return _is_name_of_loopback(_name_in(host)) if host else not self.hosts

    def _is_called(self, host_header: str) -> bool:
        name = _name_in(host_header)
        if _is_name_of_loopback(name) or name in self.hosts:
            return True
        return self.is_open and (not self.hosts or _is_numeric(name))  # a site's name may lead here, a number cannot


def site_rule(host: str, *, allowed_hosts: tuple[str, ...] = (), cors_origins: tuple[str, ...] = ()) -> SiteRule:
    """Return the rule of a server that listens at ``host``."""
    return SiteRule(
        is_open=not _is_name_of_loopback(host), hosts=tuple(map(_name_in, allowed_hosts)), origins=cors_origins
    )


def is_loopback(host: str) -> bool:
    """Whether only processes of this host reach a server at that numeric address."""
    address = ipaddress.ip_address(host)
    if address.version == 6 and address.ipv4_mapped is not None:  # some releases of Python look at the outside alone
        return address.ipv4_mapped.is_loopback
    return address.is_loopback


def check_origin(origin: str) -> str:
    """Return an origin as browsers write it. Raises ValueError."""
    text = origin.lower()
    if text != ANY_ORIGIN and not ORIGIN.fullmatch(text):
        raise ValueError(
            f"the origin {origin!r} must be a scheme, a host and maybe a port, such as 'https://app.example.org', "
            "or '*' for every site"
        )
    return text.removesuffix(DEFAULT_PORTS.get(text.partition(":")[0], " "))


def check_host_name(name: str) -> str:
    """Return a name of a server without a port. Raises ValueError."""
    if not HOST_NAME.fullmatch(name.lower()):
        raise ValueError(f"the host {name!r} must be a name or an address without a port, such as 'models.example.org'")
    return name.lower()


def _is_same(origin: str, host_header: str) -> bool:
    """Whether the page came from this server. Schemes are not compared: a proxy in front of it may have ended TLS."""
    scheme, _, authority = origin.lower().partition("://")
    default = DEFAULT_PORTS.get(scheme, " ")
    return bool(authority) and authority.removesuffix(default) == host_header.lower().removesuffix(default)


def _name_in(host_header: str) -> str:
    """Return the name without port, brackets or the dot at its end."""
    text = host_header.lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return (text if text.count(":") > 1 else text.partition(":")[0]).removesuffix(".")


def _is_name_of_loopback(name: str) -> bool:
    number = _numeric(name)
    return name == "localhost" if number is None else is_loopback(number)


def _is_numeric(name: str) -> bool:
    return _numeric(name) is not None


def _numeric(name: str) -> str | None:
    """Return an address as it is usually written; None: it is a name, which DNS may lead anywhere."""
    with suppress(ValueError):
        return str(ipaddress.ip_address(name))
    with suppress(ValueError):
        return str(ipaddress.IPv4Address(_old_number(name)))
    return None


def _old_number(name: str) -> int:
    """Return the number of an IPv4 address as ``inet_aton`` reads it: ``127.1``, ``0x7f.0.0.1``. ValueError: none.

    No resolver takes such a text for a name.
    """
    parts = name.split(".")
    if len(parts) > 4 or not all(NUMBER.fullmatch(part) for part in parts):
        raise ValueError(name)
    *bytes_, last = (int(part, 16 if part.startswith("0x") else 8 if part.startswith("0") else 10) for part in parts)
    if any(byte > 255 for byte in bytes_) or last >= 256 ** (4 - len(bytes_)):
        raise ValueError(name)
    return sum(byte << 8 * (3 - index) for index, byte in enumerate(bytes_)) + last
