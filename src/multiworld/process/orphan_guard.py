"""Owns one tiny child process that kills what this process's children leave behind, however this process ends.

The kernel ends those children with this process (``die_with_parent``), but not what they have started themselves.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress

from ..world.processes.kept_process import KeptProcess, Loop, start_program
from . import orphan_guard_program
from .spawn.forking import WAITED_FOR

WHAT = "the guard against orphans"
END_S = 3.0  # longer than it takes at most


class OrphanGuard:
    """On the loop's thread; ``close`` also after the loop has stopped.

    It kills what is in the session of a watched process when that has ended. What has made a session of its own is
    left alone: such a process means to go on.
    """

    def __init__(self, loop: Loop) -> None:
        self._watched: set[int] = set()
        self._kept = KeptProcess(loop, WHAT, _Process, self._tell_all)

    def begin(self) -> None:
        process = self._kept.begin()
        if process is not None:
            self._tell_all(process)

    @property
    def pid(self) -> int | None:
        """None while it cannot be started."""
        return None if self._kept.current is None else self._kept.current.pid

    def watch(self, pid: int) -> None:
        """Guard a child of this process, which is in ``WAITED_FOR``, and leads a session or is about to."""
        self._watched &= WAITED_FOR  # else the next guard might take another process for one that has ended
        self._watched.add(pid)
        if self._kept.current is not None:
            self._kept.current.tell(str(pid))

    def close(self) -> None:
        """Kill the watched, and what they leave behind. Idempotent, bounded."""
        process = self._kept.release()
        if process is not None:
            process.finish()

    def _tell_all(self, process: _Process) -> None:
        self._watched &= WAITED_FOR
        process.tell(*map(str, self._watched))


class _Process:
    """One that runs."""

    def __init__(self) -> None:
        self._process = start_program(orphan_guard_program.__file__, str(os.getpid()))
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)
        WAITED_FOR.add(self.pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, *lines: str) -> None:
        """One that ended, or does not read, is replaced soon, and the next one is told of all."""
        assert self._process.stdin is not None
        content = "".join(f"{line}\n" for line in lines).encode()
        try:
            written = self._process.stdin.write(content) if content else 0
        except BrokenPipeError:
            return
        if written is None or written < len(content):
            self._process.kill()

    def finish(self) -> None:
        """Have it do its work, and end."""
        self.tell(orphan_guard_program.END)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S)
        self.close()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()  # last: one that runs on takes this for our end, and kills all that it guards
        WAITED_FOR.discard(self.pid)
