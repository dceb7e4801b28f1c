"""The agent's end of the fork server: it starts that process, and asks it for workers."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import logging
import os
import select
import signal
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from ...wire.progress.thread import ProgressThread
from ..signal_names import how_ended
from . import messages, seqpacket
from .forking import WAITED_FOR, adopt_orphans, count_lasting_threads, flush_streams, fork, is_adopting_orphans
from .interpreter import start_interpreter
from .launch_order import Launch
from .program import ServerOptions, serve

__all__ = ["ForkServer", "Launch"]

logger = logging.getLogger(__name__)

PROGRAM = "multiworld.process.spawn.program:main"
ENDS_WITHIN_MS = 3000  # on a busy machine; killed, it would leave what it has forked and not told of as zombies
Started = Callable[["int | OSError"], None]


class ForkServer:
    """A process that forks workers. They are children of this process, which has to wait for them.

    Before ``attach`` it is used on any thread, after it on the loop's thread. However this process ends, the fork
    server then kills the workers and all that is in their process groups.
    """

    def __init__(self, pid: int, channel: socket.socket, *, warm: bool, adopts: bool) -> None:
        self.pid = pid
        WAITED_FOR.add(pid)
        self.is_ready = False
        """Whether it has imported what it should."""
        self.is_useless = False
        """Whether it cannot import what it should."""
        self.exit_status: int | None = None
        """How it ended by itself, as ``subprocess`` has it: negative for a signal. None if that is not known."""
        self._channel, self._warm, self._adopts = channel, warm, adopts
        self._env = dict(os.environ)
        self._numbers = itertools.count()
        self._pending: dict[int, Started] = {}
        self._forked: set[int] = set()  # children of ours that are no workers yet
        self._unsent: deque[tuple[bytes, list[int]]] = deque()
        self._loop: ProgressThread | None = None
        self._on_lost: Callable[[str], None] | None = None
        self._on_forked: Callable[[int], None] = _nothing
        self._ended = False
        self._reason = ""
        channel.setblocking(False)

    @classmethod
    def start(
        cls,
        *,
        preload: Sequence[str] = (),
        must_preload: bool = True,
        paths: Sequence[str] = (),
        warm: bool = True,
        spares: int = 0,
        in_place: bool = True,
        stopped_limit_s: float | None = None,
        stoppable: bool = False,
    ) -> ForkServer:
        """Start it and return at once, while it imports ``preload`` and, if ``warm``, what every worker needs.

        It is a new interpreter or, if ``in_place`` and this process has one thread, forked from this process and has
        what this has imported. Warm workers then run the exit functions that this process has registered until now:
        so only for a process that is nothing but a launcher or a host.

        A module that cannot be imported makes it useless or, without ``must_preload``, is only warned of. ``paths`` is
        what ``sys.path`` is to be; empty: that of the interpreter, with the current folder first for ``preload``.
        ``spares`` processes are forked in advance. If this process is stopped for longer than ``stopped_limit_s``, its
        workers are killed. ``stoppable``: signals end it while it imports; later, and otherwise, it ignores those that
        ask to end. Raises OSError if the kernel cannot do what is needed: Linux 5.3 or later does.
        """
        if not hasattr(os, "pidfd_open"):
            raise OSError("workers cannot be started: this Python was built without pidfd_open, of Linux 5.3")
        os.close(os.pidfd_open(os.getpid()))
        adopts = not is_adopting_orphans()
        if adopts:
            adopt_orphans(True)
        options = ServerOptions(
            agent_pid=os.getpid(),
            preload=tuple(preload),
            must_preload=must_preload,
            paths=tuple(paths),
            warm=warm,
            spares=spares,
            dies_with_agent=threading.current_thread() is threading.main_thread(),
            stopped_limit_s=stopped_limit_s,
            stoppable=stoppable,
        )
        pid, channel = _start_process(options, in_place=in_place)
        return cls(pid, channel, warm=warm, adopts=adopts)

    def wait_ready(self) -> list[str]:
        """Block until it has imported what it should, and return what it warns of. Before ``attach``.

        Raises ConnectionError if it has ended.
        """
        warnings: list[str] = []
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        while not self.is_ready:
            poll.poll()
            received = seqpacket.receive(self._channel)
            if received is None:
                self._end_lost()
                raise self._lost_error()
            answer = messages.ANSWERS.decode(received[0])
            if isinstance(answer, messages.Warned):
                warnings.append(answer.text)
            else:
                self._obey(answer)
        return warnings

    def attach(
        self, loop: ProgressThread, on_lost: Callable[[str], None], on_forked: Callable[[int], None] | None = None
    ) -> None:
        """Listen to it on the loop's thread. ``on_lost`` is called once, with the reason, if it ends by itself.

        Running workers are not concerned. ``is_useless`` tells then whether another one would do no better.
        ``on_forked`` gets the pid of each process that may become a worker, before it does.
        """
        self._loop, self._on_lost, self._on_forked = loop, on_lost, on_forked or _nothing
        loop.register(self._channel.fileno(), select.EPOLLIN, self)

    def spawn(
        self, launch: Launch, stdout_fd: int, stderr_fd: int, on_started: Started, *, passed: Sequence[int] = ()
    ) -> None:
        """Start a worker. The descriptors become its output; they stay the caller's, who may close them at once.

        ``passed``: what ``launch.set_up`` gets copies of, one descriptor at most.
        ``on_started`` gets its pid, or why it could not be started: for a command that is missing FileNotFoundError,
        ConnectionError if the fork server has ended. An order to start a warm worker that only a new interpreter can
        carry out, for its environment's sake, starts it cold.
        """
        assert self._loop is not None, "attach first"
        if self._channel.fileno() < 0:
            self._tell(on_started, self._lost_error())
            return
        number = next(self._numbers)
        self._pending[number] = on_started
        is_warm = self._warm and launch.can_be_warm(self._env)
        try:
            content = seqpacket.sealed(replace(launch, warm=is_warm).to_bytes())
            try:
                fds = (content, stdout_fd, stderr_fd, *passed)
                self._send(messages.Spawn(number=number, num_fds=len(fds)), fds)
            finally:
                os.close(content)
        except OSError as error:  # no descriptors left, say
            self._tell(self._pending.pop(number), error)

    def prepare(self, num_workers: int) -> None:
        """Fork so many processes now, for as many ``spawn`` that will follow. At any time after ``start``."""
        self._send(messages.Prepare(num_workers=num_workers))

    def watch(self, pids: Sequence[int]) -> None:
        """Have the process groups of these workers, which another fork server started, killed with this process."""
        self._send(messages.Watch(pids=tuple(pids)))

    def close(self) -> None:
        """End the fork server, and with it whatever it has started and is still running. Idempotent, bounded."""
        self._end()
        if self._adopts:
            self._adopts = False
            adopt_orphans(False)

    def on_ready(self, events: int) -> None:
        if events & select.EPOLLOUT:
            self._send_rest()
        while self._channel.fileno() >= 0:
            try:
                received = seqpacket.receive(self._channel)
            except BlockingIOError:
                return
            if received is None:
                self._lose()
            else:
                self._obey(messages.ANSWERS.decode(received[0]))

    def on_failure(self, error: BaseException) -> None:
        self._reason = f"{type(error).__name__}: {error}"
        self._lose()

    def close_descriptor(self) -> None:
        """The progress thread ends."""
        self._channel.close()

    def _obey(self, answer: messages.Answer) -> None:
        if isinstance(answer, messages.Forked):
            self._forked.add(answer.pid)
            WAITED_FOR.add(answer.pid)
            self._on_forked(answer.pid)
        elif isinstance(answer, messages.Died):
            self._reap(answer.pid)
        elif isinstance(answer, messages.Ready):
            self.is_ready = True
        elif isinstance(answer, messages.Warned):
            logger.warning("%s", answer.text)
        elif isinstance(answer, messages.Useless):
            self._reason, self.is_useless = answer.reason, True
        elif isinstance(answer, messages.Launched):
            self._forked.discard(answer.pid)
            self._tell(self._pending.pop(answer.number), answer.pid)
        else:
            if answer.pid is not None:
                self._reap(answer.pid)
            self._tell(self._pending.pop(answer.number), answer.why.as_error())

    def _send(self, request: messages.Request, fds: Sequence[int] = ()) -> None:
        content = messages.REQUESTS.encode(request)
        if not self._unsent:
            try:
                seqpacket.send(self._channel, content, fds)
                return
            except BlockingIOError:
                pass
            except BrokenPipeError:  # the progress thread is about to read of its end
                return
        self._unsent.append((content, _copies(fds)))
        if self._loop is not None:
            self._loop.modify(self._channel.fileno(), select.EPOLLIN | select.EPOLLOUT)

    def _send_rest(self) -> None:
        while self._unsent:
            content, fds = self._unsent[0]
            try:
                seqpacket.send(self._channel, content, fds)
            except (BlockingIOError, BrokenPipeError):
                return
            self._unsent.popleft()
            for fd in fds:
                os.close(fd)
        assert self._loop is not None
        self._loop.modify(self._channel.fileno(), select.EPOLLIN)

    def _lose(self) -> None:
        self._end_lost()
        assert self._loop is not None
        assert self._on_lost is not None
        self._loop.call_soon(partial(self._on_lost, self._reason))
        while self._pending:
            self._tell(self._pending.pop(next(iter(self._pending))), self._lost_error())

    def _end_lost(self) -> None:
        self.exit_status = self._end()
        self._reason = self._reason or f"the fork server {how_ended(self.exit_status)}"

    def _tell(self, on_started: Started, result: int | OSError) -> None:
        """Not from within here: an error of theirs is not ours."""
        assert self._loop is not None
        self._loop.call_soon(partial(on_started, result))

    def _lost_error(self) -> OSError:
        return ConnectionResetError(self._reason or "the fork server was closed")

    def _end(self) -> int | None:
        """Close all, and return the exit status of the process, None if it was known before."""
        if self._ended:
            return None
        self._ended = True
        status = self._wait()
        if self._channel.fileno() >= 0:
            self._read_last()
            if self._loop is not None:
                self._loop.unregister(self._channel.fileno())
            self._channel.close()
        while self._unsent:
            for fd in self._unsent.popleft()[1]:
                os.close(fd)
        while self._forked:
            self._reap(next(iter(self._forked)))
        return status

    def _wait(self) -> int | None:
        """End the process. It does so itself, unless it is busy with importing, when it sees that we send no more."""
        if self._channel.fileno() >= 0:
            with contextlib.suppress(OSError):  # its end is closed
                self._channel.shutdown(socket.SHUT_WR)
        try:
            pidfd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return None
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        if not self.is_ready or not poll.poll(ENDS_WITHIN_MS):
            os.kill(self.pid, signal.SIGKILL)
        os.close(pidfd)
        return _wait_for(self.pid)

    def _read_last(self) -> None:
        """What children of ours it has forked meanwhile, and which of these became workers that somebody waits for."""
        with contextlib.suppress(BlockingIOError):
            while (received := seqpacket.receive(self._channel)) is not None:
                self._obey(messages.ANSWERS.decode(received[0]))

    def _reap(self, pid: int) -> None:
        self._forked.discard(pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        _wait_for(pid)


def _copies(fds: Sequence[int]) -> list[int]:
    """Raises OSError if there are not descriptors enough, and has none open then."""
    copies: list[int] = []
    try:
        copies.extend(os.dup(fd) for fd in fds)
    except OSError:
        for fd in copies:
            os.close(fd)
        raise
    return copies


def _nothing(pid: int) -> None: ...


def _wait_for(pid: int) -> int | None:
    """Reap a child that ends; None if somebody else did."""
    WAITED_FOR.discard(pid)
    try:
        _, status = os.waitpid(pid, 0)
    except ChildProcessError:
        return None
    return os.waitstatus_to_exitcode(status)


def _start_process(options: ServerOptions, *, in_place: bool) -> tuple[int, socket.socket]:
    """Return its pid and our end of what it is spoken to through. It is our child."""
    ours, theirs = map(_beside_standard_streams, seqpacket.connected_pair())
    try:
        with theirs:
            if in_place and threading.active_count() == 1 and count_lasting_threads() == 1:
                return _fork_server(ours, theirs, options), ours
            return _execute_server(theirs, options), ours
    except BaseException:
        ours.close()
        raise


def _fork_server(ours: socket.socket, theirs: socket.socket, options: ServerOptions) -> int:
    flush_streams()  # else what is buffered is written twice
    pid = fork()
    if pid == 0:
        ours.detach()  # closed with all that is not the server's
        isolated = sys.flags.isolated or getattr(sys.flags, "safe_path", False)
        serve(theirs, options, sys.path[:] if isolated else sys.path[1:])
    return pid


def _execute_server(theirs: socket.socket, options: ServerOptions) -> int:
    process = start_interpreter(PROGRAM, theirs, options.to_text(), reads_stdin=_is_open(0))  # the workers' as well
    process.returncode = 0  # it is waited for by its pid: the object is to take it for ended
    return process.pid


def _beside_standard_streams(sock: socket.socket) -> socket.socket:
    """A process that was started without some of its standard streams gets their numbers for what it opens next."""
    if sock.fileno() > 2:
        return sock
    with sock:
        return socket.socket(fileno=fcntl.fcntl(sock.fileno(), fcntl.F_DUPFD_CLOEXEC, 3))


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True
