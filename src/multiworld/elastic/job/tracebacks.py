"""Read what Python wrote about an exception: which one it was, and whether another rank caused it. Pure: text in.

What a worker leaves is text, in an error file or on stderr, and nothing of it may be unpickled: classes are known by
the qualified names that Python prints before the message.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ...errors import WorldBrokenError

UNKNOWN_RANK = -1  # another rank is the cause, but nobody says which
HEAD = "Traceback (most recent call last):"
LINKS = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
MAX_LINES = 200
PLACE = re.compile(r'  File ".+", line \d+$')
UNREADABLE = re.compile(r"(?:SyntaxError|IndentationError|TabError): ")
RAISED = re.compile(r"^[ \t|]*([A-Za-z_][\w.]*)(?:: (.*))?$", re.MULTILINE)
LOST_RANK = re.compile(r"\b(?:lost|by|because) rank (-?\d+)\b")
WORLD = re.compile(r"^(?:world '(.+?)' \(generation|(.+?) broken: )")
PEER_RAISED = "multiworld.training.errors.PeerRaisedError"
RAISED_ON = re.compile(r"^the program raised on rank (\d+) in step ")
PEER_ERRORS = re.compile(r"torch\.distributed\.Dist(?:Backend|Network|Store|)Error")
PEER_SIGNS = ("gloo/transport/",)  # the source file that Gloo names when a connection fails; it raises RuntimeError


class Cause(NamedTuple):
    """Whose failure broke the world that this worker was in. ``rank`` counts in that world.

    Without a world, and with a rank: the program raised on that rank of the job.
    """

    rank: int
    world: str | None


def last_traceback(lines: Sequence[str]) -> str | None:
    """Return the traceback at the end of what a process wrote to stderr, with those that led to it."""
    heads = [number for number, line in enumerate(lines) if line.endswith(HEAD)]
    if not heads:
        return _unreadable(lines)
    first = heads.pop()
    while heads and any(line in LINKS for line in lines[heads[-1] : first]):
        first = heads.pop()
    found = lines[first:]
    if len(found) > MAX_LINES:
        found = [f"... {len(found) - MAX_LINES} lines left out ...", *found[-MAX_LINES:]]
    return "\n".join(found)


def _unreadable(lines: Sequence[str]) -> str | None:
    """Return what Python says of a main program that it cannot read: no frames, so no traceback."""
    if not lines or not UNREADABLE.match(lines[-1]):
        return None
    places = [number for number, line in enumerate(lines) if PLACE.match(line)]
    return "\n".join(lines[places[-1] :]) if places else None


def exception_line(traceback: str) -> str | None:
    """Return the line that names the exception and its message: the first after the last frames."""
    lines = traceback.splitlines()
    heads = [number for number, line in enumerate(lines) if line.endswith(HEAD)]
    for line in lines[heads[-1] + 1 if heads else 0 :]:
        if line and not line[0].isspace() and RAISED.match(line):
            return line
    return None


def fatal_line(lines: Sequence[str]) -> str | None:
    """Return what the interpreter said before it was killed by a fault of its own, such as a segmentation fault."""
    return next((line for line in reversed(lines) if line.startswith("Fatal Python error: ")), None)


def find_cause(traceback: str) -> Cause | None:
    """Return who caused an exception, if it says so: a broken world, or a connection to another rank that failed."""
    causes = [cause for name, text in _raised(traceback) if (cause := _cause_of(name, text)) is not None]
    return next((cause for cause in causes if cause.rank != UNKNOWN_RANK), causes[0] if causes else None)


def _raised(traceback: str) -> Iterator[tuple[str, str]]:
    for found in RAISED.finditer(traceback):
        yield found[1], found[2] or ""


def _cause_of(name: str, text: str) -> Cause | None:
    if name in _WORLD_ERRORS:
        rank, world = LOST_RANK.search(text), WORLD.match(text)
        return Cause(int(rank[1]) if rank else UNKNOWN_RANK, (world[1] or world[2]) if world else None)
    if name == PEER_RAISED and (raised_on := RAISED_ON.match(text)):
        return Cause(int(raised_on[1]), None)
    if PEER_ERRORS.fullmatch(name) or any(sign in text for sign in PEER_SIGNS):
        return Cause(UNKNOWN_RANK, None)
    return None


def _names(kind: type[WorldBrokenError]) -> Iterator[str]:
    yield f"{kind.__module__}.{kind.__qualname__}"
    for each in kind.__subclasses__():
        yield from _names(each)


_WORLD_ERRORS = frozenset(_names(WorldBrokenError))
