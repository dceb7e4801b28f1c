"""One operation under way: completed exactly once, from any thread; awaited by step coroutines, loops or threads."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Coroutine, Generator, Iterator
from functools import partial
from typing import Any, Generic, TypeVar

from ...errors import MultiworldError

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Operation(Generic[T]):
    """A result that comes later.

    The first completion wins: ``succeed`` and ``fail`` return False afterwards, so a late completion is harmless.
    ``on_cancel`` is called by ``cancel`` before the operation fails: it must make sure that nothing touches the
    caller's memory after it has returned. Threads that cancel at once all call it, so that none returns before that.
    With ``slow_cancel`` that may take many milliseconds: a thread that must not stall leaves it to another.

    ``on_undo``, if there is one, takes back a success of which the caller never heard, because its task was cancelled
    in that very moment: a receive gives its message back. It must hold no reference to the operation.
    """

    __slots__ = (
        "_callbacks",
        "_cancelled_with",
        "_completer",
        "_error",
        "_lock",
        "_state",
        "_value",
        "on_cancel",
        "on_undo",
        "slow_cancel",
    )

    def __init__(self, on_cancel: Callable[[], None] | None = None) -> None:
        self._lock = threading.Lock()
        self._state = 0  # 0 pending, 1 succeeded, 2 failed
        self._value: T | None = None
        self._error: BaseException | None = None
        self._cancelled_with: BaseException | None = None
        self._completer = 0
        self._callbacks: list[Callable[[Operation[T]], None]] | None = None
        self.on_cancel = on_cancel
        self.on_undo: Callable[[], None] | None = None
        self.slow_cancel = False

    @classmethod
    def succeeded(cls, value: T, on_undo: Callable[[], None] | None = None) -> Operation[T]:
        """Return one that is done."""
        operation = cls()
        operation._value, operation._state, operation.on_undo = value, 1, on_undo
        return operation

    @property
    def done(self) -> bool:
        return self._state != 0

    @property
    def is_cancelled(self) -> bool:
        """Whether it is being cancelled, or was."""
        return self._cancelled_with is not None

    @property
    def completed_here(self) -> bool:
        """Whether the calling thread completed it, and so has run its callbacks or is about to."""
        return self._completer == threading.get_ident()

    @property
    def error(self) -> BaseException | None:
        return self._error

    def result(self) -> T:
        """Return the value or raise the error of a completed operation."""
        if self._state == 1:
            return self._value  # type: ignore[return-value]
        assert self._error is not None, "result() of a pending operation"
        raise self._error

    def succeed(self, value: T) -> bool:
        return self._complete(1, value, None)

    def settle(self, value: T) -> bool:
        """Succeed without calling anybody yet, which ``tell`` does: for those who hold something.

        A cancel that comes in between comes too late.
        """
        with self._lock:
            if self._state != 0:
                return False
            self._completer = threading.get_ident()
            self._value, self._state, self.on_cancel = value, 1, None
        return True

    def tell(self) -> None:
        """Call those who wait for an operation that was settled."""
        with self._lock:
            callbacks, self._callbacks = self._callbacks, None
        if callbacks is not None:
            self._tell(iter(callbacks))

    def fail(self, error: BaseException) -> bool:
        return self._complete(2, None, error)

    def cancel(self, error: BaseException) -> bool:
        """Detach the operation from the caller's memory, then fail it. False if it was complete before.

        However the parts of it end while they are detached, ``error`` is what the caller gets.
        """
        if self._state != 0:
            return False
        with self._lock:
            if self._cancelled_with is None:
                self._cancelled_with = error
            on_cancel = self.on_cancel  # whoever completes it clears that at any moment
        if on_cancel is not None:
            try:
                on_cancel()
            except Exception:  # a defect, or no memory; who waits must not wait for ever
                logger.exception("detaching a cancelled operation failed")
        return self.fail(error) or self._error is error

    def cancel_or_undo(self, error: BaseException) -> None:
        """End the operation as if it had never been, for a caller who will not look at how it ended."""
        if not self.cancel(error) and self._state == 1 and self.on_undo is not None:
            undo, self.on_undo = self.on_undo, None  # once, although an interrupt may make the caller come again
            try:
                undo()
            except Exception:  # a defect, or no memory; the caller goes on all the same
                logger.exception("taking back an operation that had succeeded failed")

    def add_callback(self, callback: Callable[[Operation[T]], None]) -> None:
        """Call ``callback(self)`` once complete: at once if it is, else on the thread that completes it."""
        with self._lock:
            if self._state == 0:
                if self._callbacks is None:
                    self._callbacks = []
                self._callbacks.append(callback)
                return
        callback(self)

    def discard_callback(self, callback: Callable[[Operation[T]], None]) -> None:
        """The caller no longer waits; without effect once it is complete."""
        with self._lock:
            if self._callbacks is not None and callback in self._callbacks:
                self._callbacks.remove(callback)

    def _complete(self, state: int, value: T | None, error: BaseException | None) -> bool:
        with self._lock:
            if self._state != 0:
                return False
            if state == 2 and self._cancelled_with is not None:
                error = self._cancelled_with
            self._completer = threading.get_ident()
            self._value, self._error, self._state = value, error, state
            callbacks, self._callbacks, self.on_cancel = self._callbacks, None, None
        if callbacks is not None:
            self._tell(iter(callbacks))
        return True

    def _tell(self, callbacks: Iterator[Callable[[Operation[T]], None]]) -> None:
        try:
            for callback in callbacks:
                callback(self)
        except BaseException:  # an interrupt: the others wait for their news all the same
            self._tell(callbacks)
            raise

    def __await__(self) -> Generator[Operation[Any], None, T]:
        """Await inside a step coroutine that ``drive`` runs (not on an asyncio loop)."""
        if self._state == 0:
            yield self
        return self.result()


def settler(operation: Operation[None]) -> Callable[..., None]:
    """Return a callback that completes the operation and ignores its arguments."""

    def settle(*_: object) -> None:
        operation.succeed(None)

    return settle


def pass_on(source: Operation[T], target: Operation[T]) -> None:
    """Let one operation end as another does, which goes on if the first is cancelled, and forgets it then."""

    def complete(_: Operation[T]) -> None:
        if source.error is not None:
            target.fail(source.error)
        else:
            target.succeed(source.result())

    source.add_callback(complete)
    if not target.done and target.on_cancel is None:
        target.on_cancel = partial(source.discard_callback, complete)


async def settled(operation: Operation[Any]) -> None:
    """Wait, in steps, until an operation has ended, however; it goes on if the steps are cancelled meanwhile."""
    ended: Operation[None] = Operation()
    operation.add_callback(settler(ended))
    await ended


def drive(steps: Coroutine[Operation[Any], None, T]) -> Operation[T]:
    """Run a step coroutine to its end, on whichever threads complete the operations that it awaits.

    No event loop is involved: the coroutine is resumed in the completion callback, so that a collective goes on while
    the user's loop is busy. Cancelling the returned operation raises ``StepsCancelled`` in the steps, once, where they
    wait or will wait next, and returns when they have come to rest after it.
    """
    return _Drive(steps).start()


class StepsCancelled(Exception):
    """Thrown into the steps of a cancelled collective."""


class _Drive(Generic[T]):
    """The state of one ``drive``. The steps run on one thread at a time; ``_lock`` guards who that is."""

    __slots__ = ("_ended", "_lock", "_outer", "_resting", "_runner", "_steps", "_stop_asked", "_waiting")

    def __init__(self, steps: Coroutine[Operation[Any], None, T]) -> None:
        self._steps = steps
        self._outer: Operation[T] = Operation(self._stop)
        self._lock = threading.Lock()
        self._runner = 0
        self._waiting: Operation[Any] | None = None
        self._stop_asked = False
        self._ended = False
        self._resting: threading.Event | None = None  # set for those who asked to stop

    def start(self) -> Operation[T]:
        self._advance(None)
        return self._outer

    def _advance(self, _: Operation[Any] | None) -> None:
        self._runner = threading.get_ident()
        while True:
            try:
                awaited = self._steps.send(None)
            except StopIteration as stop:
                self._outer.succeed(stop.value)
                break
            except BaseException as error:  # handed to the caller, who awaits the outer operation
                # One that ends many operations would keep the frames of all; a cancel stays with what was awaited.
                if isinstance(error, MultiworldError | StepsCancelled):
                    error.__traceback__ = None
                self._outer.fail(error)
                if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
                    # It was meant for this thread, whoever awaits these steps.
                    self._rest(None)
                    raise
                break
            if awaited.done:
                continue
            if self._rest(awaited):
                awaited.add_callback(self._advance)
                return
            if not awaited.cancel(StepsCancelled()):  # it ended otherwise in that moment
                self._stop_asked = True
        self._rest(None)

    def _rest(self, waiting: Operation[Any] | None) -> bool:
        """Let others see what the steps wait for (None: they have ended). False: they were asked to stop instead."""
        with self._lock:
            if waiting is None:
                self._ended = True
            elif self._stop_asked:
                self._stop_asked = False
                return False
            self._runner, self._waiting = 0, waiting
            resting, self._resting = self._resting, None
        if resting is not None:
            resting.set()
        return True

    def _stop(self) -> None:
        while True:
            resting: threading.Event | None = None
            with self._lock:
                waiting = self._waiting
                if self._ended:
                    return
                if waiting is None or waiting.done:  # the steps run, or are about to
                    self._stop_asked = True
                    if self._runner == threading.get_ident() or (waiting is not None and waiting.completed_here):
                        return  # they cancel themselves; this thread runs them, so it must not wait for them
                    if self._resting is None:
                        self._resting = threading.Event()
                    resting = self._resting
            if resting is not None:
                resting.wait()
                return
            assert waiting is not None
            if waiting.cancel(StepsCancelled()):
                return
