"""Decide whether a request that a web page may have caused is answered. Pure.

A browser sends what pages of any site ask it to send, also to servers that only this host or network reaches. It says
where the page came from (``Origin``, ``Sec-Fetch-Site``); a program that is no browser says nothing, and is let in.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass

from .access import is_loopback

__all__ = ["ANY_ORIGIN", "SiteRule", "check_host_name", "check_origin", "site_rule"]

ANY_ORIGIN = "*"
ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(?:[a-z0-9_.-]+|\[[0-9a-f:.]+\])(?::\d{1,5})?")
HOST_NAME = re.compile(r"[a-z0-9_.-]+|\[?[0-9a-f:.]+\]?")
DEFAULT_PORTS = {"http": ":80", "https": ":443"}
READING = ("GET", "HEAD")


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
        """Return what each answer's head says, so that a page of the origin that asked may read it."""
        origin = headers.get("origin")
        if origin is None or not self.allows(origin):
            return {}
        return {"access-control-allow-origin": origin, "access-control-expose-headers": "*", "vary": "origin"}

    def _is_called(self, host_header: str) -> bool:
        name = _name_in(host_header)
        if name == "localhost" or name in self.hosts or (_is_numeric(name) and is_loopback(name)):
            return True
        return self.is_open and (not self.hosts or _is_numeric(name))  # a site's name may lead here, a number cannot


def site_rule(host: str, *, allowed_hosts: tuple[str, ...] = (), cors_origins: tuple[str, ...] = ()) -> SiteRule:
    """Return the rule of a server that listens at ``host``."""
    is_here = is_loopback(host) if _is_numeric(host) else host == "localhost"
    return SiteRule(is_open=not is_here, hosts=tuple(map(_name_in, allowed_hosts)), origins=cors_origins)


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


def _is_numeric(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
