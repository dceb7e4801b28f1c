"""Start an interpreter of its own that runs a function of ours, for as long as this process or longer."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

from . import seqpacket

# Without the folder of a script in front: what lies there is the program's, not ours. Where this package was found by
# that folder, the last entry finds it.
BOOTSTRAP = (
    "import sys; sys.path[:] = [entry for entry in sys.path if entry]; sys.path.append({root!r}); "
    "from {module} import {function}; sys.path.pop(); {function}({arguments})"
)


def start_interpreter(
    program: str, channel: socket.socket, *arguments: bool | str, reads_stdin: bool
) -> subprocess.Popen[bytes]:
    """Start ``program``, ``"module:function"``; it is called with the channel's descriptor and ``arguments``.

    It leads a session of its own. ``reads_stdin``: it has this process's standard input; else an empty one. Raises
    OSError.
    """
    module, _, function = program.partition(":")
    code = BOOTSTRAP.format(
        root=str(Path(__file__).parents[3]),
        module=module,
        function=function,
        arguments=", ".join(map(repr, (channel.fileno(), *arguments))),
    )
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=None if reads_stdin else subprocess.DEVNULL,
        pass_fds=(channel.fileno(),),
        start_new_session=True,
    )


def start_connected(program: str) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start a program that needs no standard input, and return it with our end of its channel. Raises OSError."""
    ours, theirs = seqpacket.connected_pair()
    with theirs:
        try:
            return start_interpreter(program, theirs, reads_stdin=False), ours
        except BaseException:
            ours.close()
            raise
