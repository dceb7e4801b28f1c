"""What a forked process does until the user's program runs in it, or another program in its place."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import select
import signal
import socket
import sys
from dataclasses import dataclass
from typing import Any, NoReturn

from ...wire.messages import from_json, to_json
from ..facts import open_descriptors
from . import seqpacket
from .entrypoint import EntrypointKind
from .forking import die_with_parent, fork
from .fresh import become_fresh, reset_signals, take_descriptors
from .launch_order import Launch
from .messages import REFUSALS, NotStarted
from .missing_command import start_error
from .python_program import function_at, prepare, run_to_the_end

NOT_STARTED = 127


@dataclass(frozen=True)
class Inheritance:
    """What a worker must know of the fork server."""

    agent_pid: int
    base_path: tuple[str, ...]
    """``sys.path``, but for the first entry that each program has of its own."""
    num_blas_threads: int | None
    """With how many threads numpy would compute, as OpenBLAS found when it was loaded. Now it does with one."""
    ignored: frozenset[int] = frozenset()
    """The signals that a program started by the agent ignores from the beginning."""


class Spare:
    """A process that ``parent`` forked, and that waits to be told which worker it is."""

    def __init__(self, channel: socket.socket, parent: int, inheritance: Inheritance) -> None:
        self._channel, self._parent, self._inheritance = channel, parent, inheritance

    def run(self) -> NoReturn:
        """Become the worker. Why it cannot is sent to the fork server; nothing is, and the channel closed, if it can.

        Who starts a worker learns of a missing command this way, as from ``subprocess``, and not by an exit status.
        """
        try:
            os.setsid()
            reset_signals(self._inheritance.ignored)
            received = seqpacket.receive(self._channel)
            if received is None:
                os._exit(0)  # a spare that is not needed
            _, (launch_fd, stdout_fd, stderr_fd, *passed) = received
            with open(launch_fd, "rb") as file:
                launch = Launch.from_bytes(file.read())
            self._become(launch, stdout_fd, stderr_fd)
            run = prepare(launch.entrypoint, launch.arguments, self._inheritance.base_path)
            if launch.set_up is not None:
                function_at(launch.set_up)(*passed)
            self._end_with_agent()
        except OSError as error:
            self._fail(error.errno, error.strerror or str(error), error.filename)
        except BaseException as error:
            self._fail(None, f"{type(error).__name__}: {error}", None)
        ends_quickly = launch.entrypoint.kind is EntrypointKind.FUNCTION
        run_to_the_end(run, announce=self._channel.close, ends_quickly=ends_quickly)

    def _become(self, launch: Launch, stdout_fd: int, stderr_fd: int) -> None:
        """Return only if the program is to run in this interpreter."""
        take_descriptors(stdout_fd, stderr_fd, reads_stdin=launch.reads_stdin)
        if launch.cwd is not None:
            os.chdir(launch.cwd)
        if launch.numa is not None:
            _bind(*launch.numa)
        if not launch.warm:
            self._end_with_agent()
            self._execute(launch)
        become_fresh(launch.env, self._inheritance.num_blas_threads)

    def _end_with_agent(self) -> None:
        """As late as can be: the process that forked this one takes a while to end, if it has imported torch.

        Raises OSError if the agent has ended.
        """
        _await_adoption(self._parent)
        die_with_parent(self._inheritance.agent_pid)

    def _execute(self, launch: Launch) -> NoReturn:
        for signum in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, other programs do not
            signal.signal(signum, signal.SIG_DFL)
        for descriptor in open_descriptors():  # a module of --preload may have opened some
            if descriptor > 2:
                with contextlib.suppress(OSError):
                    os.set_inheritable(descriptor, False)
        command = command_line(launch)
        try:
            os.execvpe(command[0], command, launch.env)
        except OSError as error:  # it names the last place that was looked at
            raise start_error(error, command[0], launch.env) from None

    def _fail(self, number: int | None, text: str, filename: object) -> NoReturn:
        name = os.fsdecode(filename) if isinstance(filename, (str, bytes)) else None
        with contextlib.suppress(OSError):
            seqpacket.send(self._channel, REFUSALS.encode(NotStarted(errno=number, text=text[:2000], filename=name)))
        os._exit(NOT_STARTED)


def command_line(launch: Launch) -> list[str]:
    """Return the command of a worker that is not forked into its program. Raises ValueError for a function."""
    entrypoint = launch.entrypoint
    if entrypoint.kind is EntrypointKind.FUNCTION:
        raise ValueError(f"{entrypoint.target} needs a fork server that is warm: only a forked process can call it")
    if entrypoint.kind is EntrypointKind.COMMAND:
        return [entrypoint.target, *launch.arguments]
    module = ["-m"] if entrypoint.kind is EntrypointKind.MODULE else []
    return [entrypoint.python or sys.executable, "-u", *module, entrypoint.target, *launch.arguments]


def _await_adoption(parent: int) -> None:
    """Wait until the process that forked this one has ended, whereby the agent becomes the parent."""
    with contextlib.suppress(ProcessLookupError):  # it has ended
        pidfd = os.pidfd_open(parent)
        if os.getppid() == parent:  # else the pid may be another process's
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            poll.poll()
        os.close(pidfd)


def _bind(mode: str, index: int) -> None:
    """Bind this process to the processors near a device. Programs that it becomes or starts inherit that.

    A child finds out which these are: it needs CUDA for that, with the devices that the launcher sees, while the
    program, which may have others, must find CUDA as it is after the start. Raises RuntimeError if that fails.
    """
    read_fd, write_fd = os.pipe()
    child = fork()
    if child == 0:
        try:
            answer = _Bound(processors=tuple(_near(mode, index)))
        except BaseException as error:
            answer = _Bound(error=f"{type(error).__name__}: {error}"[:1000])
        os.write(write_fd, json.dumps(to_json(answer)).encode())
        os._exit(0)
    os.close(write_fd)
    with open(read_fd, "rb") as pipe:
        told = pipe.read()
    os.waitpid(child, 0)
    answer = from_json(_Bound, json.loads(told)) if told else _Bound(error="the process that finds them out died")
    if answer.error:
        raise RuntimeError(f"not bound to the processors near device {index}: {answer.error}")
    os.sched_setaffinity(0, answer.processors)


@dataclass(frozen=True, kw_only=True)
class _Bound:
    processors: tuple[int, ...] = ()
    error: str = ""


def _near(mode: str, index: int) -> list[int]:
    """Bind this process as torch's own launcher does it in its workers, and return how; nothing public does it."""
    from torch.numa import binding

    options = binding.NumaOptions(affinity_mode=binding.AffinityMode(mode))
    bind: Any = binding._maybe_apply_numa_binding_to_current_process
    name = "device_index" if "device_index" in inspect.signature(bind).parameters else "gpu_index"  # before torch 2.14
    bind(**{name: index}, numa_options=options)
    return sorted(os.sched_getaffinity(0))
