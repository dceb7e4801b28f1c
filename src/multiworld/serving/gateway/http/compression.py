"""Compress answers for clients that ask for it: in pieces, between which others have their turn."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from ..error_body import HttpError
from ..formats.elements import Buffer
from .exchange import Answer, Exchange
from .inflating import CODINGS
from .request_head import qualities

PIECE_BYTES = 1 << 15  # compressed in half a millisecond or so
MIN_BYTES = 1 << 10  # what is smaller costs more than it saves
WORTH = 0.8  # the share that may be left of a sample; floats in binary, say, hardly shrink
LEVEL = 1


async def compressed(answer: Answer, exchange: Exchange) -> Answer:
    """Return an answer as its client accepts it, compressed if that is worth it; series of events go as they are."""
    size = sum(map(len, answer.pieces))
    if answer.events is not None or size < MIN_BYTES:
        return answer
    headers = {**answer.headers, "vary": "accept-encoding"}
    coding = accepted_coding(exchange.headers)
    if coding is None or not _is_worth_it(max(answer.pieces, key=len)):
        return replace(answer, headers=headers)
    deflater = zlib.compressobj(LEVEL, zlib.DEFLATED, CODINGS[coding])
    pieces: list[Buffer] = []
    try:
        for piece in _slices(answer.pieces):
            _append(deflater.compress(piece), pieces, exchange.budget.take)
            await exchange.budget.wait_turn()
        _append(deflater.flush(), pieces, exchange.budget.take)
    except HttpError:  # no room for it: the answer is there, and must not be lost
        return replace(answer, headers=headers)
    return replace(answer, pieces=pieces, headers={**headers, "content-encoding": coding})


def accepted_coding(headers: Mapping[str, str]) -> str | None:
    """Return the coding that a client likes best of those that there are; None: none, or it likes it best plain."""
    given = qualities(headers.get("accept-encoding", ""))
    rest = given.get("*", 0.0)
    best = max(("gzip", "deflate"), key=lambda name: given.get(name, rest))
    quality = given.get(best, rest)
    return best if quality > 0 and quality >= given.get("identity", 0.0) else None


def _is_worth_it(piece: Buffer) -> bool:
    sample = memoryview(piece)[:PIECE_BYTES]
    return len(zlib.compress(sample, LEVEL)) <= WORTH * len(sample)


def _append(piece: bytes, pieces: list[Buffer], take: Callable[[int], None]) -> None:
    if piece:
        take(len(piece))
        pieces.append(piece)


def _slices(pieces: list[Buffer]) -> Iterator[memoryview]:
    for piece in pieces:
        view = memoryview(piece)
        for at in range(0, len(view), PIECE_BYTES):
            yield view[at : at + PIECE_BYTES]
