"""Watches one deployment for all who look at it, and remembers the last minutes."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ...errors import MultiworldError
from .graph_view import graph_view
from .series import Point, Rates, Series
from .slots import Slots
from .snapshot import observe, point, snapshot
from .source import StatusSource
from .stories import Story, tell

__all__ = ["SOURCE_S", "Recorder"]

logger = logging.getLogger(__name__)

LOOK_S, IDLE_LOOK_S = 0.25, 1.0
POINT_S = 1.0
SOURCE_S = 3.0  # for the controller to answer
MAX_STORIES = 500
LAST_LINES = 50


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
        self.shown: dict[str, Any] | None = None
        """The snapshot; None before the first."""
        self.graph: dict[str, Any] | None = None
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

    def stories(self, since: int = 0) -> list[dict[str, Any]]:
        """Return what happened after the first ``since`` stories, with their numbers."""
        first = self.num_stories - len(self._stories)
        return [
            {"number": number, **asdict(story)}
            for number, story in enumerate(self._stories, first + 1)
            if number > since
        ]

    def data(self) -> dict[str, Any]:
        """Return all that there is, as JSON."""
        return {
            "run": self.run,
            "snapshot": self.shown,
            "graph": self.graph,
            "series": {"number": self.series.num_seen, "points": self.series.since(0)},
            "events": self.stories(),
        }

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
        except (MultiworldError, OSError) as error:
            self._silent(str(error) or type(error).__name__)
        else:
            self._take(status, events)

    def _take(self, status: Mapping[str, Any], events: Sequence[Mapping[str, Any]]) -> None:
        for event in events:
            self._last_at = max(self._last_at, event["at"])
            self._happened(event)
        try:
            self._show(status)
        except (KeyError, TypeError, ValueError) as error:  # of a controller of another version
            self._silent(f"what it says is not understood: {error!r}")
        else:
            self._answered()

    async def _ask(self) -> tuple[Mapping[str, Any], list[dict[str, Any]]]:
        status = await self._source.status()
        count = int(status["num_events"])
        if count < self._num_events or self._silent_since is not None:  # it may be another one, which counts anew
            events = [event for event in await self._source.events(0) if event["at"] > self._last_at]
        elif count > self._num_events:
            events = await self._source.events(self._num_events)
        else:
            events = []
        self._num_events = max([count, *(event["number"] for event in events)])
        return status, events

    def _happened(self, event: Mapping[str, Any]) -> None:
        self._stories.append(tell(event))
        self.num_stories += 1

    def _silent(self, why: str) -> None:
        if self._silent_since is None:
            self._silent_since = time.time()
            self._happened({"kind": "ControllerSilent", "at": self._silent_since, "why": why})
        silent = {"since": self._silent_since, "why": why}
        is_new = self.shown is not None and self.shown["silent"] != silent
        if self.shown is not None and is_new:
            self.shown = {**self.shown, "silent": silent}
        if self._add_point(None) or is_new:
            self._wake()

    def _answered(self) -> None:
        if self._silent_since is not None:
            now = time.time()
            self._happened({"kind": "ControllerBack", "at": now, "after_s": now - self._silent_since})
            self._silent_since = None

    def _show(self, status: Mapping[str, Any]) -> None:
        now = time.monotonic()
        observe(self._rates, self._slots, status, now)
        shown = {**snapshot(status, self._rates, self._slots, now), "silent": None}
        graph = graph_view(status, self._slots, {each["id"] for each in shown["replicas"] if each["trouble"]})
        added = self._add_point(shown)
        if added or shown != self.shown or graph != self.graph:
            self.shown = shown
            self.graph = self.graph if graph == self.graph else graph
            self._wake()

    def _add_point(self, shown: Mapping[str, Any] | None) -> bool:
        now = time.monotonic()
        if now < self._point_at:
            return False
        self._point_at = max(self._point_at, now - POINT_S) + POINT_S
        at = round(time.time(), 2)
        self.series.add(Point(at=at) if shown is None else point(shown, at))
        return True

    def _wake(self) -> None:
        self.version += 1
        self._changed.set()
        self._changed = asyncio.Event()
