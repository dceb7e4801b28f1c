"""The fork server at work: it forks workers on request, and leaves no orphan behind.

It lives as long as its agent. What it forks becomes the agent's child, because the process between them ends at once
and the agent adopts orphans; so the agent learns how each worker ended, and this process need not live for that.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import socket
import time
import traceback
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import NoReturn

from ...world.processes.procfs import STOPPED, process_start_time, process_state
from . import messages, seqpacket
from .forking import fork
from .worker_program import Inheritance, Spare

PID_BYTES = 8
BECOME = b"become"  # with descriptors, of which the first holds the launch
LOOK_MS = 200
BATCH_SIZE = 8  # forked one after the other by one process; other batches meanwhile


@dataclass
class Order:
    """A worker that the agent wants."""

    number: int
    fds: list[int]


@dataclass
class ForkBatch:
    """Processes that are being forked: their pids will come, in this order, and their launches go into these."""

    channels: deque[socket.socket]


class ForkLoop:
    """Each process is forked as a spare, which waits to be told what it becomes. Most need not wait long."""

    def __init__(
        self, agent: socket.socket, inheritance: Inheritance, *, num_spares: int, stopped_limit_s: float | None = None
    ) -> None:
        """``stopped_limit_s``: how long the agent may be stopped before its workers are ended."""
        self._agent, self._inheritance, self._num_spares = agent, inheritance, num_spares
        self._stopped_limit_s, self._stopped_since = stopped_limit_s, inf
        self._agent_start_time = process_start_time(inheritance.agent_pid) or 0
        self._agent_pidfd = os.pidfd_open(inheritance.agent_pid)
        self._orders: deque[Order] = deque()
        self._announced = 0  # orders that are expected
        self._batches: dict[int, ForkBatch] = {}  # by the descriptor that tells the pids
        self._spares: dict[int, socket.socket] = {}  # by pid
        self._starting: dict[int, tuple[int, int, socket.socket]] = {}  # by descriptor: the order's number, pid
        self._workers: dict[int, int] = {}  # by pidfd: pid. Spares as well
        self._poll = select.poll()

    def run(self) -> NoReturn:
        for fd in (self._agent.fileno(), self._agent_pidfd):
            self._poll.register(fd, select.POLLIN)
        try:
            self._tell(messages.Ready())
            while True:
                self._supply()
                for fd, _ in self._poll.poll(None if self._stopped_limit_s is None else LOOK_MS):
                    self._handle(fd)
                self._look_at_agent()
        except BrokenPipeError:  # there is no agent to send to
            self._end()

    def _handle(self, fd: int) -> None:
        if fd == self._agent.fileno():
            received = seqpacket.receive(self._agent)
            if received is None:
                self._end()
            self._obey(messages.REQUESTS.decode(received[0]), received[1])
        elif fd == self._agent_pidfd:
            self._end()
        elif fd in self._batches:
            self._forked(fd)
        elif fd in self._starting:
            self._answer(fd)
        elif fd in self._workers:
            self._worker_ended(fd)

    def _look_at_agent(self) -> None:
        """A stopped agent cannot end its workers, whose places the others give away when they have waited for it."""
        if self._stopped_limit_s is None:
            return
        now = time.monotonic()
        if process_state(self._inheritance.agent_pid, self._agent_start_time) != STOPPED:
            self._stopped_since = inf
        else:
            self._stopped_since = min(self._stopped_since, now)
            if now - self._stopped_since > self._stopped_limit_s:
                self._kill_workers()

    def _tell(self, answer: messages.Answer) -> None:
        """Raises BrokenPipeError after the agent's end."""
        seqpacket.send(self._agent, messages.ANSWERS.encode(answer))

    def _obey(self, request: messages.Request, fds: list[int]) -> None:
        if isinstance(request, messages.Watch):
            try:
                self._watch(request.pids)
            except OSError as error:
                text = f"not all workers are killed should this agent be killed: they cannot be watched ({error})"
                self._tell(messages.Warned(text=text))
        elif isinstance(request, messages.Prepare):
            self._announced = request.num_workers
        else:
            self._orders.append(Order(request.number, fds))
            self._announced = max(0, self._announced - 1)
            if len(fds) < request.num_fds:  # there was no room for the others in this process
                self._refuse(self._orders.pop(), OSError(errno.EMFILE, os.strerror(errno.EMFILE)))

    def _supply(self) -> None:
        while self._orders and (spare := self._running_spare()) is not None:
            self._give(self._orders.popleft(), *spare)
        wanted = len(self._orders)
        if not wanted and not self._starting:  # orders come first
            wanted = max(self._announced, self._num_spares)
        forking = sum(len(batch.channels) for batch in self._batches.values())
        try:
            while (missing := wanted - forking - len(self._spares)) > 0:
                forking += self._fork_batch(min(missing, BATCH_SIZE))
        except OSError as error:
            self._cannot_fork(error)

    def _running_spare(self) -> tuple[int, socket.socket] | None:
        """Take one. Those that somebody has stopped are killed, and given up when they have ended."""
        for pid in reversed(self._spares):
            if process_state(pid, process_start_time(pid) or 0) != STOPPED:
                return pid, self._spares.pop(pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return None

    def _give(self, order: Order, pid: int, channel: socket.socket) -> None:
        with contextlib.suppress(BrokenPipeError):  # it was killed: that shows below, as the end of its channel
            seqpacket.send(channel, BECOME, order.fds)
        for fd in order.fds:
            os.close(fd)
        self._starting[channel.fileno()] = (order.number, pid, channel)
        self._poll.register(channel.fileno(), select.POLLIN)

    def _answer(self, fd: int) -> None:
        """A worker says why it cannot start or, by closing its end, that it does."""
        self._poll.unregister(fd)
        number, pid, channel = self._starting.pop(fd)
        with channel:
            received = seqpacket.receive(channel)
        if received is None:
            self._tell(messages.Launched(number=number, pid=pid))
        else:
            self._tell(messages.Failed(number=number, pid=pid, why=messages.REFUSALS.decode(received[0])))

    def _fork_batch(self, num: int) -> int:
        """Fork a process that forks those that are meant, tells their pids and ends: the agent adopts the orphans."""
        pairs = [seqpacket.connected_pair() for _ in range(num)]
        told, tell = os.pipe()
        self._batches[told] = ForkBatch(deque(ours for ours, _ in pairs))
        self._poll.register(told, select.POLLIN)
        try:
            if fork() == 0:
                self._become_spares([theirs for _, theirs in pairs], tell)
        except OSError:
            self._clear_batch(told)
            raise
        finally:
            os.close(tell)
            for _, theirs in pairs:
                theirs.close()
        return num

    def _become_spares(self, channels: Sequence[socket.socket], tell: int) -> NoReturn:
        """In the process that forks them, and in them. Nothing must go back to the loop, which is not theirs."""
        try:
            parent = os.getpid()
            mine = _fork_and_leave(len(channels), tell)
            self._abandon()
            os.close(tell)
            for index, channel in enumerate(channels):
                if index != mine:
                    channel.close()
            Spare(channels[mine], parent, self._inheritance).run()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)

    def _forked(self, told: int) -> None:
        content = os.read(told, PID_BYTES * BATCH_SIZE)
        if not content and self._clear_batch(told):
            self._cannot_fork(OSError(errno.EAGAIN, os.strerror(errno.EAGAIN)))
        for at in range(0, len(content), PID_BYTES):
            pid = int.from_bytes(content[at : at + PID_BYTES], "little")
            self._tell_forked(pid)
            channel = self._batches[told].channels.popleft()
            try:
                self._watch([pid])
            except OSError as error:  # what cannot be watched could outlive the agent
                channel.close()
                _kill_group(pid)
                self._tell(messages.Died(pid=pid))  # who kills it if it leads no group yet
                self._cannot_fork(error)
            else:
                self._spares[pid] = channel

    def _clear_batch(self, told: int) -> int:
        """Close it, and return how many have not been forked."""
        self._poll.unregister(told)
        os.close(told)
        missing = self._batches.pop(told).channels
        for channel in missing:
            channel.close()
        return len(missing)

    def _cannot_fork(self, error: OSError) -> None:
        """Too many processes, or no memory. Spares are given up, so that they are not tried for again and again."""
        self._announced, self._num_spares = 0, len(self._spares)
        if self._orders:
            self._refuse(self._orders.popleft(), error)

    def _refuse(self, order: Order, error: OSError) -> None:
        for fd in order.fds:
            os.close(fd)
        why = messages.NotStarted(errno=error.errno, text=f"no process can be forked: {error.strerror}")
        self._tell(messages.Failed(number=order.number, pid=None, why=why))

    def _abandon(self) -> None:
        """In a forked child: close all that is the server's."""
        os.close(self._agent.detach())
        os.close(self._agent_pidfd)
        channels = [channel for _, _, channel in self._starting.values()]
        channels += self._spares.values()
        for batch in self._batches.values():
            channels += batch.channels
        for fd in (*(channel.detach() for channel in channels), *self._batches, *self._workers):
            os.close(fd)
        for order in self._orders:
            for fd in order.fds:
                os.close(fd)

    def _watch(self, pids: Iterable[int]) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                pidfd = os.pidfd_open(pid)
                self._workers[pidfd] = pid
                self._poll.register(pidfd, select.POLLIN)

    def _worker_ended(self, pidfd: int) -> None:
        """The agent kills what is left of its group as well; but should it die just now, this would be left to do."""
        self._poll.unregister(pidfd)
        pid = self._workers.pop(pidfd)
        os.close(pidfd)
        _kill_group(pid)
        if pid in self._spares:
            self._spares.pop(pid).close()
            self._tell(messages.Died(pid=pid))

    def _end(self) -> NoReturn:
        """The agent has ended: so does all that was started for it. Or it wants no more: then it reaps all."""
        self._kill_workers()
        for told in self._batches:  # these end when they see our ends of their channels closed
            while content := os.read(told, PID_BYTES):
                with contextlib.suppress(BrokenPipeError):
                    self._tell_forked(int.from_bytes(content, "little"))
        with contextlib.suppress(ChildProcessError):  # once there is none
            os.waitpid(-1, 0)
        os._exit(0)

    def _kill_workers(self) -> None:
        for pidfd, pid in self._workers.items():
            _kill_group(pid)
            with contextlib.suppress(ProcessLookupError):  # one that leads no group yet
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)

    def _tell_forked(self, pid: int) -> None:
        """The agent reaps what has not become a worker."""
        self._tell(messages.Forked(pid=pid))


def _fork_and_leave(num: int, tell: int) -> int:
    """Return, in each of so many forked children, its number from 0. The process that forks them ends."""
    pid = -1
    try:
        for index in range(num):
            pid = fork()
            if pid == 0:
                return index
            os.write(tell, pid.to_bytes(PID_BYTES, "little"))
    except OSError:
        traceback.print_exc()
    finally:
        if pid:
            os._exit(0)
    raise AssertionError("unreachable")


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
