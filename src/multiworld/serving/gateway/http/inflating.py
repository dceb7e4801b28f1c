"""Inflate a compressed body piece by piece, so that a small one cannot become a large one at once."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping

from ..error_body import HttpError

CODINGS = {"gzip": 31, "deflate": 15}
"""The content codings by name, and how zlib is told of them (its ``wbits``)."""
OTHERS = {"x-gzip": "gzip"}
RAW = -15
PIECE_BYTES = 1 << 16
MAX_MEMBERS = 1024
"""Of one gzip: each costs some microseconds, however little is in it."""


def coding_of(headers: Mapping[str, str]) -> str | None:
    """Return the coding of a body; None: it is plain. Refused: one that is not served, or several."""
    text = headers.get("content-encoding", "").strip().lower()
    if text in ("", "identity"):
        return None
    coding = OTHERS.get(text, text)
    if coding not in CODINGS:
        raise HttpError(415, f"content encoding {text!r:.40} is not served; there are {', '.join(CODINGS)}")
    return coding


class Inflater:
    """Inflates one body. What it holds itself is some 40 kB, and what has come and is not yet inflated."""

    def __init__(self, coding: str) -> None:
        self._coding = coding
        self._zlib = zlib.decompressobj(CODINGS[coding])
        self._num_members = 1
        self._is_begun = False

    def inflate(self, chunk: bytes) -> Iterator[bytes]:
        """Yield what a chunk becomes, up to 64 KiB at a time. Refused: what cannot be inflated."""
        if self._coding == "deflate" and chunk and not self._is_begun and chunk[0] & 0x0F != zlib.DEFLATED:
            self._zlib = zlib.decompressobj(RAW)  # without the header of zlib, as many send it
        self._is_begun = self._is_begun or bool(chunk)
        rest = chunk
        while rest:
            if self._zlib.eof:
                rest = self._without_padding(rest)
                if not rest:
                    return
                self._begin_member()
            piece = self._decompressed(rest)
            if self._zlib.eof:
                rest = self._zlib.unused_data
            else:
                rest = self._zlib.unconsumed_tail
            yield piece
        while not self._zlib.eof:  # it may hold some more of what it has taken
            piece = self._decompressed(b"")
            if not piece:
                return
            yield piece

    def finish(self) -> None:
        """All has come. Refused: a body that ends in the middle."""
        if self._is_begun and not self._zlib.eof:
            raise self._broken("it is truncated")

    def _decompressed(self, data: bytes) -> bytes:
        try:
            return self._zlib.decompress(data, PIECE_BYTES)
        except zlib.error as error:
            raise self._broken(str(error)) from None

    def _without_padding(self, rest: bytes) -> bytes:
        """Return what follows a part of a gzip without zeros, with which tapes and some tools fill the last block."""
        return rest.lstrip(b"\0") if self._coding == "gzip" else rest

    def _begin_member(self) -> None:
        """A gzip may have several parts, one after the other; what follows a deflate is no part of it."""
        self._num_members += 1
        if self._coding != "gzip" or self._num_members > MAX_MEMBERS:
            raise self._broken("something follows its end")
        self._zlib = zlib.decompressobj(CODINGS[self._coding])

    def _broken(self, why: str) -> HttpError:
        return HttpError(400, f"the body cannot be inflated as {self._coding}: {why}")
