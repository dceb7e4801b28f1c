"""The agent's end of a connection of somebody who asks about the job."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ...errors import ProtocolError
from ...wire.connection import Connection
from ...wire.frames import Header, Kind, pack_frame
from ...wire.handshake import decode_fields, encode_fields

__all__ = ["Visitor"]

MAX_QUESTION_BYTES = 16 * 1024
MAX_UNSENT = 64  # parts of answers, for a visitor that is slow to read


class Visitor:
    """A connection sink. ``is_local``: a process of this host and user, as the kernel says."""

    def __init__(
        self,
        connection: Connection,
        *,
        is_local: bool,
        on_ask: Callable[[Visitor, int, dict[str, Any]], None],
        on_lost: Callable[[Visitor], None],
    ) -> None:
        self.is_local = is_local
        self._connection = connection
        self._on_ask, self._on_lost = on_ask, on_lost

    @property
    def closed(self) -> bool:
        return self._connection.closed

    def tell(self, number: int, payload: dict[str, Any]) -> bool:
        """Send the answer to a question, or a part of it, from any thread. False: the visitor is too slow for parts."""
        if "part" in payload and self._connection.num_queued >= MAX_UNSENT:
            return False
        fields = {"say": "answered", "number": number, **payload}
        self._connection.send(pack_frame(Kind.AGENT_NOTE, encode_fields(fields)))
        return True

    def finish(self) -> None:
        """Close behind what is still to be sent."""
        self._connection.finish_writing(lambda: None)
        self._connection.loop.call_later(1.0, self._connection.abort)

    # connection sink
    def opened(self, connection: Connection) -> None:
        connection.parser.max_meta_bytes = MAX_QUESTION_BYTES

    def begin(self, header: Header, meta: bytes) -> memoryview | None:
        if header.payload_bytes or header.kind != Kind.AGENT_NOTE:
            raise ProtocolError(f"frame kind {header.kind} from somebody who should ask")
        return None

    def end(self, header: Header, meta: bytes) -> None:
        note = decode_fields(meta)
        number, question = note.get("number"), note.get("question")
        if type(number) is not int or type(question) is not dict:
            raise ProtocolError("that is no question")
        self._connection.defer(partial(self._on_ask, self, number, question))

    def lost(self, reason: str) -> None:
        self._on_lost(self)
