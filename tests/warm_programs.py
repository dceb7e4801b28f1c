"""Programs forked from a process that has imported torch already: the import is most of a short program's work.

``Popen`` and ``run`` are those of ``subprocess``. What they start differs from a new interpreter in one thing: the
modules that the nursery imported are there already. It has the descriptors, the directory, the environment, the signals
and the session that were asked for, and it ends as an interpreter does. What a fork cannot give, as a variable that is
read when an interpreter starts, gets a new interpreter. Tests about how a command starts use ``subprocess`` itself.
"""

from __future__ import annotations

import ctypes
import fcntl
import inspect
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from multiworld.process.spawn.entrypoint import Entrypoint, EntrypointKind
from multiworld.process.spawn.fresh import become_fresh, reset_signals, take_descriptors
from multiworld.process.spawn.python_program import new_main, prepare, run_to_the_end
from multiworld.testing.hosts import NAMESPACES

CONSOLE_SCRIPT = str(Path(sys.executable).with_name("multiworld"))
READ_AT_START = ("PYTHON", "LD_", "LANG", "LC_", "MALLOC_", "OMP_", "MKL_", "OPENBLAS_", "KMP_", "MULTIWORLD_NATIVE")
"""How variables begin that an interpreter, or a library that torch loads, reads once."""
UNBUFFERED = "PYTHONUNBUFFERED"
CODE = "code"  # that ``python -c`` runs: a kind of program besides those of ``EntrypointKind``
DEVNULL = subprocess.DEVNULL
ON_HOST = ("ip", "netns", "exec")  # the name of a network namespace follows, then a command
CLONE_NEWNET = 0x40000000
Fork = Callable[["Program", Sequence[int]], int]
"""Forks a program with these descriptors: the standard ones, then those passed. Returns the pid of our new child."""


@dataclass(frozen=True, kw_only=True)
class Program:
    """A program as the nursery is asked for it. Pure values."""

    kind: str
    target: str
    arguments: Sequence[str]
    cwd: str
    env: Mapping[str, str]
    leads_session: bool
    ignored: Sequence[int]
    """The signals that its parent ignores."""
    passed: Sequence[int]
    """The numbers of the descriptors that it has besides the standard ones."""
    netns: str | None
    """The network namespace that it runs in, if another one than its parent."""


