"""Watches one deployment for all who look at it, and remembers the last minutes."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import deque
from dataclasses import dataclass, replace

from ...errors import MessageError, MultiworldError
from ..control.history import EventRecord, record_of
from ..control.status import ControllerStatus
from .graph_view import GraphView, graph_view
from .series import Point, Rates, Series
from .slots import Slots
from .snapshot import Shown, Silence, observe, point, snapshot
from .source import StatusSource
from .stories import ControllerBack, ControllerSilent, Story, tell

logger = logging.getLogger(__name__)

LOOK_S, IDLE_LOOK_S = 0.25, 1.0
POINT_S = 1.0
SOURCE_S = 3.0  # for the controller to answer
MAX_STORIES = 500
LAST_LINES = 50


@dataclass(frozen=True, kw_only=True)
class PointsFrom:
    """``number``: of the last one."""

    number: int
    points: tuple[Point, ...]


@dataclass(frozen=True, kw_only=True)
class Everything:
    """All that there is to show. ``run``: names the recorder, whose numbers mean nothing to another one."""

    run: str
    snapshot: Shown | None
    graph: GraphView | None
    series: PointsFrom
    events: tuple[Story, ...]


class Recorder:
    """Looks at a source now and then, more often while somebody watches. ``async with`` starts it, and ends both.

    What is remembered outlives the controller: one that was started again counts its events anew.
    """

    def __init__(self, source: StatusSource) -> None:
        self.run = secrets.token_hex(4)
        """Names this recorder: its numbers mean nothing to another one."""
        self.version = 0
        """Grows with every change of what is shown."""
        self.closed = False
        self.series = Series()
        self.shown: Shown | None = None
        """The snapshot; None before the first."""
        self.graph: GraphView | None = None
        self.num_stories = 0
        self._source = source
        self._rates, self._slots = Rates(), Slots()
        self._stories: deque[Story] = deque(maxlen=MAX_STORIES)
        self._num_events, self._last_at = 0, 0.0
        self._silent_since: float | None = None
        self._point_at = 0.0
        self._watchers = 0
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Recorder:
        await self._look()
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def start(self) -> None:
        """Begin to look, without waiting for anything."""
        self._task = asyncio.get_running_loop().create_task(self._follow())

    async def aclose(self) -> None:
        """Stop looking; whoever waits sees ``closed``. Idempotent."""
        self.closed = True
        self._wake()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._source.close()

    def stories(self, since: int = 0) -> list[Story]:
        """Return what happened after the first ``since`` stories."""
        return [story for story in self._stories if story.number > since]

    def data(self) -> Everything:
        points = PointsFrom(number=self.series.num_seen, points=tuple(self.series.since(0)))
        return Everything(
            run=self.run, snapshot=self.shown, graph=self.graph, series=points, events=tuple(self.stories())
        )

    async def lines(self, member: str) -> list[str]:
        """Return the last lines that a member wrote; none while the controller cannot be asked."""
        try:
            return await asyncio.wait_for(self._source.lines(member, LAST_LINES), SOURCE_S)
        except (asyncio.TimeoutError, MultiworldError, OSError) as error:
            logger.info("what %s wrote cannot be shown: %s", member, error)
            return []

    async def wait(self, version: int, timeout_s: float) -> None:
        """Wait until something is newer than that version, or for so long. While waited for, it looks often."""
        self._watchers += 1
        try:
            if self.version == version and not self.closed:
                await asyncio.wait_for(self._changed.wait(), timeout_s)
        except asyncio.TimeoutError:
            return
        finally:
            self._watchers -= 1

    # ---- looking

    async def _follow(self) -> None:
        while True:
            await self._look()
            await asyncio.sleep(LOOK_S if self._watchers else IDLE_LOOK_S)

    async def _look(self) -> None:
        try:
            status, events = await asyncio.wait_for(self._ask(), SOURCE_S)
        except asyncio.TimeoutError:
            self._silent(f"no answer within {SOURCE_S:g} s")
        except MessageError as error:  # of a controller of another version
            self._silent(f"what it says is not understood: {error}")
        except (MultiworldError, OSError) as error:
            self._silent(str(error) or type(error).__name__)
        else:
            for event in events:
                self._last_at = max(self._last_at, event.at)
                self._happened(event)
            self._show(status)
            self._answered()

    async def _ask(self) -> tuple[ControllerStatus, list[EventRecord]]:
        status = await self._source.status()
        count = status.num_events
        if count < self._num_events or self._silent_since is not None:  # it may be another one, which counts anew
            events = [event for event in await self._source.events(0) if event.at > self._last_at]
        elif count > self._num_events:
            events = await self._source.events(self._num_events)
        else:
            events = []
        self._num_events = max([count, *(event.number for event in events)])
        return status, events

    def _happened(self, event: EventRecord) -> None:
        self.num_stories += 1
        self._stories.append(tell(event, self.num_stories))

    def _silent(self, why: str) -> None:
        if self._silent_since is None:
            self._silent_since = time.time()
            self._happened(record_of(ControllerSilent(at=self._silent_since, why=why)))
        silent = Silence(since=self._silent_since, why=why)
        is_new = self.shown is not None and self.shown.silent != silent
        if self.shown is not None and is_new:
            self.shown = replace(self.shown, silent=silent)
        if self._add_point(None) or is_new:
            self._wake()

    def _answered(self) -> None:
        if self._silent_since is not None:
            now = time.time()
            self._happened(record_of(ControllerBack(at=now, after_s=now - self._silent_since)))
            self._silent_since = None

    def _show(self, status: ControllerStatus) -> None:
        now = time.monotonic()
        observe(self._rates, self._slots, status, now)
        shown = snapshot(status, self._rates, self._slots, now)
        graph = graph_view(status, self._slots, {each.id for each in shown.replicas if each.trouble})
        added = self._add_point(shown)
        if added or shown != self.shown or graph != self.graph:
            self.shown = shown
            self.graph = self.graph if graph == self.graph else graph
            self._wake()

    def _add_point(self, shown: Shown | None) -> bool:
        now = time.monotonic()
        if now < self._point_at:
            return False
        self._point_at = max(self._point_at, now - POINT_S) + POINT_S
        at = round(time.time(), 2)
        self.series.add(Point(at=at) if shown is None else point(shown.totals, at))
        return True

    def _wake(self) -> None:
        self.version += 1
        self._changed.set()
        self._changed = asyncio.Event()
