"""A host process at work: it does what its controller, its owner and its signals tell it, until all has ended."""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from ...process.facts import process_space
from ...process.link import Call
from ...process.orphans import OrphanReaper, Reaping
from ...process.spawn.fork_server import ForkServer
from ...wire.descriptors import is_scarcity
from ...wire.progress.thread import ProgressThread, Timer
from ..errors import DeploymentError, HostExhaustedError
from ..member.exit_status import Ending
from . import messages
from .controller_link import ControllerLink
from .logs.host_log import logging_to
from .logs.output import Outputs
from .members import Members
from .options import HostOptions
from .order import FIRST, LAST, MIDDLE, Order
from .owner.line import OwnerLine, Ready
from .signals import Signals

logger = logging.getLogger(__name__)

LATER_GRACE_S = 2.0  # for those that have nothing to finish once the gateways have
LAST_WORDS_S = 1.0
ENDED_BY_FORCE = 130


class HostProcess:
    """``run`` returns the exit status: 0 after a graceful end."""

    def __init__(
        self,
        options: HostOptions,
        server: ForkServer,
        start_server: Callable[[], ForkServer],
        signals: Signals,
        reaping: Reaping,
        *,
        warnings: Sequence[str] = (),
        owner: socket.socket | None = None,
    ) -> None:
        self._options, self._signals, self._warnings = options, signals, list(warnings)
        self._loop = ProgressThread("multiworld-host", starts=False)
        self._reaper = OrphanReaper(self._loop, reaping)
        self._outputs = Outputs(self._loop, Path(options.log_dir) if options.log_dir else None)
        self._members = Members(
            self._loop, self._outputs, server, start_server, on_started=self._restarted, on_exit=self._exited
        )
        self._link = ControllerLink(
            self._loop,
            options.address,
            options.token,
            hello=self._hello,
            when_settled=self._members.when_settled,
            on_order=self._obey,
            on_refused=None if owner is not None or options.members else self._refused,  # else all ends with this host
            on_outdated=self._outdated,
        )
        self._owner = (
            None if owner is None else OwnerLine(self._loop, owner, on_stop=self._stop, on_lost=self._owner_lost)
        )
        self._owner_pidfd = _PidWatch(self._loop, options.owner_pid, self._owner_lost) if options.owner_pid else None
        self._grace_s = options.grace_s
        self._phase: int | None = None  # being ended
        self._drained_by = 0.0
        self._draining: Timer | None = None  # while the replicas are left to the controller
        self._finish_by = 0.0
        self._status = 0

    def run(self) -> int:
        self._signals.listen(self._loop, self._signalled)
        try:
            with logging_to(self._outputs):
                self._begin()
                self._loop.run()
        finally:
            self._members.close()
            self._link.close()
            self._outputs.close()
            self._loop.close()
            self._signals.close()
        return self._status

    def _begin(self) -> None:
        for warning in self._warnings:
            logger.warning("%s", warning)
        for order in self._options.members:
            self._start(order)
        self._members.when_settled(self._open)

    def _open(self) -> None:
        """Be there for the controller and the owner, once what this process starts by itself runs."""
        if self._phase is not None:
            return
        self._link.dial()
        if self._owner is not None:
            self._owner.say(Ready(pid=os.getpid(), warnings=tuple(self._warnings)))

    def _obey(self, order: messages.HostOrder, call: Call) -> None:
        if isinstance(order, messages.Start):
            self._start_for(order.order, call)
        elif isinstance(order, messages.Kill):
            self._members.kill(order.member)
        elif isinstance(order, messages.Signal):
            self._members.signal(order.member, order.signum)
        elif isinstance(order, messages.LinesOf):
            call.answer(messages.LinesFound(told=self._outputs.lines(order.member, since=order.since, last=order.last)))
        elif isinstance(order, messages.Stop):
            self._stop(order.grace_s)

    def _start(self, order: Order) -> None:
        """One of those that the host process starts by itself."""

        def failed(error: OSError) -> None:
            logger.error("%s cannot be started: %s", order.member, error)
            self._status = 1
            self._stop(0.0)

        self._members.start(order, partial(self._restarted, order.member), failed)

    def _start_for(self, order: Order, call: Call) -> None:
        def failed(error: Exception) -> None:
            kind = HostExhaustedError if is_scarcity(error) else DeploymentError
            call.refuse(str(error), kind.__name__)

        def started(pid: int) -> None:
            if not call.answer(messages.Started(pid=pid)):  # who ordered it may have gone
                self._restarted(order.member, pid)

        try:
            self._members.start(order.with_token(self._options.token), started, failed)
        except (TypeError, ValueError) as error:
            failed(error)

    def _hello(self, seen_from: str) -> messages.Hello:
        return messages.Hello(
            host=self._options.name,
            address=self._options.own_address or seen_from,
            pid=os.getpid(),
            capacity=len(os.sched_getaffinity(0)),
            members=self._members.pids,
            jobs=tuple(sorted(self._members.jobs)),
            warnings=tuple(self._warnings),
            stopping=self._phase is not None,
            process_space=process_space(),
        )

    def _restarted(self, member: str, pid: int) -> None:
        self._link.tell(messages.Restarted(member=member, pid=pid))

    def _exited(self, member: str, pid: int, ending: Ending) -> None:
        executing = None if ending.executing is None else tuple(ending.executing)
        last_lines = tuple(ending.last_lines)
        self._link.tell(
            messages.Exited(
                member=member, pid=pid, returncode=ending.returncode, last_lines=last_lines, executing=executing
            )
        )
        if self._phase is not None:
            self._end_next()

    def _signalled(self, signum: int) -> None:
        if self._phase is None:
            if self._link.is_up and LAST not in self._members.phases:
                self._drained_by = time.monotonic() + self._options.grace_s
            self._stop(self._options.grace_s)
        else:  # a second time: whoever sends it does not want to wait
            self._status = ENDED_BY_FORCE
            hurried = {FIRST, MIDDLE} & self._members.phases  # the controller tells other hosts that all ends
            for name in [name for phase in hurried for name in self._members.of_phase(phase)]:
                self._members.kill(name)
            if not hurried:
                self._members.kill_all()

    def _outdated(self) -> None:
        logger.warning("what runs here belongs to a deployment that is no more; it ends")
        self._members.clear()

    def _refused(self, reason: str) -> None:
        logger.error("giving up, as the controller never let this host in: %s", reason)
        self._status = 1
        self._stop(0.0)

    def _owner_lost(self) -> None:
        self._members.kill_all()
        self._loop.stop()

    def _stop(self, grace_s: float) -> None:
        """Ask phase after phase to end: gateways first, which finish what is open while the rest still works.

        Replicas that a controller elsewhere can replace are not asked for a while: it has each leave when it holds
        nothing any more. What they hold would be executed a second time otherwise.
        """
        if self._draining is not None:  # ordered: there is nothing left to wait for
            self._ask_to_end()
        elif self._phase is None:
            if self._owner is None and grace_s:  # else nobody sits before it
                has_gateways = FIRST in self._members.phases
                first = "open requests are answered" if has_gateways else "what is executed is finished"
                logger.warning("ending: %s first, for up to %g s", first, grace_s)
            self._grace_s, self._phase = grace_s, -1
            self._link.tells_absence = False
            self._members.end()
            self._link.tell(messages.Stopping())  # else the controller would replace those that end now
            self._loop.call_soon(self._end_next)

    def _end_next(self) -> None:
        phase = min(self._members.phases, default=None)
        if phase is None:
            self._finish_by = time.monotonic() + LAST_WORDS_S
            self._finish()
        elif phase != self._phase:
            self._phase = phase
            left_s = self._drained_by - time.monotonic()
            if phase == MIDDLE and left_s > 0:
                self._draining = self._loop.call_later(left_s, self._ask_to_end)
            else:
                self._ask_to_end()

    def _ask_to_end(self) -> None:
        """Signal those whose turn it is."""
        if self._draining is not None:
            self._draining.cancel()
            self._draining = None
        assert self._phase is not None
        grace_s = self._grace_s if self._phase == FIRST else min(self._grace_s, LATER_GRACE_S)
        self._signal_phase(self._phase, self._members.signal, signal.SIGTERM)
        self._loop.call_later(grace_s, partial(self._signal_phase, self._phase, self._kill))

    def _signal_phase(self, phase: int, send: Callable[..., None], *arguments: int) -> None:
        for name in self._members.of_phase(phase):
            send(name, *arguments)

    def _kill(self, name: str) -> None:
        logger.warning("%s does not end; it is killed", name)
        self._members.kill(name)

    def _finish(self) -> None:
        """End the loop once the last words are out, or nobody takes them."""
        if time.monotonic() < self._finish_by and (self._link.owes or self._outputs.owe):
            self._loop.call_later(0.01, self._finish)
        else:
            self._loop.stop()


class _PidWatch:
    """Calls back when a process that is no child of ours has ended."""

    def __init__(self, loop: ProgressThread, pid: int, on_end: Callable[[], None]) -> None:
        self._loop, self._on_end = loop, on_end
        try:
            self._fd = os.pidfd_open(pid)
        except ProcessLookupError:
            loop.call_soon(on_end)
        else:
            loop.register(self._fd, select.EPOLLIN, self)

    def on_ready(self, events: int) -> None:
        self._loop.unregister(self._fd)
        os.close(self._fd)
        self._on_end()

    def on_failure(self, error: BaseException) -> None:
        logger.error("the end of the owner was not dealt with: %s", error)

    def close_descriptor(self) -> None:
        os.close(self._fd)