def read_at_start(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that come too late for a forked process."""
    return {name: value for name, value in env.items() if name.startswith(READ_AT_START) and name != UNBUFFERED}


def become_program(program: Program, ends: Sequence[int], base_path: Sequence[str]) -> NoReturn:
    """Run it to its end in this process, which was forked for it. ``base_path``: as for ``prepare``."""
    if program.leads_session:
        os.setsid()
    reset_signals(frozenset(program.ignored))
    _take_descriptors(program, ends)
    if program.netns is not None:
        enter_netns(program.netns)
    os.chdir(program.cwd)
    become_fresh(program.env, None)
    if not program.env.get(UNBUFFERED):
        _buffer_output()
    run_to_the_end(_prepare(program, base_path), announce=lambda: None)


def _take_descriptors(program: Program, ends: Sequence[int]) -> None:
    stdin_fd, stdout_fd, stderr_fd, *passed = ends
    above_all = max(program.passed, default=2) + 1
    lifted = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, above_all) for fd in passed]
    for fd in passed:
        os.close(fd)
    os.dup2(stdin_fd, 0)
    os.close(stdin_fd)
    take_descriptors(stdout_fd, stderr_fd, reads_stdin=True)
    for fd, number in zip(lifted, program.passed, strict=True):
        os.dup2(fd, number)
        os.close(fd)


def _prepare(program: Program, base_path: Sequence[str]) -> Callable[[], object]:
    if program.kind != CODE:
        entrypoint = Entrypoint(kind=EntrypointKind(program.kind), target=program.target)
        return prepare(entrypoint, program.arguments, base_path)
    sys.path[:] = ["", *base_path]
    sys.argv[:] = ["-c", *program.arguments]
    main = new_main()
    return partial(exec, compile(program.target, "<string>", "exec", dont_inherit=True), main.__dict__)


def _buffer_output() -> None:
    """Have the streams of an interpreter that was not started with ``-u``."""
    for fd, name, buffering in ((1, "stdout", -1), (2, "stderr", 1)):
        was = getattr(sys, name)
        stream = open(fd, "w", buffering, was.encoding, was.errors, closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def enter_netns(name: str) -> None:
    """Move this process, which has one thread, into a network namespace."""
    namespace = os.open(NAMESPACES / name, os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(namespace, CLONE_NEWNET) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), name)
    finally:
        os.close(namespace)


def fork_by(fork: Fork | None) -> None:
    """Have programs be forked from now on, or no longer."""
    global _fork
    _fork = fork


_fork: Fork | None = None

if TYPE_CHECKING:
    Popen = subprocess.Popen
else:

    class Popen(subprocess.Popen):
        """Overrides the one method that starts the process: all that its parent does with it stays."""

        def _execute_child(self, *details: Any) -> None:
            how = inspect.signature(super()._execute_child).bind(*details).arguments
            if _fork is None or (program := _program(how)) is None:
                super()._execute_child(*details)
                return
            names = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
            try:
                ends = (how["p2cread"], how["c2pwrite"], how["errwrite"])
                standard = [end if end != -1 else number for number, end in enumerate(ends)]
                self.pid = _fork(program, [*standard, *program.passed])
                self._child_created = True
            finally:
                self._close_pipe_fds(*(how[name] for name in names))


def run(
    command: Sequence[str | Path],
    *,
    timeout: float | None = None,
    check: bool = False,
    capture_output: bool = False,
    input: str | None = None,  # noqa: A002
    **how: Any,
) -> subprocess.CompletedProcess[str]:
    """Do what ``subprocess.run`` does for text."""
    if capture_output:
        how.update(stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if input is not None:
        how["stdin"] = subprocess.PIPE
    with Popen(command, **how) as process:
        try:
            output, errors = process.communicate(input, timeout)
        except BaseException:
            process.kill()
            raise
    if check and process.returncode != 0:
        raise subprocess.CalledProcessError(process.returncode, command, output, errors)
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def _program(how: Mapping[str, Any]) -> Program | None:
    """Return what is to be forked; None for what only a new interpreter, or another program, can be."""
    asked = how["preexec_fn"] or how["executable"] or how["shell"] or not how["close_fds"]
    of_other_owner = [how[name] is not None for name in ("gid", "gids", "uid")]
    in_other_group = how["umask"] != -1 or how.get("process_group", -1) not in (None, -1)
    env = dict(os.environ if how["env"] is None else how["env"])
    if asked or any(of_other_owner) or in_other_group or read_at_start(env) != read_at_start(os.environ):
        return None
    netns, command = _on_host(how["args"])
    if (named := _named(command)) is None:
        return None
    kind, target, arguments = named
    ignored = [each for each in signal.valid_signals() if signal.getsignal(each) == signal.SIG_IGN]
    return Program(
        kind=kind,
        target=target,
        arguments=arguments,
        cwd=os.getcwd() if how["cwd"] is None else os.path.abspath(how["cwd"]),
        env=env,
        leads_session=how["start_new_session"],
        ignored=ignored,
        passed=list(how["pass_fds"]),
        netns=netns,
    )


def _on_host(command: object) -> tuple[str | None, object]:
    """Return the network namespace in which a command runs, if it says one, and the command without it."""
    if isinstance(command, (list, tuple)) and tuple(command[:3]) == ON_HOST and len(command) > 4:
        return command[3], command[4:]
    return None, command


def _named(command: object) -> tuple[str, str, list[str]] | None:
    """Return of what kind Python's program is, what it is, and its arguments; None for other commands."""
    if not isinstance(command, (list, tuple)):
        return None
    python, *words = map(os.fsdecode, command)
    if python == CONSOLE_SCRIPT:
        return EntrypointKind.SCRIPT.value, python, words
    if python != sys.executable or not words:
        return None
    option, *rest = words
    if option in ("-c", "-m"):
        return CODE if option == "-c" else EntrypointKind.MODULE.value, rest[0], rest[1:]
    return None if option.startswith("-") else (EntrypointKind.SCRIPT.value, option, rest)
