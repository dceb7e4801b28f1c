"""The processes that a host process has forked: started, ended, read to their last lines, reaped and started again."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from typing import NoReturn

from ...process.child import WorkerProcess
from ...process.logs.output import ProcessOutput
from ...process.orphan_guard import OrphanGuard
from ...process.spawn.child_start import ChildStart
from ...process.spawn.forking import start_forked
from ...process.spawn.worker_program import Inheritance
from ...wire.descriptors import is_scarcity
from ...wire.progress import ProgressThread, Timer
from ...wire.seldom import Seldom
from ...world.restarts import Restarts
from ...world.stopped import StoppedTime
from ..member.exit_status import IN_VAIN, Ending, starts_again
from ..replica.black_box import BlackBox, carry
from .member_process import become_member
from .order import Order
from .output import Outputs

__all__ = ["Members"]

logger = logging.getLogger(__name__)

FIRST_RETRY_S, LAST_RETRY_S = 0.1, 2.0  # of a start for which there are no descriptors, memory or processes left
SCARCE_S = 10.0  # then whoever ordered it may look for another host
ENDING_SIGNALS = (signal.SIGTERM, signal.SIGINT)
LOOK_S = 5.0
STOPPED_S = 30.0  # long enough for a look at it with a debugger


class Members:
    """All members of this host, by name. Callbacks: ``on_started`` after a restart, ``on_exit`` after each end.

    ``abandon`` is called in a forked child, and closes what else the host process has open.
    """

    def __init__(
        self,
        loop: ProgressThread,
        outputs: Outputs,
        inheritance: Inheritance,
        *,
        abandon: Callable[[], None],
        on_started: Callable[[str, int], None],
        on_exit: Callable[[str, int, Ending], None],
        look_s: float = LOOK_S,
        stopped_limit_s: float = STOPPED_S,
    ) -> None:
        self._loop, self._outputs, self._inheritance, self._abandon = loop, outputs, inheritance, abandon
        self._on_started, self._on_exit = on_started, on_exit
        self._running: dict[str, _Member] = {}
        self._waiting: dict[str, Timer] = {}  # those that will be started, for the first time or again
        self._restarts: dict[str, Restarts] = {}
        self._is_ending = False
        self._guard = OrphanGuard(loop)
        self._guard.begin()
        self._say_scarce = Seldom(logger.warning)
        self._look_s, self._stopped_limit_s = look_s, stopped_limit_s
        self._looked_at = time.monotonic()
        self._loop.call_later(look_s, self._look)

    @property
    def pids(self) -> dict[str, int]:
        return {name: member.process.pid for name, member in self._running.items()}

    @property
    def jobs(self) -> set[str]:
        """Of those that run: which deployments they belong to."""
        arguments = (member.order.arguments for member in self._running.values())
        return {str(each["job"]) for each in arguments if "job" in each}

    @property
    def phases(self) -> set[int]:
        """Of those that run."""
        return {member.order.phase for member in self._running.values()}

    def start(self, order: Order, on_up: Callable[[int], None], on_failed: Callable[[OSError], None]) -> None:
        """Fork the process. ``on_up`` gets its pid once it is one that ends with this process.

        ``on_failed`` gets why it cannot be started. Where descriptors, memory or processes ran out it is tried again
        for ten seconds first. Raises ValueError if the name is taken.
        """
        if order.member in self._running:
            raise ValueError(f"{order.member} runs already, as process {self._running[order.member].process.pid}")
        if self._is_ending:
            raise ValueError(f"{order.member} is not started: this host is about to end")
        waiting = self._waiting.pop(order.member, None)
        if waiting is not None:
            waiting.cancel()
        self._restarts.pop(order.member, None)
        self._try(order, on_up, on_failed, until=time.monotonic() + SCARCE_S, retry_s=FIRST_RETRY_S)

    def _try(
        self,
        order: Order,
        on_up: Callable[[int], None],
        on_failed: Callable[[OSError], None],
        *,
        until: float,
        retry_s: float,
    ) -> None:
        self._waiting.pop(order.member, None)
        try:
            self._fork(order, on_up)
        except OSError as error:
            if not is_scarcity(error) or time.monotonic() >= until:
                on_failed(error)
                return
            self._say_waits(order.member, retry_s, error)
            again = partial(self._try, order, on_up, on_failed, until=until, retry_s=min(2 * retry_s, LAST_RETRY_S))
            self._waiting[order.member] = self._loop.call_later(retry_s, again)

    def _say_waits(self, name: str, retry_s: float, error: OSError) -> None:
        self._say_scarce("%s cannot be started now, and is tried again in %.1f s: %s", name, retry_s, error)

    def kill(self, name: str) -> None:
        """With all in its process group. It is not started again."""
        self._release(name)
        self.signal(name, signal.SIGKILL)
        if name in self._running:
            self._running[name].process.kill()

    def signal(self, name: str, signum: int) -> None:
        """Who is told to end is not started again; a kept one that is killed is."""
        if signum in ENDING_SIGNALS:
            self._release(name)
        if name in self._running:
            self._running[name].send(signum)

    def of_phase(self, phase: int) -> list[str]:
        return [name for name, member in self._running.items() if member.order.phase == phase]

    def end(self) -> None:
        """Start nothing any more."""
        self._is_ending = True
        for name in list(self._waiting):
            self._release(name)

    def kill_all(self) -> None:
        self.end()
        self.clear()

    def close(self) -> None:
        """Kill all, and what they leave behind. Bounded."""
        self.kill_all()
        self._guard.close()

    def clear(self) -> None:
        """Kill those that run; others may be started after them."""
        for name in [*self._waiting, *self._running]:
            self.kill(name)

    def _look(self) -> None:
        """End a kept member that has been stopped for long: nobody else would, and it is started again.

        Those that are not kept are their controller's to judge.
        """
        before, now = self._looked_at, time.monotonic()
        self._looked_at = now
        self._loop.call_later(self._look_s, self._look)
        for member in self._running.values():
            if now - before > 2 * self._look_s:
                member.stopped.forget()
            if member.is_kept and member.stopped.look(now) >= self._stopped_limit_s:
                logger.warning("%s has been stopped for %g s; it is killed", member.order.member, self._stopped_limit_s)
                member.send(signal.SIGKILL)

    def _release(self, name: str) -> None:
        waiting = self._waiting.pop(name, None)
        if waiting is not None:
            waiting.cancel()
        if name in self._running:
            self._running[name].is_kept = False

    def _fork(self, order: Order, on_up: Callable[[int], None]) -> None:
        output = self._outputs.open(order.member)
        try:
            box = BlackBox()
            up = ChildStart(self._loop)
        except OSError:
            output.started()
            output.give_up()
            raise
        try:
            pid = start_forked(partial(self._become, order, output, up, box))
        except OSError:
            up.give_up()
            output.give_up()
            box.close()
            raise
        finally:
            output.started()
        try:
            member = _Member(self._loop, order, pid, output, up, box, on_exit=self._ended)
        except OSError:  # no descriptor to watch it with
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            up.give_up()
            output.give_up()
            box.close()
            raise
        up.forked(partial(on_up, pid))
        self._running[order.member] = member
        self._guard.watch(pid)

    def _become(self, order: Order, output: ProcessOutput, up: ChildStart, box: BlackBox) -> NoReturn:
        """In the child."""
        for member in self._running.values():
            member.box.close()
        self._guard.close_descriptors()
        carry(box)
        self._abandon()
        become_member(order, self._inheritance, output.stdout_fd, output.stderr_fd, up.announce)

    def _ended(self, member: _Member, returncode: int) -> None:
        member.up.finish()  # that it was started is told before its end
        ending = member.examine(returncode)
        last_lines = ending.last_lines
        name = member.order.member
        del self._running[name]
        if member.is_kept and returncode == IN_VAIN:
            reason = last_lines[-1] if last_lines else "it did not say why"
            logger.error("%s cannot run on this host, and is not started again: %s", name, reason)
        elif member.is_kept and starts_again(returncode) and not self._is_ending:
            restarts = self._restarts.setdefault(name, Restarts())
            delay_s = restarts.ended(time.monotonic() - member.started_at)
            logger.warning("%s ended with %d; it is started again in %.1f s", name, returncode, delay_s)
            again = partial(self._start_again, member.order, FIRST_RETRY_S)
            self._waiting[name] = self._loop.call_later(delay_s, again)
        self._on_exit(name, member.process.pid, ending)

    def _start_again(self, order: Order, retry_s: float) -> None:
        del self._waiting[order.member]
        try:
            self._fork(order, partial(self._on_started, order.member))
        except OSError as error:  # no process, descriptor or memory just now: that is no end of its own
            self._say_waits(order.member, retry_s, error)
            again = partial(self._start_again, order, min(2 * retry_s, LAST_RETRY_S))
            self._waiting[order.member] = self._loop.call_later(retry_s, again)


class _Member:
    """One process that runs."""

    def __init__(
        self,
        loop: ProgressThread,
        order: Order,
        pid: int,
        output: ProcessOutput,
        up: ChildStart,
        box: BlackBox,
        *,
        on_exit: Callable[[_Member, int], None],
    ) -> None:
        self.process = WorkerProcess(loop, pid, partial(on_exit, self))
        self.order, self.output, self.up, self.box = order, output, up, box
        self.is_kept = order.keep
        self.started_at = time.monotonic()
        self.stopped = StoppedTime(pid)

    def send(self, signum: int) -> None:
        """Signal the process alone, which may lead no group yet."""
        os.kill(self.process.pid, signum)  # it is not reaped yet, so nobody else has this number

    def examine(self, returncode: int) -> Ending:
        """After its end."""
        self.output.give_up()
        executing = self.box.read()
        self.box.close()
        known = None if executing is None else [id_.hex() for id_ in executing]
        return Ending(returncode, self.output.last_lines(), known)
