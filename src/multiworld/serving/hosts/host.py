"""The controller's handle on one host process: what is to be started, signalled and killed there, and what ended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from ...process.link import CallRefusedError, ControlLink, LinkLostError
from ...wire.progress.operation import Operation, pass_on
from ...wire.progress.waiting import wait_async
from ..errors import DeploymentError, HostExhaustedError
from ..graces import GRACE_S
from ..member.exit_status import Ending
from . import messages
from .logs.recent_lines import LinesTold
from .order import Order

logger = logging.getLogger(__name__)

START_S = 30.0
LINES_S = 5.0
STOP_MARGIN_S = 8.0  # beyond the grace: members that do not listen are killed, each phase has its own limit

A = TypeVar("A")


class Host:
    """One connection of a host process. After a loss the same process comes back as another handle, with its members.

    On the event loop only. Set the callbacks in ``on_host``: nothing is told before.
    """

    def __init__(
        self, hello: messages.Hello, link: ControlLink[messages.HostOrder, messages.HostEvent], generation: int = 0
    ) -> None:
        self.name, self.address, self.pid = hello.host, hello.address, hello.pid
        self.capacity = hello.capacity
        """The number of processors."""
        self.warnings = list(hello.warnings)
        """What could not be preloaded there, and why."""
        self.members = dict(hello.members)
        """The pid of each member that runs."""
        self.is_stopping = hello.stopping
        """Whether it has begun to have its members end."""
        self.jobs = list(hello.jobs)
        """Which deployments they belong to."""
        self.process_space = hello.process_space
        """Where its pids mean something."""
        self.generation = generation
        """Of its connections, which this is."""
        self.is_lost = False
        self.on_exit: Callable[[str, Ending], None] | None = None
        """Called with the member, and how it ended."""
        self.on_started: Callable[[str, int], None] | None = None
        """Called with the member and its pid when a kept member was started again."""
        self.on_stopping: Callable[[], None] | None = None
        """Called once, when it begins to have its members end, whoever told it to."""
        self.on_lost: Callable[[], None] | None = None
        """Called once, when the connection is lost. Its members may go on."""
        self._link = link
        self._gone = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Host {self.name} at {self.address}, pid {self.pid}: {len(self.members)} members>"

    async def start(self, order: Order, *, timeout_s: float = START_S) -> int:
        """Start a process, and return its pid.

        Raises DeploymentError if it cannot be started there (HostExhaustedError: now); ConnectionError if the host is
        lost, and TimeoutError if it does not answer: whether the process runs is then told when the host comes back.
        """
        starting = self._link.ask(messages.Start(order=order), messages.Started)
        starting.add_callback(partial(self._start_ended, order.member))  # also when nobody waits any more
        try:
            return (await self._answer(starting, timeout_s)).pid
        except asyncio.TimeoutError:
            raise TimeoutError(f"host {self.name} did not start {order.member} within {timeout_s:g} s") from None
        except CallRefusedError as error:
            kind = HostExhaustedError if error.kind == HostExhaustedError.__name__ else DeploymentError
            raise kind(f"host {self.name}: {error.reason}") from None

    async def lines(self, member: str, *, since: int | None, last: int) -> LinesTold | None:
        """Return what a member wrote after its first ``since`` lines, or its ``last`` lines; None if unknown.

        Raises ConnectionError if the host is lost, and TimeoutError if it does not answer.
        """
        asked = self._link.ask(messages.LinesOf(member=member, since=since, last=last), messages.LinesFound)
        try:
            return (await self._answer(asked, LINES_S)).told
        except asyncio.TimeoutError:
            raise TimeoutError(f"host {self.name} did not tell the lines of {member} within {LINES_S:g} s") from None

    def kill(self, member: str) -> None:
        """Kill the member and its process group. A kept one is not started again. One that is not there is ignored."""
        self._link.tell(messages.Kill(member=member))

    def signal(self, member: str, signum: int) -> None:
        """Send a signal to the member alone. After a SIGTERM or SIGINT a kept one that ends is not started again."""
        self._link.tell(messages.Signal(member=member, signum=int(signum)))

    def ask_to_stop(self, grace_s: float) -> None:
        """As ``stop``, without waiting for the end."""
        self._link.tell(messages.Stop(grace_s=float(grace_s)))

    async def stop(self, grace_s: float = GRACE_S) -> None:
        """Have all its members end, and the host process. Returns when that has ended; the time is bounded."""
        self.ask_to_stop(grace_s)
        try:
            await asyncio.wait_for(self._gone.wait(), grace_s + STOP_MARGIN_S)
        except asyncio.TimeoutError:
            logger.warning("host %s did not end within %g s", self.name, grace_s + STOP_MARGIN_S)
            self._link.abort()

    def take(self, event: messages.HostEvent) -> None:
        """Of the reception only: what the host process says."""
        if isinstance(event, messages.Restarted):
            self.members[event.member] = event.pid
            if self.on_started is not None:
                self.on_started(event.member, event.pid)
        elif isinstance(event, messages.Stopping):
            self.is_stopping = True
            if self.on_stopping is not None:
                self.on_stopping()
        elif isinstance(event, messages.Exited):
            self.members.pop(event.member, None)
            if self.on_exit is not None:
                executing = None if event.executing is None else list(event.executing)
                self.on_exit(event.member, Ending(event.returncode, list(event.last_lines), executing))

    def lose(self) -> None:
        """Of the reception only. Idempotent."""
        if self.is_lost:
            return
        self.is_lost = True
        self._link.abort()
        self._gone.set()
        if self.on_lost is not None:
            self.on_lost()

    def _start_ended(self, member: str, starting: Operation[messages.Started]) -> None:
        if starting.error is None:
            self.members[member] = starting.result().pid

    async def _answer(self, asked: Operation[A], timeout_s: float) -> A:
        answer: Operation[A] = Operation()
        pass_on(asked, answer)
        try:
            return await asyncio.wait_for(wait_async(answer), timeout_s)
        except LinkLostError:
            raise ConnectionResetError(f"host {self.name} was lost") from None
