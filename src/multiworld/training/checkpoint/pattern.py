"""What stays the same in a data file from one checkpoint to the next, and where the rest of it belongs. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

CHUNK_BYTES = 64 << 10
"""Smaller pieces are joined, so that a file of thousands of tensors is written and hashed by few calls."""

Piece = bytes | slice | str
"""Bytes that stay the same, a range of the memory that has the tensors, or the name of what is packed each time."""


@dataclass(frozen=True)
class Pattern:
    """``lengths``: in bytes, of what is packed each time. With another length it would no longer fit."""

    pieces: Sequence[Piece]
    lengths: Mapping[str, int]

    @classmethod
    def of(cls, items: Sequence[tuple[str, int]], ranges: Mapping[str, tuple[bytes, slice, bytes]]) -> Pattern:
        """``items``: names and lengths, in the order in which they lie in the file.

        ``ranges``: of those that have their values in the memory: what lies before these, the range, what lies behind.
        """
        pieces: list[Piece] = []
        between: list[bytes] = []
        for name, _ in items:
            if name in ranges:
                before, range_, after = ranges[name]
                pieces += [b"".join((*between, before)), range_]
                between = [after]
            else:
                pieces += [b"".join(between), name]
                between = []
        return cls((*pieces, b"".join(between)), {name: length for name, length in items if name not in ranges})

    def takes(self, packed: Mapping[str, bytes]) -> bool:
        return len(packed) == len(self.lengths) and all(
            len(packed.get(name, b"")) == length for name, length in self.lengths.items()
        )

    def filled(self, memory: memoryview, packed: Mapping[str, bytes]) -> Iterator[bytes | memoryview]:
        """Return the content of the file, in chunks."""
        chunk: list[bytes | memoryview] = []
        size = 0
        for piece in self.pieces:
            data: bytes | memoryview
            if isinstance(piece, bytes):
                data = piece
            else:
                data = memory[piece] if isinstance(piece, slice) else packed[piece]
            if chunk and size + len(data) > CHUNK_BYTES:
                yield b"".join(chunk)
                chunk, size = [], 0
            if len(data) > CHUNK_BYTES:
                yield data
            else:
                chunk.append(data)
                size += len(data)
        yield b"".join(chunk)
