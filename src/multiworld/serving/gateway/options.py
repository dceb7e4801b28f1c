"""What can be set about a gateway, with bounds within which it makes sense."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ...observe.sites import SiteRule, check_host_name, check_origin, site_rule

DEFAULT_PORT = 8000
"""Of a gateway that is started from the command line."""

NAN_POLICIES = ("allow", "refuse")
SECONDS = (
    *("body_timeout_s", "body_total_timeout_s", "head_timeout_s", "idle_timeout_s"),
    *("write_timeout_s", "answer_total_timeout_s"),
)
COUNTS = ("max_body_bytes", "max_json_bytes", "max_json_answer_bytes", "max_held_bytes", "max_connections")


@dataclass(frozen=True, kw_only=True)
class GatewayOptions:
    """Where a gateway listens, and how much of what it bears. Raises ValueError for what makes no sense."""

    host: str = "127.0.0.1"
    port: int = 0
    """0: a free one, which ``Gateway.start`` returns."""
    reuse_port: bool = False
    """Whether several gateways of this user may listen at the same port; the kernel shares the connections out."""
    cors_origins: tuple[str, ...] = ()
    """Web sites whose pages may ask, such as ``"https://app.example.org"``; ``"*"``: all. Its own pages always may."""
    allowed_hosts: tuple[str, ...] = ()
    """Names besides localhost that requests may call it by, such as that of a proxy in front of it. Without any, a
    gateway that other hosts reach may be called by every name."""
    max_body_bytes: int = 256 << 20
    max_json_bytes: int = 16 << 20
    """Of a body in JSON: as Python's objects, numbers take many times the room that they have as text."""
    max_json_answer_bytes: int = 64 << 20
    """Of an answer in JSON, counted before it is written; a larger one is refused (406): it can be had in binary."""
    max_held_bytes: int = 1 << 30
    """Of all requests together: bodies, what JSON becomes, and answers until they are read. Beyond it is 429."""
    max_connections: int = 1024
    """For one more, that is ended which has waited for its client the longest; if none has, it is answered 503."""
    nan_policy: Literal["allow", "refuse"] = "allow"
    """``"refuse"``: inputs with NaN or infinite elements are answered 400."""
    default_timeout_s: float | None = None
    """For requests that name no time limit themselves. None: none."""
    head_timeout_s: float = 10.0
    """From a connection, or a request's first byte, to the end of its head."""
    body_timeout_s: float = 30.0
    """Between two pieces of a body."""
    body_total_timeout_s: float = 600.0
    """For a whole body."""
    write_timeout_s: float = 30.0
    """For a client to read some more of its answer."""
    answer_total_timeout_s: float = 600.0
    """For a client to read a whole answer; then its connection is aborted. A stream of events has no such end."""
    idle_timeout_s: float = 75.0
    """Of a connection between two requests."""

    def __post_init__(self) -> None:
        if not self.host:
            raise ValueError("host is empty: '127.0.0.1' serves this host, '0.0.0.0' every network that it is in")
        if not _is_count(self.port) or not 0 <= self.port <= 65535:
            raise ValueError(f"port must lie between 0 and 65535, got {self.port!r}")
        if self.nan_policy not in NAN_POLICIES:
            raise ValueError(f"nan_policy must be one of {', '.join(NAN_POLICIES)}, got {self.nan_policy!r}")
        for name in COUNTS:
            value = getattr(self, name)
            if not _is_count(value) or value < 1:
                raise ValueError(f"{name} must be a number from 1, got {value!r}")
        if self.max_held_bytes < self.max_body_bytes:
            raise ValueError(
                f"max_held_bytes={self.max_held_bytes} holds no body of max_body_bytes={self.max_body_bytes}"
            )
        for name in SECONDS:
            _check_seconds(name, getattr(self, name))
        if self.default_timeout_s is not None:
            _check_seconds("default_timeout_s", self.default_timeout_s)
        for name, check in (("cors_origins", check_origin), ("allowed_hosts", check_host_name)):
            value = getattr(self, name)
            if not isinstance(value, (list, tuple)) or not all(isinstance(each, str) for each in value):
                raise ValueError(f"{name} must be a list of texts, got {value!r}")
            object.__setattr__(self, name, tuple(map(check, value)))  # lists come from files

    def site_rule(self) -> SiteRule:
        """Return which requests of web pages are answered."""
        return site_rule(self.host, allowed_hosts=self.allowed_hosts, cors_origins=self.cors_origins)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_seconds(name: str, value: object) -> None:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < math.inf:
        raise ValueError(f"{name} must be a positive number of seconds, got {value!r}")
