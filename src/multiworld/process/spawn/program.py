"""How a fork server's process begins: it imports what workers are to have, so that they need not."""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from ...wire.messages import from_json, look_ahead, to_json
from ..facts import open_descriptors
from . import seqpacket
from .blas_threads import get_blas_threads, set_blas_threads
from .forking import count_lasting_threads, die_with_parent, open_standard_descriptors, outlive_parent, share_memory
from .launch_order import Launch
from .loop import ForkLoop
from .messages import ANSWERS, Useless, Warned
from .worker_program import Inheritance

IMPORTED = ("multiworld.world.manager",)
UNSTOPPABLE = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """How a fork server works: whom for, what it imports, and how many processes it forks in advance."""

    agent_pid: int
    preload: tuple[str, ...] = ()
    must_preload: bool = True
    """Whether a module that cannot be imported makes the fork server useless, or is only warned of."""
    paths: tuple[str, ...] = ()
    """What ``sys.path`` is here and in functions; empty: that of the interpreter."""
    warm: bool = True
    spares: int = 0
    dies_with_agent: bool = False
    """Already while it imports, which may hang. Only where the agent's main thread starts it."""
    stopped_limit_s: float | None = None
    """How long the agent may be stopped before its workers are ended."""
    stoppable: bool = False
    """Whether signals end it while it imports, as they would end a program with these modules."""

    def to_text(self) -> str:
        return json.dumps(to_json(self))

    @classmethod
    def from_text(cls, text: str) -> ServerOptions:
        return from_json(cls, json.loads(text))


class CannotServe(Exception):
    """Carries the one line that says why."""


def main(descriptor: int, text: str) -> NoReturn:
    """In an interpreter of its own. ``sys.path`` begins with nobody's script there."""
    serve(socket.socket(fileno=descriptor), ServerOptions.from_text(text), list(sys.path))


def serve(agent: socket.socket, options: ServerOptions, base_path: Sequence[str]) -> NoReturn:
    """Be the fork server, in a process that is nothing else. ``base_path`` is ``sys.path`` but for the script's folder.

    It has no effect where the options say what ``sys.path`` is.

    A worker never returns from here either: its interpreter ends in the midst of it.
    """
    try:
        inheritance = _prepare(agent, options, options.paths or base_path)
        ForkLoop(agent, inheritance, num_spares=options.spares, stopped_limit_s=options.stopped_limit_s).run()
    except CannotServe as error:
        with contextlib.suppress(OSError):
            seqpacket.send(agent, ANSWERS.encode(Useless(reason=str(error))))
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)  # not the end of the interpreter that this was forked from


def _prepare(agent: socket.socket, options: ServerOptions, base_path: Sequence[str]) -> Inheritance:
    ignored = frozenset(each for each in signal.valid_signals() if signal.getsignal(each) == signal.SIG_IGN)
    if options.stoppable:
        _handle_signals(frozenset(UNSTOPPABLE) - ignored, signal.SIG_DFL)  # no import can catch them
    else:
        _handle_signals(UNSTOPPABLE, signal.SIG_IGN)
    if os.getsid(0) != os.getpid():
        os.setsid()
    _close_others(agent.fileno())
    open_standard_descriptors()
    if options.dies_with_agent:
        with contextlib.suppress(ProcessLookupError):  # found out by the first poll
            die_with_parent(options.agent_pid)
    gc.disable()  # objects that come to stay need not be looked at while more of them come
    if options.warm:
        for name in IMPORTED:
            importlib.import_module(name)
        _preload(agent, options, base_path)
        look_ahead(Launch)  # each worker would keep what it finds out in pages of its own
    _handle_signals(UNSTOPPABLE, signal.SIG_IGN)
    num_blas_threads = get_blas_threads()
    set_blas_threads(1)  # of most workers; the others set it again
    share_memory()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps our children: their status means nothing
    if options.dies_with_agent:
        outlive_parent()  # to kill what is left when that has ended
    return Inheritance(options.agent_pid, tuple(base_path), num_blas_threads, ignored)


def _handle_signals(signums: Iterable[signal.Signals], handler: signal.Handlers) -> None:
    """A terminal or a scheduler may signal all processes: a fork server ignores it, and sees to the rest."""
    for signum in signums:
        signal.signal(signum, handler)


def _preload(agent: socket.socket, options: ServerOptions, base_path: Sequence[str]) -> None:
    """Import modules as a program in the current folder would, or by the ``paths`` of the options."""
    sys.path[:] = base_path if options.paths else [os.getcwd(), *base_path]
    torch = sys.modules.get("torch")
    num_torch_threads = torch.get_num_threads() if torch is not None else 1
    if torch is not None:
        torch.set_num_threads(1)  # else a module that computes while it is imported starts threads that no worker has
    threads = count_lasting_threads()
    for name in options.preload:
        try:
            importlib.import_module(name)
        except BaseException as error:
            if options.must_preload or not isinstance(error, (Exception, SystemExit)):
                raise CannotServe(f"--preload {name} failed: {_told(error)}"[:2000]) from error
            _warn(agent, f"{name} was not preloaded: {_told(error)}")
        if (now := count_lasting_threads()) > threads:
            _warn(
                agent, f"--preload {name} started {now - threads} thread(s), which workers forked from it do not have"
            )
            threads = now
    if torch is not None:
        torch.set_num_threads(num_torch_threads)
    sys.path[:] = base_path


def _warn(agent: socket.socket, text: str) -> None:
    seqpacket.send(agent, ANSWERS.encode(Warned(text=text[:2000])))


def _told(error: BaseException) -> str:
    reason = " ".join(str(error).split())
    return f"{type(error).__name__}: {reason}"


def _close_others(kept: int) -> None:
    for descriptor in open_descriptors():
        if descriptor > 2 and descriptor != kept:
            with contextlib.suppress(OSError):  # the descriptor of this very listing
                os.close(descriptor)
