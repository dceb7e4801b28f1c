"""Log records on a thread of their own: real pipes, whose reader may be away."""

from __future__ import annotations

import fcntl
import io
import logging
import os
import socket
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from multiworld.process.logs import carrier as carrier_module
from multiworld.process.logs.carrier import LogCarrier
from multiworld.process.logs.outlet import Outlet, tell
from multiworld.testing import wait_until
from multiworld.wire.progress.thread import ProgressThread

pytestmark = pytest.mark.usefixtures("no_leaks")

F_SETPIPE_SZ, F_GETPIPE_SZ = 1031, 1032
DROPPED = "lines were not shown: the console did not take them"


class FullConsole:
    """What ``sys.stderr`` is if its pipe is full."""

    def __init__(self) -> None:
        self.read_fd, write_fd = os.pipe()
        fcntl.fcntl(write_fd, F_SETPIPE_SZ, 4096)
        self.size = fcntl.fcntl(write_fd, F_GETPIPE_SZ)
        os.write(write_fd, b"x" * self.size)
        self.stream = os.fdopen(write_fd, "w", buffering=1)

    def read_until(self, end: str) -> str:
        """Return what comes after what filled it, up to and with ``end``."""
        text = ""
        while end not in text:
            text += os.read(self.read_fd, 4096).decode()
        return text.replace("x" * self.size, "")

    def close(self) -> None:
        self.stream.close()
        os.close(self.read_fd)


@pytest.fixture
def console() -> Iterator[FullConsole]:
    console = FullConsole()
    yield console
    console.close()


@contextmanager
def carried(handler: logging.Handler) -> Iterator[tuple[logging.Logger, LogCarrier]]:
    """A logger with that handler, whose records are carried."""
    logger = logging.getLogger("test of carried logs")
    logger.propagate = False
    logger.addHandler(handler)
    carrier = LogCarrier(logger)
    try:
        yield logger, carrier
    finally:
        carrier.close(5.0)
        logger.removeHandler(handler)


def call_on(loop: ProgressThread, call: Callable[[], None]) -> bool:
    """Whether the thread comes to what is behind that call."""
    done = threading.Event()
    loop.call_soon(call)
    loop.call_soon(done.set)
    return done.wait(5.0)


def test_a_thread_that_logs_does_not_wait_for_a_console_that_nobody_reads_and_no_line_is_lost(
    console: FullConsole,
) -> None:
    handler = logging.StreamHandler(console.stream)
    handler.setFormatter(logging.Formatter("run: %(message)s"))
    loop = ProgressThread("test")
    with carried(handler) as (logger, _):
        assert call_on(loop, lambda: logger.warning("rank %d failed", 3))
        assert call_on(loop, lambda: logger.warning("rank %d is started again", 3))
        assert console.read_until("again\n") == "run: rank 3 failed\nrun: rank 3 is started again\n"
    loop.stop()


def test_lines_that_find_too_many_waiting_are_counted_and_the_number_is_told(
    console: FullConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(carrier_module, "MAX_WAITING", 2)
    with carried(logging.StreamHandler(console.stream)) as (logger, carrier):
        logger.warning("taken by the thread")
        assert wait_until(lambda: carrier._records.empty(), timeout_s=5.0)
        for number in range(7):
            logger.warning("line %d", number)
        shown = console.read_until("line 1\n").splitlines()
        assert "line 2" not in shown
        assert {"taken by the thread", f"5 {DROPPED}"} <= set(shown)


def test_at_the_end_a_console_that_takes_nothing_is_given_up_and_the_handlers_are_as_before(
    console: FullConsole,
) -> None:
    handler = logging.StreamHandler(console.stream)
    with carried(handler) as (logger, carrier):
        assert handler not in logger.handlers
        logger.warning("nobody will see this")
        assert not carrier.close(0.01)
        assert handler in logger.handlers
        assert not [thread for thread in threading.enumerate() if thread.name == "multiworld-console"]


def test_a_handler_that_is_no_console_gets_records_as_they_were_with_what_its_logger_inherits() -> None:
    records: list[logging.LogRecord] = []
    threads: set[int] = set()

    class Keeping(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)
            threads.add(threading.get_ident())

    above = Keeping(logging.ERROR)
    parent, child = logging.getLogger("above the test"), logging.getLogger("above the test.below")
    parent.addHandler(above)
    parent.propagate = False
    carrier = LogCarrier(child)
    arguments = [1]
    child.warning("not for it")
    child.error("%s", arguments, exc_info=(ValueError, ValueError("why"), None))
    arguments.append(2)
    assert carrier.close(5.0)
    parent.removeHandler(above)
    [record] = records
    assert record.getMessage() == "[1]"
    assert record.exc_info is not None
    assert threads != {threading.get_ident()}
    assert child.propagate


def test_a_console_whose_reader_went_away_stops_nothing() -> None:
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    with os.fdopen(write_fd, "w", buffering=1) as stream:
        with carried(logging.StreamHandler(stream)) as (logger, carrier):
            logger.warning("one")
            logger.warning("two")
            assert carrier.close(5.0)
        tell(stream, "three\n", 5.0)


def test_last_words_wait_for_a_full_console_for_a_bounded_time_and_reach_one_that_is_read(console: FullConsole) -> None:
    tell(console.stream, "too late\n", 0.01)
    reader = threading.Thread(target=os.read, args=(console.read_fd, console.size))
    reader.start()
    tell(console.stream, "in time\n", 5.0)
    reader.join()
    assert console.read_until("\n") == "in time\n"
    memory = io.StringIO()
    tell(memory, "as it is\n", 0.0)
    assert memory.getvalue() == "as it is\n"


def test_an_outlet_on_a_socket_writes_what_it_takes_and_does_not_block_others() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, ours.makefile("w") as stream:
        outlet = Outlet(stream)
        assert outlet.write(b"hello\n", 5.0) == b""
        assert theirs.recv(100) == b"hello\n"
        assert outlet.write(b"x" * 10_000_000, 0.0)
        assert ours.getblocking()
        outlet.close()


def test_a_long_text_is_written_in_parts_that_end_with_a_line() -> None:
    read_fd, write_fd = os.pipe()
    with os.fdopen(write_fd, "w") as stream:
        outlet = Outlet(stream)
        written = outlet.write_some(b"a" * 3000 + b"\n" + b"b" * 3000 + b"\n")
        assert written == 3001
        outlet.close()
    os.close(read_fd)


def test_a_terminal_that_was_stopped_is_not_waited_for() -> None:
    reader_fd, terminal_fd = os.openpty()
    with os.fdopen(terminal_fd, "w") as terminal:
        outlet = Outlet(terminal)
        termios.tcflow(terminal_fd, termios.TCOOFF)  # what Ctrl-S does
        assert outlet.write(b"hello\n", 0.0) == b"hello\n"
        termios.tcflow(terminal_fd, termios.TCOON)
        assert outlet.write(b"hello\n", 5.0) == b""
        assert os.read(reader_fd, 100) == b"hello\r\n"
        outlet.close()
    os.close(reader_fd)
