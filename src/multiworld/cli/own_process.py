"""Run a command that is all of its process: its end is one line and a status, also after a signal."""

from __future__ import annotations

import errno
import gc
import signal
from collections.abc import Callable

from ..process.interruption import SIGNALLED, Interrupted, end_on_signals, tell
from .streams import OutputError, own_streams

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


def run_in_own_process(name: str, command: Callable[[], int]) -> int:
    """Return the command's exit status; 128 + N after signal N, 1 if its output could not be written.

    A reader of its output that has seen enough is no failure of a command that only shows something.
    """
    end_on_signals(name)
    try:
        with own_streams():
            return command()
    except Interrupted as interrupted:
        return _told(str(interrupted), SIGNALLED + interrupted.signum)
    except KeyboardInterrupt:
        return _told(str(Interrupted(signal.SIGINT)), SIGNALLED + signal.SIGINT)
    except OutputError as error:
        if error.reader_has_gone:
            return error.status_unread
        return _told(f"its output cannot be written: {error.strerror}", 1)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        return _told(f"{error.filename or 'a file'} cannot be written: {error.strerror}", 1)
    finally:
        gc.freeze()  # else the end of the interpreter looks through all that torch has made, for a second


def _told(what: str, status: int) -> int:
    tell(what)
    return status
