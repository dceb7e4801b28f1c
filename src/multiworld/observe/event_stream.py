"""Server-sent events, as ``EventSource`` of browsers reads them. Pure."""

from __future__ import annotations

CONTENT_TYPE = "text/event-stream"
KEEPALIVE = b": still here\n\n"
"""A comment: it keeps a silent connection from being taken for dead."""
KEEPALIVE_S = 15.0
MAX_DIGITS = 18  # of a number of events


def event(*data: bytes | bytearray | memoryview | str, name: str = "", event_id: str = "", retry_ms: int = 0) -> bytes:
    """Return one event. ``data``: parts of one line, such as JSON without line breaks.

    A browser that lost the connection comes again after ``retry_ms``, and says the last ``event_id``
    (``Last-Event-ID``).
    """
    fields = {"retry": str(retry_ms or ""), "id": event_id, "event": name}
    head = "".join(f"{field}: {value}\n" for field, value in fields.items() if value) + "data: "
    return b"".join((head.encode(), *(each.encode() if isinstance(each, str) else each for each in data), b"\n\n"))


def last_number(last_id: str, run: str = "") -> int:
    """Return the number in a ``Last-Event-ID`` of the form ``run:number`` or ``number``; 0 if it is of another run."""
    of, _, number = last_id.rpartition(":")
    is_number = number.isascii() and number.isdecimal() and len(number) <= MAX_DIGITS
    return int(number) if of == run and is_number else 0
