"""Decide who may read a page. Pure."""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import parse_qs

from .sites import SiteRule

Refusal = tuple[int, str]
"""An HTTP status, and why."""


@dataclass(frozen=True, kw_only=True)
class Access:
    """The rule of one page: programs on its own host read it, others must show the token.

    ``owner``: whose token it is, such as "job". Without a token, nobody elsewhere reads anything. ``open_paths``: what
    needs no token, such as a probe's path; pages of other sites are refused there as well.
    """

    owner: str
    token: str = field(default="", repr=False)
    sites: SiteRule = field(default_factory=SiteRule)
    open_paths: frozenset[str] = frozenset()

    def refusal(self, method: str, path: str, query: str, headers: Mapping[str, str]) -> Refusal | None:
        """Return why a request is not answered. ``headers``: with names in lower case."""
        if reason := self.sites.refusal(method, headers):
            return 403, reason
        if path in self.open_paths or self.sites.is_from_here(headers):
            return None
        if not self.token:
            return 403, "this page is for readers on its own host, unless it is given a token"
        if may_read(self.token, headers.get("authorization", ""), parse_qs(query)):
            return None
        return 401, f"show the {self.owner}'s token: ?token=... or Authorization: Bearer ..."


def may_read(token: str, authorization: str, query: Mapping[str, Sequence[str]]) -> bool:
    """Whether a request shows the token: ``Authorization: Bearer TOKEN``, or ``?token=TOKEN`` for browsers.

    An empty token lets nobody in.
    """
    kind, _, shown = authorization.partition(" ")
    candidates = [shown.strip()] if kind.lower() == "bearer" else []
    candidates += query.get("token", [])
    return bool(token) and any(hmac.compare_digest(each.encode(), token.encode()) for each in candidates)
