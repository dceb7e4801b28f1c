"""Tell a command that is missing from one that may not be run, for which the kernel has one error where they mix."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping


def start_error(error: OSError, command: str, env: Mapping[str, str]) -> OSError:
    """Return why a command of that environment could not be started, as one error that names the command.

    A folder of PATH that this user may not enter hides whether the command is there: it is taken for missing then, as
    by shells, unless another folder has it.
    """
    number = error.errno
    if number == errno.EACCES and os.sep not in command and not _is_anywhere(command, env):
        number = errno.ENOENT
    if number is None:
        return error
    return OSError(number, os.strerror(number), command)


def _is_anywhere(command: str, env: Mapping[str, str]) -> bool:
    return any(os.path.exists(os.path.join(folder, command)) for folder in os.get_exec_path(env))
