"""What one read-only site answers: its paths, who may read them, and the head of each answer. No IO of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field

from .access import Access
from .event_stream import CONTENT_TYPE as EVENTS
from .event_stream import last_number

PLAIN = "text/plain; charset=utf-8"
HTML = "text/html; charset=utf-8"
JSON = "application/json"
READING = ("GET", "HEAD")

Stream = Iterator[bytes] | AsyncIterator[bytes]
"""The parts of an answer. A server of threads takes iterators, an ASGI server takes asynchronous ones."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """``headers``: with names in lower case. ``path``: without the prefix where the site is mounted."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]

    def last_event(self, run: str = "") -> int:
        """Return the number of the last event that a reader of an event stream has, 0 for none."""
        return last_number(self.headers.get("last-event-id", ""), run)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """``body``: whole, or in parts; a HEAD request gets none."""

    status: int = 200
    content_type: str = PLAIN
    body: bytes | Stream = b""
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def text(cls, status: int, text: str, **headers: str) -> Answer:
        return cls(
            status=status, body=text.encode(), headers={name.replace("_", "-"): headers[name] for name in headers}
        )

    @classmethod
    def events(cls, body: Stream) -> Answer:
        """Server-sent events. No proxy keeps them back to send several together."""
        return cls(content_type=EVENTS, body=body, headers={"X-Accel-Buffering": "no"})


Route = Callable[[Request], Answer]


class Site:
    """``routes``: by path. ``policy``: the content security policy of its documents."""

    def __init__(self, routes: Mapping[str, Route], *, access: Access, policy: str, prefix: str = "") -> None:
        self.access, self.prefix = access, prefix
        self._routes, self._policy = routes, policy

    def refusal(self, request: Request) -> Answer | None:
        """Return the answer to somebody who may not read this, or to a request that is not for reading."""
        refused = self.access.refusal(request.method, request.path, request.query, request.headers)
        if refused is not None:
            return Answer.text(*refused)
        if request.method not in READING:
            return Answer.text(405, "the page can only be read", Allow=", ".join(READING))
        return None

    def answer(self, request: Request) -> Answer:
        """Return the answer to somebody who may read it."""
        route = self._routes.get(request.path)
        if route is not None:
            return route(request)
        paths = [self.prefix + path for path in self._routes]
        return Answer.text(404, f"there is {', '.join(paths[:-1])} and {paths[-1]}")

    def head(self, answer: Answer) -> dict[str, str]:
        """Return the header fields of an answer."""
        head = {
            "Content-Type": answer.content_type,
            "Cache-Control": "no-store",
            "Content-Security-Policy": self._policy,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",  # the address may hold the token
            **answer.headers,
        }
        if isinstance(answer.body, bytes):
            head["Content-Length"] = str(len(answer.body))
        return head
