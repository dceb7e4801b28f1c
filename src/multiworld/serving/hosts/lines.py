"""JSON objects over a stream of bytes, one on each line. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ...errors import ProtocolError

__all__ = ["LONGEST_LINE", "LineSplitter", "to_line"]

LONGEST_LINE = 16 * 1024 * 1024


def to_line(record: Mapping[str, Any]) -> bytes:
    """Return the line. Raises TypeError for what is no JSON, ValueError if it is too long."""
    line = json.dumps(record, separators=(",", ":")).encode() + b"\n"
    if len(line) > LONGEST_LINE:
        raise ValueError(f"a record of {len(line)} bytes is longer than a line may be: {LONGEST_LINE}")
    return line


class LineSplitter:
    """Cuts what comes into records. ``longest`` bounds what is held; it may be raised once the peer is known."""

    def __init__(self, longest: int = LONGEST_LINE) -> None:
        self.longest = longest
        self._partial = bytearray()
        self._looked_at = 0

    def feed(self, chunk: bytes) -> list[dict[str, Any]]:
        """Return the records that are whole now. Raises ProtocolError for a line that is too long, or no object."""
        self._partial += chunk
        records = []
        while (end := self._partial.find(b"\n", self._looked_at)) >= 0:
            if end > self.longest:
                break
            records.append(_to_record(bytes(self._partial[:end])))
            del self._partial[: end + 1]
            self._looked_at = 0
        self._looked_at = len(self._partial)
        if self._looked_at > self.longest:
            raise ProtocolError(f"a line is longer than {self.longest} bytes")
        return records


def _to_record(line: bytes) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"a line is not JSON: {error}") from error
    if not isinstance(record, dict):
        raise ProtocolError("a line holds no object")
    return record
