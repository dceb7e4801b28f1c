"""How a job's end is told on a command line: a line and an exit status."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from ..errors import MultiworldError
from ..process.interruption import SIGNALLED
from ..process.logs.outlet import tell
from ..process.signal_names import signal_name

logger = logging.getLogger(__name__)

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
BAD_INPUT = 2
CONSOLE_S = 5.0  # for a console that is slow


def told(name: str, program: Callable[[Sequence[str] | None], object], arguments: Sequence[str] | None) -> int:
    """Run a launcher's program, and say in the name of a command how it ended. Returns the same statuses."""
    _open_missing_streams()
    try:
        with _log_shown(name):
            program(arguments)
    except ValueError as error:
        logger.debug("what the command line asked for was refused here", exc_info=True)
        return _tell(name, str(error), BAD_INPUT)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        return _tell(name, _failure_line(rank, failure), _worker_status(failure.exitcode))
    except SignalException as error:
        return _tell(name, f"ended by {signal_name(error.sigval)}", SIGNALLED + error.sigval)
    except KeyboardInterrupt:
        return _tell(name, "interrupted", SIGNALLED + signal.SIGINT)
    except MultiworldError as error:
        return _tell(name, str(error), 1)
    return 0


@contextmanager
def _log_shown(name: str) -> Iterator[None]:
    """Show what happens to the job on stderr: warnings, or what ``LOGLEVEL`` says, as under torchrun."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(f"{name}: %(message)s"))
    level = os.environ.get("LOGLEVEL", "WARNING").upper()
    package = logging.getLogger("multiworld")
    before = package.level, package.propagate
    package.addHandler(handler)
    package.setLevel(level if level in LEVELS else "WARNING")
    package.propagate = False
    try:
        yield
    finally:
        package.removeHandler(handler)
        package.setLevel(before[0])
        package.propagate = before[1]


def _open_missing_streams() -> None:
    """Else a socket gets the descriptor of a stream that this process was started without, and output goes there."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest that is free
            os.set_inheritable(descriptor, True)
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def _tell(name: str, what: str, status: int) -> int:
    tell(sys.stderr, f"{name}: {what}\n", CONSOLE_S)
    return status


def _failure_line(rank: int, failure: ProcessFailure) -> str:
    ended = f"failed with exit status {failure.exitcode}"
    if failure.exitcode < 0:
        ended = f"was ended by {signal_name(-failure.exitcode)}"
    reason = _reason(failure.message)
    return f"rank {rank} (local rank {failure.local_rank}, pid {failure.pid}) {ended}" + (
        f": {reason}" if reason else ""
    )


def _reason(message: object) -> str:
    """Return the first line of what a worker recorded of its end, if it did: ``record`` writes a dict."""
    text = message.get("message", "") if isinstance(message, dict) else ""
    return str(text).split("\n", 1)[0]


def _worker_status(exitcode: int) -> int:
    if exitcode < 0:
        return SIGNALLED - exitcode
    return exitcode or 1
