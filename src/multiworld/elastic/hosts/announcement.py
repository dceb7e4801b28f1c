"""The line by which a job's first coordinator says where it is, for people and for programs that wait for it. Pure."""

from __future__ import annotations

import re
import shlex

from ...wire.endpoints.bracketed import bracketed

COORDINATOR = re.compile(r", coordinator (\S+):(\d+)")


def announcement(job: str, host: str, port: int, page: str | None) -> str:
    """Return the line, without the command's name before it. ``host``: numeric; any command may ask there."""
    name = shlex.quote(job)
    shown = "" if page is None else f", page {page}"
    return f"job {job}, coordinator {bracketed(host)}:{port}{shown}; 'multiworld status --job {name}' shows how it is"


def find_coordinator(line: str) -> tuple[str, int] | None:
    """Return host and port from such a line, or None if it is another one."""
    found = COORDINATOR.search(line)
    return None if found is None else (found[1].removeprefix("[").removesuffix("]"), int(found[2]))
