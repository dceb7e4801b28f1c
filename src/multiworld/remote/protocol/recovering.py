"""Records of recovery: take a snapshot of all tensors, restore one, and repeat what was answered before. Pure.

A snapshot is a manifest, which says what is where, and the bytes of each memory, which travel beside it in chunks.
"""

from __future__ import annotations

import base64
import binascii
import json
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from ...errors import MessageError, ProtocolError
from . import specs
from .checks import count, text
from .messages import TO_MASTER, Failed
from .records import HEAD, MAX_ID, record, unpack
from .specs import Spec

CHUNK_BYTES: Final = 4 * 1024 * 1024
"""Memories travel in messages of at most this size, so that other large tensors come between them."""
MAX_PARTS: Final = 256
"""Parts of memories in one message."""
_SNAPSHOT: Final = struct.Struct("<Q")
_RESTORE: Final = struct.Struct("<QI")
_REPEAT: Final = struct.Struct("<I")


class RecoveryKind(IntEnum):
    """The built-in records of recovery, from 50 to 59."""

    SNAPSHOT = 50
    """Answer with the manifest of all tensors as they are now, and send their memories."""
    RESTORE = 51
    """Make the tensors of a manifest; the records behind this one count from behind its snapshot."""
    REPEAT = 52
    """A question (``Kind.ASK``) that was answered before: the answer must be the same, and nobody waits for it."""
    SKIP = 53
    """Stands for a request that was answered before, so that all records keep their positions."""
    REPORT = 54
    """Tell the master now what was executed."""


class StoredMemory(NamedTuple):
    """``device``: on the node."""

    num_bytes: int
    device: str


class Part(NamedTuple):
    """The bytes from ``begin`` to ``end`` of a memory, by its place in the manifest."""

    memory: int
    begin: int
    end: int


class View(NamedTuple):
    """A tensor: ``memory`` is the place of its memory in the manifest."""

    id: int
    memory: int
    spec: Spec


class LostEntry(NamedTuple):
    """An id whose tensor does not exist because of ``failure``."""

    id: int
    failure: Failed


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """``position``: of the record that asked for the snapshot. ``generators``: states by device."""

    position: int
    memories: tuple[StoredMemory, ...]
    views: tuple[View, ...]
    lost: tuple[LostEntry, ...]
    generators: tuple[tuple[str, bytes], ...]

    @property
    def num_bytes(self) -> int:
        return sum(memory.num_bytes for memory in self.memories)

    def encode(self) -> bytes:
        shown = [
            self.position,
            [list(memory) for memory in self.memories],
            [[view.id, view.memory, specs.to_json(view.spec)] for view in self.views],
            [[id_, TO_MASTER.encode(failure).decode()] for id_, failure in self.lost],
            [[device, base64.b64encode(state).decode()] for device, state in self.generators],
        ]
        return json.dumps(shown, separators=(",", ":")).encode()


def read_manifest(encoded: bytes | memoryview) -> Manifest:
    """Raises ProtocolError for what ``encode`` does not return."""
    try:
        position, memories, views, lost, generators = json.loads(bytes(encoded))
        manifest = Manifest(
            position=count(position, MAX_ID),
            memories=tuple(StoredMemory(count(num_bytes, MAX_ID), text(device)) for num_bytes, device in memories),
            views=tuple(
                View(count(id_, MAX_ID), count(memory, MAX_ID), specs.from_json(spec)) for id_, memory, spec in views
            ),
            lost=tuple(LostEntry(count(id_, MAX_ID), _failed(failure)) for id_, failure in lost),
            generators=tuple((text(device), base64.b64decode(state, validate=True)) for device, state in generators),
        )
    except (TypeError, ValueError, RecursionError, binascii.Error, MessageError) as error:
        raise ProtocolError(f"a bad manifest of a snapshot: {error}") from None
    if any(view.memory >= len(manifest.memories) for view in manifest.views):
        raise ProtocolError(f"a manifest of {len(manifest.memories)} memories, with a view of another one")
    return manifest


def snapshot(request: int) -> bytes:
    return record(RecoveryKind.SNAPSHOT, _SNAPSHOT.pack(request))


def read_snapshot(body: bytes) -> int:
    return int(unpack(_SNAPSHOT, body)[0])


def restore(request: int, definitions: bytes, manifest: bytes) -> bytes:
    """``request``: the memories come with its tag. ``definitions``: records of all that was defined by then."""
    return record(RecoveryKind.RESTORE, _RESTORE.pack(request, len(definitions)) + definitions + manifest)


def read_restore(body: bytes) -> tuple[int, bytes, Manifest]:
    request, size = unpack(_RESTORE, body[: _RESTORE.size])
    end = _RESTORE.size + size
    return request, body[_RESTORE.size : end], read_manifest(body[end:])


def repeat(question: bytes, expected: bytes) -> bytes:
    """``question``: the body of the record that asked. ``expected``: its answer; empty if nobody knows it."""
    return record(RecoveryKind.REPEAT, _REPEAT.pack(len(question)) + question + expected)


def read_repeat(body: bytes) -> tuple[bytes, bytes]:
    (size,) = unpack(_REPEAT, body[: _REPEAT.size])
    end = _REPEAT.size + size
    if end > len(body):
        raise ProtocolError(f"a question of {size} bytes in a record of {len(body)}")
    return body[_REPEAT.size : end], body[end:]


SKIP: Final = HEAD.pack(RecoveryKind.SKIP, 0)
REPORT: Final = HEAD.pack(RecoveryKind.REPORT, 0)


def chunks(sizes: Iterable[int]) -> Iterator[list[Part]]:
    """Yield in what parts memories of these sizes travel: those of one message together."""
    chunk: list[Part] = []
    room = CHUNK_BYTES
    for memory, size in enumerate(sizes):
        begin = 0
        while begin < size:
            end = min(begin + room, size)
            chunk.append(Part(memory, begin, end))
            room -= end - begin
            begin = end
            if not room or len(chunk) == MAX_PARTS:
                yield chunk
                chunk, room = [], CHUNK_BYTES
    if chunk:
        yield chunk


def _failed(shown: object) -> Failed:
    said = TO_MASTER.decode(text(shown).encode())
    if not isinstance(said, Failed):
        raise ValueError(f"{said!r} is no failure")
    return said
