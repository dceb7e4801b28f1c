"""Wait for an operation: on an asyncio loop, on a thread, or for a moment in a step coroutine."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from ...errors import MultiworldError, again
from .operation import Operation, settler
from .spinning import SPIN_S, QuickWaits
from .thread import ProgressThread

T = TypeVar("T")
_blocked: set[threading.Thread] = set()


class OperationCancelled(Exception):
    """The task that awaited the operation was cancelled."""


async def wait_async(operation: Operation[T], quick_waits: QuickWaits | None = None) -> T:
    """Await from an asyncio task.

    Cancelling the task cancels the operation: afterwards the caller's memory is untouched, and a message that has come
    in that very moment is given back. While ``quick_waits`` pay,
    the loop goes round for a moment, with all its other tasks, before it may sleep.
    """
    if not operation.done:
        began = time.perf_counter()
        cancelled: asyncio.CancelledError | None = None
        try:
            if quick_waits is not None and quick_waits.pay:
                while not operation.done and time.perf_counter() - began < SPIN_S:
                    quick_waits.look()
                    if not operation.done:
                        await asyncio.sleep(0)
            if not operation.done:
                await _completion(operation)
        except asyncio.CancelledError as error:
            cancelled = error
        if cancelled is not None:  # outside of the handler: compiled, one that awaits is left with another's error
            try:
                await cancel_async(operation)
                raise cancelled
            finally:
                cancelled = None  # it refers to this frame
        if quick_waits is not None:
            quick_waits.waited(time.perf_counter() - began, SPIN_S)
    return outcome(operation)


async def cancel_async(operation: Operation[Any]) -> None:
    """The task that awaits the operation is cancelled. Takes no time on this thread, however much is to be done."""
    if not operation.slow_cancel:
        operation.cancel_or_undo(OperationCancelled())
        return
    await wait_to_the_end(run_in_thread(partial(operation.cancel_or_undo, OperationCancelled()), "multiworld-cancel"))


async def wait_to_the_end(operation: Operation[T]) -> T:
    """Wait until an operation that is soon done is done, for cleaning up; a task that is cancelled learns it then."""
    cancelled: asyncio.CancelledError | None = None
    while not operation.done:
        try:
            await _completion(operation)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        try:
            raise cancelled
        finally:
            cancelled = None  # as above
    return operation.result()


def _completion(operation: Operation[Any]) -> asyncio.Future[None]:
    """Return a future of the running loop that is done when the operation is."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()
    thread = threading.get_ident()

    def wake(_: Operation[Any]) -> None:
        if threading.get_ident() == thread:
            _set(future)
            return
        try:
            loop.call_soon_threadsafe(_set, future)
        except RuntimeError:
            return  # the loop was closed; nobody waits any more

    operation.add_callback(wake)
    return future


def while_blocked(call: Callable[[], T]) -> T:
    """Make a call that the calling thread waits for: steps that it runs may compute and wait on it."""
    thread = threading.current_thread()
    if thread in _blocked:
        return call()
    try:
        _blocked.add(thread)
        return call()
    finally:
        _blocked.discard(thread)


def wait_blocking(operation: Operation[T], *, help_with: Callable[[], None] | None = None) -> T:
    """Wait on a thread. ``help_with`` may make progress itself before the thread goes to sleep."""
    if not operation.done:
        while_blocked(partial(_block, operation, help_with))
    return outcome(operation)


def _block(operation: Operation[Any], help_with: Callable[[], None] | None) -> None:
    try:
        if help_with is not None:
            help_with()
        if not operation.done:
            done = threading.Event()
            operation.add_callback(lambda _: done.set())
            done.wait()
    except BaseException:  # KeyboardInterrupt: the caller's memory must not be touched after it
        _end(operation)
        raise


def _end(operation: Operation[Any]) -> None:
    """Cancel or undo, whatever interrupts come meanwhile: the one that is raised already tells the caller."""
    while True:
        try:
            operation.cancel_or_undo(OperationCancelled())
            return
        except KeyboardInterrupt:
            continue


def start_and_wait(start: Callable[[], Operation[T]], wait: Callable[[Operation[T]], T]) -> T:
    """Start an operation and wait for it on this thread as one step: an interrupt, wherever it comes, undoes it."""
    started: list[Operation[T]] = []

    def run() -> T:
        started.append(start())
        return wait(started[0])

    try:
        return while_blocked(run)
    except BaseException:
        for operation in started:
            _end(operation)
        raise


def is_blocked_here() -> bool:
    """Whether the calling thread is inside ``while_blocked``: it has nothing better to do."""
    return threading.current_thread() in _blocked


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the asyncio loop that runs on the calling thread, if one does."""
    return asyncio._get_running_loop()


def blocked_threads() -> list[threading.Thread]:
    """Return the other threads that are inside ``while_blocked`` now."""
    here = threading.current_thread()
    return [thread for thread in _blocked.copy() if thread is not here]


def outcome(operation: Operation[T]) -> T:
    """Return the value, or raise the error; one error that ended many operations is raised as a copy in each."""
    error = operation.error
    if error is not None and isinstance(error, MultiworldError):
        raise again(error)
    return operation.result()


def pause(loop: ProgressThread, delay_s: float) -> Operation[None]:
    """Return an operation that is done after ``delay_s``."""
    operation: Operation[None] = Operation()
    timer = loop.call_later(delay_s, settler(operation))
    operation.on_cancel = timer.cancel
    return operation


def on_progress_thread(loop: ProgressThread) -> Operation[None]:
    """Return an operation for steps to await: they go on on the progress thread, here and now if this is it."""
    if loop.on_thread:
        here: Operation[None] = Operation()
        here.succeed(None)
        return here
    return Move(lambda move: loop.call_soon(settler(move)))


class Move(Operation[None]):
    """For steps to await that go on on another thread: ``hand_over`` has that thread complete what it is given.

    It is handed over only when the one who waits is known: steps that find an operation done stay where they are.
    """

    __slots__ = ("_hand_over",)

    def __init__(self, hand_over: Callable[[Operation[None]], None]) -> None:
        super().__init__()
        self._hand_over = hand_over

    def add_callback(self, callback: Callable[[Operation[None]], None]) -> None:
        super().add_callback(callback)
        self._hand_over(self)


def run_in_thread(work: Callable[[], T], name: str) -> Operation[T]:
    """Run blocking work on a daemon thread of its own, for calls that know no deadline (DNS, a library's connect)."""
    operation: Operation[T] = Operation()
    try:
        threading.Thread(target=_complete, args=(operation, work), name=name, daemon=True).start()
    except RuntimeError:  # the interpreter is ending and starts no thread any more
        _complete(operation, work)
    return operation


def _complete(operation: Operation[Any], work: Callable[[], Any]) -> None:
    try:
        value = work()
    except BaseException as error:  # whatever it is, it belongs to the one who waits
        operation.fail(error)
    else:
        operation.succeed(value)


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
