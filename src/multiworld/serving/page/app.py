"""The paths of the page, as an ASGI application that is mounted at ``/page`` or serves alone; it is read-only."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from urllib.parse import parse_qs

from ...observe import event_stream
from ...observe.access import Access
from ...observe.asgi import AsgiSite
from ...observe.document import Document
from ...observe.site import HTML, JSON, Answer, Request, Site
from ...observe.sites import SiteRule
from ...wire.messages import to_json
from .recorder import PointsFrom, Recorder

PAGE = Document(__package__, is_live=True)

PREFIX = "/page"
RETRY_MS = 500  # for a browser to come again


class PageApp(AsgiSite):
    """``/page``, ``/page/data`` (JSON) and ``/page/events`` (server-sent events) of one deployment.

    ``/page/lines?member=NAME`` (JSON) has the last lines that a member wrote.

    ``sites``: what browsers may ask, and whether others than this host reach it. Readers elsewhere,
    or behind a proxy, must show ``token``; without one only readers on this host are answered.
    """

    def __init__(self, recorder: Recorder, *, token: str = "", sites: SiteRule | None = None) -> None:
        routes = {
            "": lambda _: Answer(content_type=HTML, body=PAGE.page("multiworld", to_json(recorder.data())).encode()),
            "/data": lambda _: Answer(content_type=JSON, body=_dumps(to_json(recorder.data())).encode()),
            "/lines": lambda request: Answer(content_type=JSON, body=_lines(recorder, request)),
            "/events": lambda request: Answer.events(_messages(recorder, request)),
        }
        access = Access(owner="deployment", token=token, sites=sites or SiteRule())
        super().__init__(Site(routes, access=access, policy=PAGE.policy, prefix=PREFIX))


async def _lines(recorder: Recorder, request: Request) -> AsyncIterator[bytes]:
    member = parse_qs(request.query).get("member", [""])[0]
    yield _dumps({"lines": await recorder.lines(member)}).encode()


async def _messages(recorder: Recorder, request: Request) -> AsyncIterator[bytes]:
    """Send what changes until there is nothing more to come."""
    num_stories = request.last_event(recorder.run)
    num_points, shown, graph = 0, None, None
    yield event_stream.event(_dumps({"run": recorder.run}), name="hello", retry_ms=RETRY_MS)
    while not recorder.closed:
        version = recorder.version
        messages = []
        if recorder.graph is not graph:
            graph = recorder.graph
            messages.append(_event("graph", None if graph is None else to_json(graph)))
        if recorder.shown is not shown:
            shown = recorder.shown
            messages.append(_event("snapshot", None if shown is None else to_json(shown)))
        if recorder.series.num_seen > num_points:
            points = PointsFrom(number=recorder.series.num_seen, points=tuple(recorder.series.since(num_points)))
            num_points = points.number
            messages.append(_event("series", to_json(points)))
        if recorder.num_stories > num_stories:
            stories = recorder.stories(num_stories)
            num_stories = recorder.num_stories
            messages.append(_event("events", [to_json(story) for story in stories], f"{recorder.run}:{num_stories}"))
        yield b"".join(messages) or event_stream.KEEPALIVE
        await recorder.wait(version, event_stream.KEEPALIVE_S)


def _event(name: str, value: object, event_id: str = "") -> bytes:
    return event_stream.event(_dumps(value), name=name, event_id=event_id)


def _dumps(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
