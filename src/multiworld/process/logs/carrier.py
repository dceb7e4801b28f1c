"""Take log records off the threads that make them, so that a console that nobody reads delays no heartbeat."""

from __future__ import annotations

import logging
import queue
import threading
from contextlib import suppress
from logging.handlers import QueueHandler
from typing import Any

from .outlet import Outlet, find_descriptor

MAX_WAITING = 1000  # records; most are one line
LOOK_S = 0.1  # whether it still makes sense to wait for a console


class LogCarrier:
    """While it is open, what some loggers and those below them are told reaches their handlers on a thread of its own.

    Nobody waits for them. Records that find too many waiting are dropped, and their number is told later.
    """

    def __init__(self, *loggers: logging.Logger) -> None:
        self._closing = threading.Event()
        self._records: queue.Queue[tuple[_Inlet, logging.LogRecord] | None] = queue.Queue(MAX_WAITING)
        self._inlets = [_Inlet(self._records, logger, self._closing) for logger in loggers]
        self._ended = False
        self._thread = threading.Thread(target=self._carry, name="multiworld-console", daemon=True)
        self._thread.start()

    def close(self, timeout_s: float) -> bool:
        """Give the handlers back, and wait so long for what they have not taken yet. Whether they took it. Idempotent.

        From then on nothing waits for a console.
        """
        if not self._ended:
            self.give_back()
            self._ended = True
            with suppress(queue.Full):  # then the thread sees that no more will come
                self._records.put_nowait(None)
        self._thread.join(timeout_s)
        was_in_time = not self._thread.is_alive()
        self._closing.set()
        if not was_in_time:  # what waits for a console gives up now; another handler cannot be freed from its wait
            self._thread.join(2 * LOOK_S)
        return was_in_time

    def give_back(self) -> None:
        """Have the loggers speak to their own handlers again; all that is to be done in a child that was forked."""
        for inlet in self._inlets:
            inlet.give_back()

    def _carry(self) -> None:
        while True:
            try:
                item = self._records.get(timeout=0 if self._ended else None)
            except queue.Empty:
                break
            if item is None:
                break
            inlet, record = item
            inlet.hand_on(record)
        for inlet in self._inlets:
            inlet.close()


class _Inlet(QueueHandler):
    """Stands in the place of all handlers of one logger: puts records into the queue, or counts those it cannot."""

    def __init__(self, records: queue.Queue[Any], logger: logging.Logger, closing: threading.Event) -> None:
        super().__init__(records)
        self._logger, self._before, self._propagated = logger, list(logger.handlers), logger.propagate
        self._targets = [_patient(handler, closing) for handler in _handlers_of(logger)]
        self._num_dropped = 0
        for handler in self._before:
            logger.removeHandler(handler)
        logger.addHandler(self)
        logger.propagate = False

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """Its arguments may be others by the time that it is shown."""
        record.msg, record.args = record.getMessage(), None
        return record

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            self.queue.put_nowait((self, record))
        except queue.Full:
            self._num_dropped += 1  # under this handler's lock

    def give_back(self) -> None:
        self._logger.removeHandler(self)
        for handler in self._before:
            self._logger.addHandler(handler)
        self._logger.propagate = self._propagated

    def hand_on(self, record: logging.LogRecord) -> None:
        """On the carrier's thread."""
        self._tell_targets(record)
        self.acquire()
        dropped, self._num_dropped = self._num_dropped, 0
        self.release()
        if dropped:
            text = "%d lines were not shown: the console did not take them"
            self._tell_targets(
                logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, (dropped,), exc_info=None)
            )

    def close(self) -> None:
        for target in self._targets:
            if isinstance(target, _PatientHandler):
                target.close()
        super().close()

    def _tell_targets(self, record: logging.LogRecord) -> None:
        for target in self._targets:
            if record.levelno >= target.level:
                target.handle(record)


class _PatientHandler(logging.Handler):
    """Writes to the descriptor of another handler's stream, and waits for its reader until it makes no sense any more.

    The other one would wait within a write, with the lock of ``sys.stderr``, say, at which an interpreter that ends
    aborts.
    """

    def __init__(self, other: logging.StreamHandler[Any], closing: threading.Event) -> None:
        super().__init__(other.level)
        self.formatter, self.filters = other.formatter, list(other.filters)
        self._outlet: Outlet | None = Outlet(other.stream)
        self._encoding = getattr(other.stream, "encoding", None) or "utf-8"
        self._terminator, self._closing = other.terminator, closing

    def emit(self, record: logging.LogRecord) -> None:
        if self._outlet is None:
            return
        try:
            rest = (self.format(record) + self._terminator).encode(self._encoding, "backslashreplace")
            while rest and not self._closing.is_set():
                rest = self._outlet.write(rest, LOOK_S)
        except OSError:  # its reader went away
            self.close()
        except Exception:
            self.handleError(record)

    def close(self) -> None:
        if self._outlet is not None:
            self._outlet.close()
            self._outlet = None
        super().close()


def _patient(handler: logging.Handler, closing: threading.Event) -> logging.Handler:
    """Return what does the same as a handler, but for a wait within a write to the console."""
    if not isinstance(handler, logging.StreamHandler):
        return handler
    is_plain = type(handler) is logging.StreamHandler or handler is logging.lastResort
    has_descriptor = find_descriptor(handler.stream) is not None
    return _PatientHandler(handler, closing) if is_plain and has_descriptor else handler


def _handlers_of(logger: logging.Logger) -> list[logging.Handler]:
    """Return those that its records reach."""
    handlers: list[logging.Handler] = []
    each: logging.Logger | None = logger
    while each is not None:
        handlers += each.handlers
        each = each.parent if each.propagate else None
    return handlers or ([logging.lastResort] if logging.lastResort is not None else [])
