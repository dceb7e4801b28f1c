"""Read JSON of any size without holding the loop: lists of numbers become arrays, only the rest becomes objects.

A Python list of numbers takes many times the room of its text, and a parser in C holds the interpreter's lock until it
is done. So a large body is scanned first. Each list of numbers is taken out, compared with the one shape that it can
have, and parsed slice by slice into an array; what is left is small, or refused, and parsed as usual.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from ..error_body import HttpError
from ..http.budget import Budget

SMALL_BYTES = 1 << 12
"""What is parsed at once. Its worst lists take a millisecond or two."""
SLICE_BYTES = 1 << 13
"""Of the text of numbers that are parsed between two turns of the loop."""
SCAN_BYTES = 1 << 15
"""Of text that is looked at between two turns."""
TOKEN_COST = 64  # a token costs as much as looking at so many bytes
DEPTHS_COST = 512  # numpy's calls for one piece, however short
NUMBERS_COST = 4  # parsing numbers costs so much more than looking at their text
MAX_VALUES = 1 << 17
"""Of what is in no list of numbers: names, texts, objects."""
MAX_REST_BYTES = 4 << 20
"""Of the same, as text."""
VALUE_BYTES = 128
MAX_LISTS = 1 << 13
"""Of numbers, apart from those within each other: two for each tensor that a body may have."""
MAX_KEPT = 8
"""Lists of up to so many numbers stay lists."""
MAX_DIMS = 32
MAX_EMPTY_ROWS = 1 << 16
"""Of a tensor without elements: each would become an empty list, whatever the tensor does not take."""
WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
"""What JSON has no numbers for, as protobuf writes it."""

QUOTE, OPEN, CLOSE = b'"[]'
INDENTED = re.compile(rb"[ \t\r\n]*([\[{])[ \t\r\n]{2,}")
NEITHER = re.compile(rb'[^"\[]+')
TEXT = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)
SHORT = re.compile(rb'\[[^\[\]"{}]{0,256}\]')
NUMBERS = re.compile(rb'(?:[\[\]0-9+\-.eEtrufals, \t\r\n]+|"(?:NaN|-?Infinity)")+')
NO_ELEMENT = re.compile(rb"[\[ \t\r\n]*\]")
NOT_STRUCTURE = bytes(set(range(256)) - set(b"[],"))
NOT_ELEMENTS = b"[], \t\r\n"
FLAT = bytes.maketrans(b"[]", b"  ")

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Numbers:
    """Nested lists of numbers, as numpy's array of them. ``has_words``: some were written as words.

    ``is_rounded``: all were integers, and no type of integers holds them together.
    """

    array: Array
    has_words: bool
    is_rounded: bool = False

    def __repr__(self) -> str:
        return f"<lists of {self.array.size} numbers>"


def parsed(text: bytes | bytearray | memoryview) -> Any:
    """Return what JSON means, as orjson does; raises orjson.JSONDecodeError.

    Where two blanks follow the first bracket orjson takes the whole for indented text, reserves memory for the few
    values of such a text, and fails if there are more of them: "failed to allocate memory".
    """
    begin = INDENTED.match(text)
    if begin is not None:
        text = begin[1] + bytes(memoryview(text)[begin.end() :])
    return orjson.loads(text)


async def load(body: bytearray | memoryview, budget: Budget) -> Any:
    """Return what JSON means, with Numbers in place of lists of more than a few numbers, if the body is large.

    Raises orjson.JSONDecodeError for what is no JSON, and an HttpError for what is ragged, too deep, or too much.
    """
    if len(body) <= SMALL_BYTES:
        return parsed(body)
    with budget.lent(3 * len(body)):
        scanner = _Scanner(memoryview(body), budget)
        await scanner.scan()
        await budget.wait_turn()
        value = parsed(scanner.rest)
        return await _filled(value, scanner.found, budget)


def as_array(data: Any, name: str) -> tuple[Array, bool]:
    """Return numpy's array of nested lists of numbers, and whether there were words among them."""
    if isinstance(data, Numbers):
        return data.array, data.has_words
    try:
        has_words = _has_words(data)  # before numpy sees them, which makes room in each element for the longest
        array = np.array(_without_words(data) if has_words else data)
    except (ValueError, OverflowError, RecursionError) as error:
        raise HttpError(400, f"{name} is ragged, or nested too deeply: {error!s:.300}") from None
    if array.dtype.kind not in "biuf" or array.ndim > MAX_DIMS:
        raise HttpError(400, f"{name} must be numbers, or lists of numbers of one shape")
    check_rows(array.shape)
    return array, has_words


