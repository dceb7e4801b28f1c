"""The controller's handle on one host process: what is to be started, signalled and killed there, and what ended."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import DeploymentError, HostExhaustedError
from ..member.exit_status import Ending
from .order import Order
from .recent_lines import LinesTold

__all__ = ["Host"]

logger = logging.getLogger(__name__)

START_S = 30.0
LINES_S = 5.0
STOP_MARGIN_S = 8.0  # beyond the grace: members that do not listen are killed, each phase has its own limit


class Host:
    """One connection of a host process. After a loss the same process comes back as another handle, with its members.

    On the event loop only. Set the callbacks in ``on_host``: nothing is told before.
    """

    def __init__(
        self, hello: Mapping[str, Any], send: Callable[[Mapping[str, Any]], None], drop: Callable[[], None]
    ) -> None:
        self.name, self.address, self.pid = str(hello["host"]), str(hello["address"]), int(hello["pid"])
        self.capacity = int(hello["capacity"])
        """The number of processors."""
        self.warnings: list[str] = list(hello.get("warnings", ()))
        """What could not be preloaded there, and why."""
        self.members: dict[str, int] = dict(hello["members"])
        """The pid of each member that runs."""
        self.is_stopping = bool(hello.get("stopping", False))
        """Whether it has begun to have its members end."""
        self.jobs: list[str] = list(hello.get("jobs", ()))
        """Which deployments they belong to."""
        self.process_space = str(hello.get("process_space", ""))
        """Where its pids mean something."""
        self.is_lost = False
        self.on_exit: Callable[[str, Ending], None] | None = None
        """Called with the member, and how it ended."""
        self.on_started: Callable[[str, int], None] | None = None
        """Called with the member and its pid when a kept member was started again."""
        self.on_stopping: Callable[[], None] | None = None
        """Called once, when it begins to have its members end, whoever told it to."""
        self.on_lost: Callable[[], None] | None = None
        """Called once, when the connection is lost. Its members may go on."""
        self._send, self._drop = send, drop
        self._numbers = itertools.count(1)
        self._pending: dict[int, asyncio.Future[int]] = {}
        self._asked: dict[int, asyncio.Future[LinesTold | None]] = {}
        self._gone = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Host {self.name} at {self.address}, pid {self.pid}: {len(self.members)} members>"

    async def start(self, order: Order | Mapping[str, Any], *, timeout_s: float = START_S) -> int:
        """Start a process, and return its pid.

        Raises DeploymentError if it cannot be started there (HostExhaustedError: now); ConnectionError if the host is
        lost, and TimeoutError if it does not answer: whether the process runs is then told when the host comes back.
        """
        if not isinstance(order, Order):
            order = Order.from_fields(order)
        number = next(self._numbers)
        answer = self._pending[number] = asyncio.get_running_loop().create_future()
        try:
            self._order({"do": "start", "id": number, "order": order.to_fields()})
            return await asyncio.wait_for(answer, timeout_s)
        except asyncio.TimeoutError:
            raise TimeoutError(f"host {self.name} did not start {order.member} within {timeout_s:g} s") from None
        finally:
            self._pending.pop(number, None)

    async def lines(self, member: str, *, since: int | None, last: int) -> LinesTold | None:
        """Return what a member wrote after its first ``since`` lines, or its ``last`` lines; None if unknown.

        Raises ConnectionError if the host is lost, and TimeoutError if it does not answer.
        """
        number = next(self._numbers)
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            self._order({"do": "lines", "id": number, "member": member, "since": since, "last": last})
            return await asyncio.wait_for(answer, LINES_S)
        except asyncio.TimeoutError:
            raise TimeoutError(f"host {self.name} did not tell the lines of {member} within {LINES_S:g} s") from None
        finally:
            self._asked.pop(number, None)

    def kill(self, member: str) -> None:
        """Kill the member and its process group. A kept one is not started again. One that is not there is ignored."""
        self._tell({"do": "kill", "member": member})

    def signal(self, member: str, signum: int) -> None:
        """Send a signal to the member alone. After a SIGTERM or SIGINT a kept one that ends is not started again."""
        self._tell({"do": "signal", "member": member, "signum": int(signum)})

    def ask_to_stop(self, grace_s: float) -> None:
        """As ``stop``, without waiting for the end."""
        self._tell({"do": "stop", "grace_s": grace_s})

    async def stop(self, grace_s: float = 10.0) -> None:
        """Have all its members end, and the host process. Returns when that has ended; the time is bounded."""
        self.ask_to_stop(grace_s)
        try:
            await asyncio.wait_for(self._gone.wait(), grace_s + STOP_MARGIN_S)
        except asyncio.TimeoutError:
            logger.warning("host %s did not end within %g s", self.name, grace_s + STOP_MARGIN_S)
            self._drop()

    def take(self, event: Mapping[str, Any]) -> None:
        """Of the reception only: what the host process says."""
        kind = event.get("event")
        if kind == "started":
            self._take_started(event)
        elif kind == "failed":
            kind_of_error = HostExhaustedError if event.get("scarce") else DeploymentError
            self._settle(event.get("id"), kind_of_error(f"host {self.name}: {event['error']}"))
        elif kind == "lines":
            asked = self._asked.get(event["id"])
            if asked is not None and not asked.done():
                told = event["told"]
                asked.set_result(None if told is None else LinesTold.from_json(told))
        elif kind == "stopping":
            self.is_stopping = True
            if self.on_stopping is not None:
                self.on_stopping()
        elif kind == "exited":
            self.members.pop(event["member"], None)
            if self.on_exit is not None:
                ending = Ending(event["returncode"], list(event["last_lines"]), event.get("executing"))
                self.on_exit(event["member"], ending)

    def lose(self) -> None:
        """Of the reception only. Idempotent."""
        if self.is_lost:
            return
        self.is_lost = True
        self._gone.set()
        for number in list(self._pending):
            self._settle(number, ConnectionResetError(f"host {self.name} was lost"))
        for asked in self._asked.values():
            if not asked.done():
                asked.set_exception(ConnectionResetError(f"host {self.name} was lost"))
        if self.on_lost is not None:
            self.on_lost()

    def _take_started(self, event: Mapping[str, Any]) -> None:
        member, pid = event["member"], event["pid"]
        self.members[member] = pid
        if "id" in event:
            self._settle(event["id"], pid)
        elif self.on_started is not None:
            self.on_started(member, pid)

    def _settle(self, number: object, result: int | Exception) -> None:
        answer = self._pending.get(number) if isinstance(number, int) else None
        if answer is None or answer.done():
            return
        if isinstance(result, Exception):
            answer.set_exception(result)
        else:
            answer.set_result(result)

    def _order(self, record: Mapping[str, Any]) -> None:
        if self.is_lost:
            raise ConnectionResetError(f"host {self.name} was lost")
        self._send(record)

    def _tell(self, record: Mapping[str, Any]) -> None:
        if not self.is_lost:
            self._send(record)
