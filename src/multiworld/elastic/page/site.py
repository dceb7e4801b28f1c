"""The paths of a job's page: the document, the status as JSON, a stream of changes, metrics; it is read-only."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from urllib.parse import parse_qs

from ...errors import MultiworldError
from ...observe import event_stream
from ...observe.access import Access
from ...observe.document import Document
from ...observe.prometheus import CONTENT_TYPE as METRICS
from ...observe.server import HEALTHZ, PageServer
from ...observe.site import HTML, JSON, Answer, Request, Site
from ...observe.sites import site_rule
from ...observe.snapshots import Snapshots
from ...wire.messages import to_json
from ..job.status import AgentStatus
from .metrics import metrics_text
from .snapshot import Snapshot

PAGE = Document(__package__, is_live=True)
NUM_LINES = 50  # of each stream of a worker
LOOK_S = 1.0  # what changes without an event, such as worlds, is seen after that


ReadLines = Callable[[AgentStatus, int, int], list[str]]
"""Returns the last lines of a rank, at most so many of each of its streams, from its agent. Raises MultiworldError."""


def serve_job(host: str, port: int, *, token: str, snapshots: Snapshots[Snapshot], read_lines: ReadLines) -> PageServer:
    """Bind, listen, and serve; raises OSError. ``token``: for readers elsewhere, and for those behind a proxy."""
    access = Access(owner="job", token=token, sites=site_rule(host), open_paths=frozenset({HEALTHZ}))

    def shown(show: Callable[[Snapshot], Answer]) -> Callable[[Request], Answer]:
        def answer(request: Request) -> Answer:
            snapshot = snapshots.latest()
            if snapshot is None:
                return Answer.text(503, "this agent does not coordinate the job any more")
            return show(snapshot)

        return answer

    def events(request: Request) -> Answer:
        return shown(lambda _: Answer.events(_messages(snapshots, request.last_event())))(request)

    def logs(request: Request) -> Answer:
        return shown(lambda snapshot: _lines(snapshot, request.query, read_lines))(request)

    routes = {
        "/": lambda _: Answer(content_type=HTML, body=page_html(snapshots.latest()).encode()),
        "/status": shown(lambda snapshot: Answer(content_type=JSON, body=f"{snapshot.status_json}\n".encode())),
        "/metrics": shown(
            lambda snapshot: Answer(content_type=METRICS, body=metrics_text(snapshot.status, snapshot.counts).encode())
        ),
        "/events": events,
        "/logs": logs,
    }
    return PageServer(host, port, Site(routes, access=access, policy=PAGE.policy), on_close=snapshots.close)


def page_html(snapshot: Snapshot | None) -> str:
    """Return the page as it is now."""
    if snapshot is None:
        return PAGE.page("multiworld", None)
    return PAGE.page(f"{snapshot.status.job} · multiworld", snapshot.first)


def _lines(snapshot: Snapshot, query: str, read_lines: ReadLines) -> Answer:
    """Answer with the last lines of the rank that a query names."""
    asked = parse_qs(query).get("rank", [""])[-1]
    worker = next((each for each in snapshot.status.workers if str(each.rank) == asked), None)
    agent = next((each for each in snapshot.status.agents if worker is not None and each.id == worker.agent), None)
    if worker is None or worker.rank is None or agent is None:
        return Answer.text(404, f"no worker has the rank {asked!r:.20} now: ask for /logs?rank=0, say")
    try:
        lines = read_lines(agent, worker.rank, NUM_LINES)
    except MultiworldError as error:
        return Answer.text(503, f"the agent on {agent.hostname} did not tell the lines: {error}")
    told = {"rank": worker.rank, "host": agent.hostname, "lines": lines}
    return Answer(content_type=JSON, body=json.dumps(told).encode())


def _messages(snapshots: Snapshots[Snapshot], number: int) -> Iterator[bytes]:
    """Yield the status whenever it changes, and the events after ``number`` as they come."""
    shown, failures, trainings, remote, silent_since = "", "[]", "[]", "null", time.monotonic()
    for snapshot in snapshots.follow(LOOK_S):
        messages = []
        if snapshot.shown_json != shown:
            shown = snapshot.shown_json
            messages.append(event_stream.event(shown, name="status"))
        if snapshot.failures_json != failures:
            failures = snapshot.failures_json
            messages.append(event_stream.event(failures, name="failures"))
        if snapshot.trainings_json != trainings:
            trainings = snapshot.trainings_json
            messages.append(event_stream.event(trainings, name="trainings"))
        if snapshot.remote_json != remote:
            remote = snapshot.remote_json
            messages.append(event_stream.event(remote, name="remote"))
        if number > snapshot.last_number:  # of another job, which was at this address before
            number = 0
        if events := snapshot.events_since(number):
            number = snapshot.last_number
            messages.append(
                event_stream.event(json.dumps([to_json(each) for each in events]), name="events", event_id=str(number))
            )
        if not messages and time.monotonic() - silent_since >= event_stream.KEEPALIVE_S:
            messages.append(event_stream.KEEPALIVE)
        if messages:
            yield b"".join(messages)
            silent_since = time.monotonic()
