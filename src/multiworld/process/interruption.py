"""How a command ends by a signal: at any moment, in one line, with a status that says which, and with nothing left.

An exception that a handler raises may be caught by whatever runs at that moment: torch goes on without numpy if the
import of that is interrupted, and the signal is lost. So the handler here raises nothing. It writes the line, undoes
what has been made so far, and ends the process. What is to end in another way says so, for as long as it lasts.

Only the command line calls ``end_on_signals``. Without that, as in a user's process, nothing here touches a signal,
except within ``handled_by``. A disposition is the process's, and so is the state of this module. It imports next to
nothing, because a signal that comes before it is imported ends in a traceback.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import FrameType
from typing import NoReturn, TypeVar

from .signal_names import signal_name

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals by which people and schedulers end a command."""
SIGNALLED = 128
"""The status after a signal is more than this by the signal's number: what shells and schedulers expect."""
TELL_MS = 1000  # for a console that is slow

Resource = TypeVar("Resource")


class Interrupted(BaseException):
    """A signal came within ``unwinding``."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum

    def __str__(self) -> str:
        return f"ended by {signal_name(self.signum)}"


class _State:
    """What a signal does now. Read by the handler, so each change is one assignment."""

    def __init__(self) -> None:
        self.name = ""
        self.pid = 0  # of the process that this is the state of; a forked child is another
        self.num_held = 0
        self.noted: int | None = None  # a signal that came while held
        self.handler: Callable[[int], None] | None = None
        self.made: list[ExitStack] = []


_state = _State()


def end_on_signals(name: str) -> None:
    """From now on signals end this process, which is all of the command ``name``. May be called again with another.

    A signal that is ignored stays so: SIGHUP under ``nohup``, SIGINT in what a script starts in the background.
    """
    _state.name, _state.pid = name, os.getpid()
    for signum in takeable(ENDING):
        signal.signal(signum, _received)


def takeable(signals: Iterable[signal.Signals]) -> list[signal.Signals]:
    """Return those that are neither ignored, which was meant, nor handled in C, which Python could not set back."""
    return [signum for signum in signals if signal.getsignal(signum) not in (signal.SIG_IGN, None)]


@contextmanager
def taken(signals: Iterable[signal.Signals], take: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Have those of them that are ``takeable`` call this, on the main thread, and set their handlers back."""
    with ExitStack() as stack:
        for signum in takeable(signals):
            stack.callback(signal.signal, signum, signal.signal(signum, take))
        yield


@contextmanager
def undoing(resource: AbstractContextManager[Resource]) -> Iterator[Resource]:
    """Enter a context that is left also when a signal ends the process."""
    with ExitStack() as stack:
        with held():
            value = stack.enter_context(resource)
            _state.made.append(stack)
        try:
            yield value
        finally:
            with held():
                stack.close()
                _state.made.remove(stack)


@contextmanager
def held() -> Iterator[None]:
    """Let a signal that comes now take effect at the end of this block, which must be short."""
    _state.num_held += 1
    try:
        yield
    finally:
        _state.num_held -= 1
        if _state.num_held == 0 and _state.noted is not None:
            signum, _state.noted = _state.noted, None
            _take(signum)


@contextmanager
def handled_by(handler: Callable[[int], None]) -> Iterator[None]:
    """Have the first signal call this, on the main thread, at any point between two steps of the program.

    A second one ends the process at once.
    """
    before_pid, before_handler = _state.pid, _state.handler
    _state.pid, _state.handler = os.getpid(), handler
    try:
        with taken(ENDING, _received):
            yield
    finally:
        _state.pid, _state.handler = before_pid, before_handler


@contextmanager
def unwinding() -> Iterator[None]:
    """Have the first signal raise ``Interrupted``: for code that is ours, waits, and leaves its contexts in order."""
    with handled_by(_unwind):
        yield


def _received(signum: int, frame: FrameType | None) -> None:
    if os.getpid() != _state.pid:  # a child that was forked just now, and holds nothing of its own
        os._exit(SIGNALLED + signum)
    if _state.num_held:
        _state.noted = signum if _state.noted is None else _state.noted
    else:
        _take(signum)


def _take(signum: int) -> None:
    handler, _state.handler = _state.handler, None
    if handler is None:
        _end(signum)
    handler(signum)


def _unwind(signum: int) -> NoReturn:
    raise Interrupted(signum)


def _end(signum: int) -> NoReturn:
    _state.num_held += 1  # for ever: what is undone is undone whole
    try:
        tell(f"ended by {signal_name(signum)}")
        while _state.made:
            _undo(_state.made.pop())
    finally:
        os._exit(SIGNALLED + signum)


def _undo(stack: ExitStack) -> None:
    try:
        stack.close()
    except Exception as error:
        tell(f"{type(error).__name__}: {error}")


def tell(text: str) -> None:
    """Write a line that begins with the command's name, or nothing if standard error does not take it.

    Past ``sys.stderr``, in the middle of whose ``write`` a signal may have come.
    """
    try:
        poll = select.poll()
        poll.register(2, select.POLLOUT)
        if poll.poll(TELL_MS):
            os.write(2, f"{_state.name or 'multiworld'}: {text}\n".encode(errors="backslashreplace"))
    except OSError:  # nobody can be told
        return
