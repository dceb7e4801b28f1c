"""Find out which process of this host listens at a port, as far as this user may see it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

__all__ = ["Listener", "find_listener"]

LISTENING = "0A"  # in the column "st" of /proc/net/tcp


class Listener(NamedTuple):
    """A process that listens."""

    pid: int
    name: str


def find_listener(port: int) -> Listener | None:
    """Return a process that listens at that TCP port; None if there is none, or it is another user's."""
    sockets = {f"socket:[{inode}]" for inode in _inodes(port)}
    if not sockets:
        return None
    for name in os.listdir("/proc"):
        if name.isdecimal() and not sockets.isdisjoint(_open_files(f"/proc/{name}/fd")):
            with suppress(OSError):
                return Listener(int(name), Path("/proc", name, "comm").read_text(errors="replace").strip())
    return None


def _inodes(port: int) -> Iterator[str]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                columns = line.split()
                local, state, inode = columns[1], columns[3], columns[9]
                if state == LISTENING and int(local.rpartition(":")[2], 16) == port:
                    yield inode


def _open_files(folder: str) -> Iterator[str]:
    with suppress(OSError):  # the process has ended, or is another user's
        for name in os.listdir(folder):
            with suppress(OSError):
                yield os.readlink(f"{folder}/{name}")
