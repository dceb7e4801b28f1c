"""The processes of a host that its fork server has started: watched, read to their end, reaped and started again."""

from __future__ import annotations

import json
import logging
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from math import inf

from ...process.child import WorkerProcess
from ...process.logs.output import ProcessOutput
from ...process.orphan_guard import OrphanGuard
from ...process.spawn.entrypoint import Entrypoint, EntrypointKind
from ...process.spawn.fork_server import ForkServer, Launch
from ...process.spawn.forking import WAITED_FOR
from ...process.spawn.keeper import ForkServerKeeper
from ...wire.backoff import BackOff
from ...wire.descriptors import is_scarcity
from ...wire.progress.thread import ProgressThread, Timer
from ...wire.rate_limited_log import RateLimitedLog
from ...world.processes.restarts import Restarts
from ...world.processes.vitals import StoppedTime
from ..member.exit_status import IN_VAIN, Ending, starts_again
from ..replica.black_box import BlackBox
from .logs.output import Outputs
from .order import Order

logger = logging.getLogger(__name__)

SET_UP = "multiworld.serving.hosts.member_process:set_up"
FIRST_RETRY_S, LAST_RETRY_S = 0.1, 2.0  # of a start for which there are no descriptors, memory or processes left
SCARCE_S = 10.0  # then whoever ordered it may look for another host
ENDING_SIGNALS = (signal.SIGTERM, signal.SIGINT)
LOOK_S = 5.0
STOPPED_S = 30.0  # long enough for a look at it with a debugger


class Members:
    """All members of this host, by name. Callbacks: ``on_started`` after a restart, ``on_exit`` after each end.

    ``start_server`` makes another fork server when one was lost. ``close`` ends them.
    """

    def __init__(
        self,
        loop: ProgressThread,
        outputs: Outputs,
        server: ForkServer,
        start_server: Callable[[], ForkServer],
        *,
        on_started: Callable[[str, int], None],
        on_exit: Callable[[str, int, Ending], None],
        look_s: float = LOOK_S,
        stopped_limit_s: float = STOPPED_S,
    ) -> None:
        self._loop, self._outputs = loop, outputs
        self._on_started, self._on_exit = on_started, on_exit
        self._running: dict[str, _Member] = {}
        self._starts: dict[str, _Start] = {}  # of those that do not run
        self._restarts: dict[str, Restarts] = {}
        self._when_settled: list[Callable[[], None]] = []
        self._is_ending = False
        self._guard = OrphanGuard(loop)
        self._guard.begin()
        self._servers = ForkServerKeeper(
            loop, server, start_server, running=lambda: self.pids.values(), on_forked=self._guard.watch
        )
        self._say_scarce = RateLimitedLog(logger.warning)
        self._look_s, self._stopped_limit_s = look_s, stopped_limit_s
        self._looked_at = time.monotonic()
        self._loop.call_later(look_s, self._look)

    @property
    def pids(self) -> dict[str, int]:
        return {name: member.process.pid for name, member in self._running.items()}

    @property
    def jobs(self) -> set[str]:
        """Which deployments they belong to."""
        orders = [member.order for member in self._running.values()]
        orders += [start.order for start in self._starts.values()]
        return {str(order.arguments["job"]) for order in orders if "job" in order.arguments}

    @property
    def phases(self) -> set[int]:
        """Of those that run."""
        return {member.order.phase for member in self._running.values()}

    def when_settled(self, callback: Callable[[], None]) -> None:
        """Call back, now or soon, when no start is under way: ``pids`` lacks none then that is there at once."""
        self._when_settled.append(callback)
        self._settle()

    def start(self, order: Order, on_up: Callable[[int], None], on_failed: Callable[[OSError], None]) -> None:
        """Start the process. ``on_up`` gets its pid once it is one that ends with this process.

        ``on_failed`` gets why it cannot be started. Where descriptors, memory or processes ran out it is tried again
        for ten seconds first. Its name is taken from now on. Raises ValueError if that is another's.
        """
        name, before = order.member, self._starts.get(order.member)
        if name in self._running:
            raise ValueError(f"{name} runs already, as process {self._running[name].process.pid}")
        if before is not None and before.is_under_way:
            raise ValueError(f"{name} is being started already")
        if self._is_ending:
            raise ValueError(f"{name} is not started: this host is about to end")
        self._release(name)
        self._restarts.pop(name, None)
        self._try(_Start(order, on_up, on_failed, until=time.monotonic() + SCARCE_S))

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
        elif name in self._starts:
            self._starts[name].signals.append(signum)

    def of_phase(self, phase: int) -> list[str]:
        return [name for name, member in self._running.items() if member.order.phase == phase]

    def end(self) -> None:
        """Start nothing any more. What is being started now is killed when it runs."""
        self._is_ending = True
        for name in list(self._starts):
            self._release(name)

    def kill_all(self) -> None:
        self.end()
        self.clear()

    def close(self) -> None:
        """Kill all, and what they leave behind. Bounded."""
        self.kill_all()
        self._servers.close()
        self._guard.close()

    def clear(self) -> None:
        """Kill those that run, or are about to; others may be started after them."""
        for name in [*self._starts, *self._running]:
            self.kill(name)

    def _look(self) -> None:
        """End a kept member that has been stopped for long: nobody else would, and it is started again.

        Those that are not kept are their controller's to judge.
        """
        before, now = self._looked_at, time.monotonic()
        self._looked_at = now
        self._loop.call_later(self._look_s, self._look)
        self._servers.look(now, self._stopped_limit_s)
        for member in self._running.values():
            if now - before > 2 * self._look_s:
                member.stopped.forget()
            if member.is_kept and member.stopped.look(now) >= self._stopped_limit_s:
                logger.warning("%s has been stopped for %g s; it is killed", member.order.member, self._stopped_limit_s)
                member.send(signal.SIGKILL)

    def _release(self, name: str) -> None:
        """It is not started again. Who waited for another try hears nothing more of it."""
        if name in self._running:
            self._running[name].is_kept = False
        elif name in self._starts:
            start = self._starts[name]
            start.is_kept = False
            if start.timer is not None:
                start.timer.cancel()
                del self._starts[name]

    def _try(self, start: _Start) -> None:
        launch = _launch(start.order)
        start.timer = None
        self._starts[start.order.member] = start
        try:
            output = self._outputs.open(start.order.member)
        except OSError as error:
            self._not_started(start, error)
            return
        try:
            box, descriptor = BlackBox.create()
        except OSError as error:
            output.started()
            output.give_up()
            self._not_started(start, error)
            return
        self._servers.spawn(
            lambda server, told: server.spawn(launch, output.stdout_fd, output.stderr_fd, told, passed=(descriptor,)),
            partial(self._answered, start, output, box, descriptor),
        )

    def _answered(
        self, start: _Start, output: ProcessOutput, box: BlackBox, descriptor: int, answer: int | OSError
    ) -> None:
        os.close(descriptor)
        output.started()
        if isinstance(answer, int):
            try:
                member = _Member(self._loop, start, answer, output, box, on_exit=self._ended)
            except OSError as error:  # no descriptor to watch it with
                os.kill(answer, signal.SIGKILL)
                os.waitpid(answer, 0)
                WAITED_FOR.discard(answer)
                answer = error
            else:
                self._runs(start, member)
                return
        output.give_up()
        box.close()
        self._not_started(start, answer)

    def _runs(self, start: _Start, member: _Member) -> None:
        name = start.order.member
        del self._starts[name]
        self._running[name] = member
        start.on_up(member.process.pid)
        if self._is_ending:
            self.kill(name)
        for signum in start.signals:
            member.send(signum)
        self._settle()

    def _not_started(self, start: _Start, error: OSError) -> None:
        name, is_wanted = start.order.member, not self._is_ending and signal.SIGKILL not in start.signals
        if is_wanted and time.monotonic() < start.until and (start.is_again or is_scarcity(error)):
            retry_s = start.retries.next_s()
            self._say_scarce("%s cannot be started now, and is tried again in %.1f s: %s", name, retry_s, error)
            start.timer = self._loop.call_later(retry_s, partial(self._try, start))
        else:
            del self._starts[name]
            start.on_failed(error)
        self._settle()

    def _settle(self) -> None:
        while self._when_settled and not any(start.is_under_way for start in self._starts.values()):
            self._when_settled.pop(0)()

    def _ended(self, member: _Member, returncode: int) -> None:
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
            again = _Start(member.order, partial(self._on_started, name), _nothing)
            if delay_s > 0:
                again.timer = self._loop.call_later(delay_s, partial(self._try, again))
                self._starts[name] = again
            else:
                self._try(again)
        self._on_exit(name, member.process.pid, ending)