def is_rounded(data: Any, array: Array) -> bool:
    """Whether integers became an array of floating-point numbers: some are below 0, and others from 2^63."""
    if isinstance(data, Numbers):
        return data.is_rounded
    if array.dtype.kind != "f" or not array.size or not (array.min() < 0 and array.max() >= 1 << 63):
        return False
    return _are_integers(np.array(data, dtype=object).flat)


def num_bytes_read(data: Any) -> int:
    """Return how much of an array has been read already; lists are short."""
    return data.array.nbytes if isinstance(data, Numbers) else 0


def check_rows(shape: tuple[int, ...]) -> None:
    """Refuse a shape without elements and with many rows: few bytes ask for it, and many are needed to write it."""
    num_rows = math.prod(shape[: shape.index(0)]) if 0 in shape else 0
    if num_rows > MAX_EMPTY_ROWS:
        raise HttpError(
            413, f"shape {list(shape)!r:.80} has no elements and {num_rows} rows; {MAX_EMPTY_ROWS} are served"
        )


class _Scanner:
    """Takes the lists of numbers out of a body: ``rest`` is JSON with a name in place of each that was ``found``."""

    def __init__(self, body: memoryview, budget: Budget) -> None:
        self._body, self._budget, self._end = body, budget, len(body)
        self._mark = f"{os.urandom(16).hex()}:"  # which no client can know
        self.rest = bytearray()
        self.found: dict[str, Numbers] = {}
        self._num_values = self._spent = 0

    async def scan(self) -> None:
        at = 0
        while at < self._end:
            await self._spend(TOKEN_COST)
            byte = self._body[at]
            if byte == QUOTE:
                at = await self._text(at)
            elif byte == OPEN:
                at = await self._list(at)
            else:
                match = NEITHER.match(self._body, at, at + SCAN_BYTES)
                assert match is not None
                self._keep(match[0])
                at = match.end()
                await self._spend(len(match[0]))

    async def _spend(self, cost: int) -> None:
        self._spent += cost
        if self._spent >= SCAN_BYTES:
            self._spent = 0
            await self._budget.wait_turn()

    def _keep(self, piece: bytes) -> None:
        self._append(piece)
        self._count(piece.count(b",") + piece.count(b"{") + piece.count(b"["))

    def _append(self, piece: bytes | memoryview) -> None:
        if len(self.rest) + len(piece) > MAX_REST_BYTES:
            raise HttpError(
                413,
                f"the JSON has more than {MAX_REST_BYTES} bytes outside of lists of numbers; send tensors in binary",
            )
        self.rest += piece

    def _count(self, num_values: int) -> None:
        self._num_values += num_values
        if self._num_values > MAX_VALUES:
            raise HttpError(
                413, f"the JSON has more than {MAX_VALUES} values outside of lists of numbers; send tensors in binary"
            )
        self._budget.take(num_values * VALUE_BYTES)

    async def _text(self, begin: int) -> int:
        at = begin + 1
        while True:
            match = TEXT.match(self._body, at, at + SCAN_BYTES)
            assert match is not None
            stop = match.end()
            await self._spend(stop - at)
            if stop < self._end and self._body[stop] == QUOTE:
                stop += 1
                break
            if stop == at:  # it has no end: let the parser say so
                stop = self._end
                break
            at = stop
        self._append(self._body[begin:stop])
        self._count(1)
        return stop

    async def _list(self, begin: int) -> int:
        """Take a list of numbers out, or keep what begins a list of other things; return where it ends."""
        short = SHORT.match(self._body, begin)
        if short is not None and short[0].count(b",") < MAX_KEPT:
            self._keep(short[0])
            return short.end()
        at, depth = begin, 0
        while match := NUMBERS.match(self._body, at, at + SCAN_BYTES):
            if CLOSE not in match[0] and depth + match[0].count(b"[") <= MAX_DIMS:  # there may be thousands of them
                at, depth = match.end(), depth + match[0].count(b"[")
                await self._spend(len(match[0]))
                continue
            depths = _depths(match[0], depth)
            is_closed = depths == 0
            first = int(is_closed.argmax())
            if is_closed[first]:
                stop = at + first + 1
                if len(self.found) >= MAX_LISTS:
                    raise HttpError(413, f"the JSON has more than {MAX_LISTS} lists of numbers")
                array = await self._numbers(begin, stop)
                name = f"{self._mark}{len(self.found)}"
                self.found[name] = array
                self._count(1)
                self._append(b'"%s"' % name.encode())
                return stop
            if int(depths.max()) > MAX_DIMS:
                raise HttpError(400, f"lists are nested too deeply: a tensor has at most {MAX_DIMS} dimensions")
            at, depth = match.end(), int(depths[-1])
            await self._spend(len(match[0]) + DEPTHS_COST)
        while begin < at:  # a list of other things: its numbers are values as others are
            piece = bytes(self._body[begin : min(at, begin + SCAN_BYTES)])
            self._keep(piece)
            begin += SCAN_BYTES
            await self._spend(len(piece))
        return at

    async def _numbers(self, begin: int, end: int) -> Numbers:
        structure = bytearray()
        for at in range(begin, end, SCAN_BYTES):
            piece = bytes(self._body[at : min(at + SCAN_BYTES, end)])
            structure += piece.translate(None, NOT_STRUCTURE)
            await self._spend(len(piece))
        is_empty = NO_ELEMENT.match(self._body, begin, min(end, begin + SCAN_BYTES)) is not None
        shape = await self._shape_of(structure, is_empty=is_empty)
        check_rows(shape)
        size = math.prod(shape)
        self._budget.take(16 * size)  # of this array and of what it is converted to
        if not size:
            await self._check_empty(begin, end)
            return Numbers(np.empty(shape), has_words=False)
        numbers = await self._flat(begin, end, size)
        return replace(numbers, array=numbers.array.reshape(shape))

    async def _shape_of(self, structure: bytearray, *, is_empty: bool) -> tuple[int, ...]:
        """Return the shape of nested lists of which only brackets and commas are left.

        The first list of each depth says how many each of them has; then there is one text that the whole can be.
        """
        num_dims = 0
        while structure[num_dims] == OPEN:
            num_dims += 1
        end = structure.index(b"]", num_dims) + 1
        num_commas = end - 1 - num_dims
        row = b"[" + b"," * num_commas + b"]"
        shape = [0 if is_empty else num_commas + 1]
        for depth in range(2, num_dims):
            begin = num_dims - depth
            end = await self._end_of(structure, depth, end - depth + 1)
            shape.insert(0, _count_rows(end - begin, row))
            row = b"[" + (row + b",") * (shape[0] - 1) + row + b"]"
        if num_dims > 1:
            shape.insert(0, _count_rows(len(structure), row))
            rows = (row + b",") * (SCAN_BYTES // len(row) + 1)
            for at in range(1, len(structure) - 1, len(rows)):
                if not rows.startswith(structure[at : min(at + len(rows), len(structure) - 1)]):
                    raise _ragged()
                await self._spend(len(rows))
        elif row != structure:
            raise _ragged()
        return tuple(shape)

    async def _end_of(self, structure: bytearray, depth: int, at: int) -> int:
        """Return where so many lists end at once, which they do at the end at the latest."""
        closing = b"]" * depth
        while (found := structure.find(closing, at, at + SCAN_BYTES + depth)) < 0:
            at += SCAN_BYTES
            await self._spend(SCAN_BYTES)
        return found + depth

    async def _flat(self, begin: int, end: int, size: int) -> Numbers:
        whole: Array | None = None
        has_words, has_fractions, filled, at = False, False, 0, begin
        while at < end:
            piece = bytes(self._body[at : min(at + SLICE_BYTES, end)])
            if at + len(piece) < end:
                cut = piece.rfind(b",")
                if cut < 0:
                    raise HttpError(400, f"a number takes more than {SLICE_BYTES} bytes")
                piece = piece[:cut]
            at += len(piece) + 1
            try:
                values = parsed(b"[" + piece.translate(FLAT) + b"]")
            except orjson.JSONDecodeError as error:
                raise HttpError(400, f"the body has lists that are no JSON, or ragged: {error.msg:.200}") from None
            array, is_worded = as_array(values, "a list of the body")
            has_words |= is_worded
            has_fractions = has_fractions or (array.dtype.kind == "f" and not _are_integers(values))
            if filled + len(array) > size:
                raise _ragged()
            whole = np.empty(size, array.dtype) if whole is None else _holding(whole, filled, array)
            whole[filled : filled + len(array)] = array
            filled += len(array)
            await self._spend(NUMBERS_COST * (len(piece) + TOKEN_COST))
        if whole is None or filled != size:
            raise _ragged()
        return Numbers(whole, has_words, is_rounded=whole.dtype.kind == "f" and not has_fractions)

    async def _check_empty(self, begin: int, end: int) -> None:
        for at in range(begin, end, SCAN_BYTES):
            piece = bytes(self._body[at : min(at + SCAN_BYTES, end)])
            if piece.translate(None, NOT_ELEMENTS):
                raise _ragged()
            await self._spend(len(piece))


def _depths(text: bytes, depth: int) -> Array:
    """Return how many lists are open after each byte."""
    piece = np.frombuffer(text, np.uint8)
    steps = (piece == OPEN).astype(np.int8)
    steps -= (piece == CLOSE).view(np.int8)
    depths: Array = np.cumsum(steps, dtype=np.int32)
    return depths + depth


def _count_rows(size: int, row: bytes) -> int:
    """Return of how many equal rows a list is that takes so much."""
    count, left = divmod(size - 1, len(row) + 1)  # a comma or the end behind each, and a beginning
    if left or count < 1:
        raise _ragged()
    return count


def _holding(whole: Array, filled: int, array: Array) -> Array:
    """Return an array that holds what ``whole`` does and can hold the next elements, as numpy does for a whole list."""
    if array.dtype == whole.dtype:
        return whole
    dtype = np.result_type(whole, array)
    if {whole.dtype.kind, array.dtype.kind} == {"i", "u"}:
        signed = array if array.dtype.kind == "i" else whole[:filled]
        dtype = np.dtype(np.uint64 if int(signed.min()) >= 0 else np.float64)
    return whole if dtype == whole.dtype else whole.astype(dtype)


async def _filled(value: Any, found: dict[str, Numbers], budget: Budget) -> Any:
    """Return it with the lists of numbers in their places. Objects in it are changed."""
    whole = [value]
    open_: list[Any] = [whole]
    spent = 0
    while open_ and found:
        holder = open_.pop()
        for key, each in list(holder.items() if isinstance(holder, dict) else enumerate(holder)):
            if isinstance(each, str):
                holder[key] = found.get(each, each)
            elif isinstance(each, (dict, list)):
                open_.append(each)
        spent += len(holder) + 1
        if spent >= MAX_VALUES >> 6:
            spent = 0
            await budget.wait_turn()
    return whole[0]


def _are_integers(values: Iterable[Any]) -> bool:
    return all(isinstance(value, int) for value in values)


def _has_words(data: Any) -> bool:
    if not isinstance(data, list):
        return isinstance(data, str)
    kinds = set(map(type, data))
    return str in kinds or (list in kinds and any(map(_has_words, data)))


def _without_words(data: Any) -> Any:
    if isinstance(data, list):
        return [_without_words(each) for each in data]
    if isinstance(data, str):
        if data not in WORDS:
            raise HttpError(400, f"expected a number, got {data[:80]!r}; words: {', '.join(WORDS)}")
        return WORDS[data]
    return data


def _ragged() -> HttpError:
    return HttpError(400, "a list of the body is ragged: lists of numbers must be of one shape")
