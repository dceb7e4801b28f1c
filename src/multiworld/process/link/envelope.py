"""What the frames of a control link hold: a question or a note, or an answer, a part of one, or a refusal. Pure.

A frame is ``{"say": "ask", "number": 7, "question": {…}}`` or ``{"say": "answered", "number": 7, …}`` with one of
``answer``, ``part`` (more follows) and ``error``. Nobody waits for the answer to number 0: that is a note.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final, NamedTuple

from ...errors import ProtocolError
from ...wire.json_forms import Json
from ...wire.messages import MAX_BYTES

NOTE: Final = 0


class Asked(NamedTuple):
    """``number`` is that of the asking end."""

    number: int
    question: object


class Answered(NamedTuple):
    """``name`` is ``answer``, ``part`` or ``error``. ``kind``: which error."""

    number: int
    name: str
    content: object
    kind: str = ""


def pack_asked(number: int, question: Mapping[str, Json]) -> bytes:
    """Raises ValueError if it is too long."""
    return _pack({"say": "ask", "number": number, "question": question})


def pack_answered(number: int, name: str, content: Json, kind: str = "") -> bytes:
    """Raises ValueError if it is too long."""
    named: dict[str, Json] = {"type": kind} if kind else {}
    return _pack({"say": "answered", "number": number, name: content, **named})


def unpack(body: bytes) -> Asked | Answered:
    """Raises ProtocolError for a frame of another protocol."""
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"a frame of a control link is not JSON: {error}") from None
    number = fields.get("number") if type(fields) is dict else None
    if type(number) is not int:
        raise ProtocolError("a frame of a control link has no number")
    if "question" in fields:
        return Asked(number, fields["question"])
    for name in ("part", "error", "answer"):
        if name in fields:
            return Answered(number, name, fields[name], str(fields.get("type", "")))
    raise ProtocolError("a frame of a control link asks nothing and answers nothing")


def _pack(fields: Mapping[str, Json]) -> bytes:
    body = json.dumps(fields, separators=(",", ":"), allow_nan=False).encode()
    if len(body) > MAX_BYTES:
        raise ValueError(f"a message of {len(body)} bytes is longer than {MAX_BYTES}")
    return body