@dataclass
class _Start:
    """A member that is to run, and does not yet."""

    order: Order
    on_up: Callable[[int], None]
    on_failed: Callable[[OSError], None]
    until: float = inf
    """When it is given up. One that is started again is not: what prevents that is no end of its own."""
    timer: Timer | None = None
    """Until it is tried; None while that is under way."""
    signals: list[int] = field(default_factory=list)
    """What it was sent while it had no process that could take it."""
    is_kept: bool = False
    retries: BackOff = field(default_factory=partial(BackOff, FIRST_RETRY_S, LAST_RETRY_S))

    def __post_init__(self) -> None:
        self.is_kept = self.order.keep

    @property
    def is_under_way(self) -> bool:
        return self.timer is None

    @property
    def is_again(self) -> bool:
        return self.until == inf


class _Member:
    """One process that runs."""

    def __init__(
        self,
        loop: ProgressThread,
        start: _Start,
        pid: int,
        output: ProcessOutput,
        box: BlackBox,
        *,
        on_exit: Callable[[_Member, int], None],
    ) -> None:
        self.process = WorkerProcess(loop, pid, partial(on_exit, self))
        self.order, self.is_kept, self._output, self._box = start.order, start.is_kept, output, box
        self.started_at = time.monotonic()
        self.stopped = StoppedTime(pid)

    def send(self, signum: int) -> None:
        """Signal the process alone."""
        os.kill(self.process.pid, signum)  # it is not reaped yet, so nobody else has this number

    def examine(self, returncode: int) -> Ending:
        """After its end."""
        self._output.give_up()
        executing = self._box.read()
        self._box.close()
        known = None if executing is None else [id_.hex() for id_ in executing]
        return Ending(returncode, self._output.last_lines(), known)


def _launch(order: Order) -> Launch:
    """Raises TypeError or ValueError if the arguments are not JSON."""
    return Launch(
        entrypoint=Entrypoint(kind=EntrypointKind.FUNCTION, target=order.program, named=order.member),
        arguments=(json.dumps(dict(order.arguments)),),
        env={**os.environ, "OMP_NUM_THREADS": str(order.threads), **order.env},
        cwd=None,
        warm=True,
        reads_stdin=False,
        set_up=SET_UP,
    )


def _nothing(error: OSError) -> None: ...
