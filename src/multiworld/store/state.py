"""Decide what a store server answers. Pure: requests in, replies out; no socket, clock or thread."""

from __future__ import annotations

import enum
import struct
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

from ..errors import ProtocolError

__all__ = ["Reply", "Request", "Status", "StoreState", "pack_strings", "unpack_strings"]


class Request(enum.IntEnum):
    GET = 1
    SET = 2
    ADD = 3
    COMPARE_SET = 4
    DELETE = 5
    LIST = 6
    WAIT = 7
    CANCEL = 8


class Status(enum.IntEnum):
    OK = 0
    ABSENT = 1
    INVALID = 2


class Reply(NamedTuple):
    """One answer to one client's request number ``seq``."""

    client: Hashable
    seq: int
    status: Status
    values: list[bytes]


@dataclass
class _Waiter:
    client: Hashable
    seq: int
    keys: list[bytes]
    unless: tuple[bytes, bytes | None] | None


@dataclass
class StoreState:
    """The keys, the leases and who waits for what. ``handle`` and ``disconnect`` return the replies to send."""

    _values: dict[bytes, bytes] = field(default_factory=dict)
    _owners: dict[bytes, Hashable] = field(default_factory=dict)
    _leases: dict[Hashable, set[bytes]] = field(default_factory=dict)
    _waiters: list[_Waiter] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self._values)

    @property
    def num_waiters(self) -> int:
        return len(self._waiters)

    def handle(self, client: Hashable, seq: int, request: int, flags: int, fields: list[bytes]) -> list[Reply]:
        try:
            return self._handle(client, seq, Request(request), bool(flags), fields)
        except (ValueError, IndexError) as error:
            return [Reply(client, seq, Status.INVALID, [str(error).encode()])]

    def disconnect(self, client: Hashable) -> list[Reply]:
        """A client is gone: its leased keys vanish, its waits end."""
        self._waiters = [waiter for waiter in self._waiters if waiter.client != client]
        for key in self._leases.pop(client, set()):
            self._values.pop(key, None)
            self._owners.pop(key, None)
        return self._wake()

    def _handle(self, client: Hashable, seq: int, request: Request, leased: bool, fields: list[bytes]) -> list[Reply]:
        if request is Request.GET:
            return [self._answer(client, seq, self._values.get(fields[0]))]
        if request is Request.SET:
            self._put(client, fields[0], fields[1], leased)
            return [Reply(client, seq, Status.OK, []), *self._wake()]
        if request is Request.ADD:
            total = int(self._values.get(fields[0], b"0")) + int(fields[1])
            self._put(client, fields[0], b"%d" % total, leased)
            return [Reply(client, seq, Status.OK, [b"%d" % total]), *self._wake()]
        if request is Request.COMPARE_SET:
            key, desired, expected = fields[0], fields[1], fields[2] if len(fields) > 2 else None
            if self._values.get(key) != expected:
                return [self._answer(client, seq, self._values.get(key))]
            self._put(client, key, desired, leased)
            return [Reply(client, seq, Status.OK, [desired]), *self._wake()]
        if request is Request.DELETE:
            for key in fields:
                self._drop(key)
            return [Reply(client, seq, Status.OK, []), *self._wake()]
        if request is Request.LIST:
            pairs = [part for key, value in self._values.items() if key.startswith(fields[0]) for part in (key, value)]
            return [Reply(client, seq, Status.OK, pairs)]
        if request is Request.WAIT:
            return self._wait(client, seq, fields)
        cancelled = int(fields[0])
        self._waiters = [waiter for waiter in self._waiters if (waiter.client, waiter.seq) != (client, cancelled)]
        return [Reply(client, seq, Status.OK, [])]

    def _wait(self, client: Hashable, seq: int, fields: list[bytes]) -> list[Reply]:
        """Fields: how many keys, the keys, then optionally the ``unless`` key and its value (absent: no value)."""
        num_keys = int(fields[0])
        if not 0 <= num_keys < len(fields):
            raise ValueError(f"a wait for {num_keys} keys names {len(fields) - 1}")
        keys, rest = fields[1 : 1 + num_keys], fields[1 + num_keys :]
        unless = (rest[0], rest[1] if len(rest) > 1 else None) if rest else None
        self._waiters.append(_Waiter(client, seq, keys, unless))
        return self._wake()

    def _answer(self, client: Hashable, seq: int, value: bytes | None) -> Reply:
        return Reply(client, seq, Status.ABSENT, []) if value is None else Reply(client, seq, Status.OK, [value])

    def _put(self, client: Hashable, key: bytes, value: bytes, leased: bool) -> None:
        self._drop(key)
        self._values[key] = value
        if leased:
            self._owners[key] = client
            self._leases.setdefault(client, set()).add(key)

    def _drop(self, key: bytes) -> None:
        self._values.pop(key, None)
        owner = self._owners.pop(key, None)
        if owner is not None:
            self._leases[owner].discard(key)
            if not self._leases[owner]:
                del self._leases[owner]

    def _wake(self) -> list[Reply]:
        replies, waiting = [], []
        for waiter in self._waiters:
            reply = self._try(waiter)
            if reply is None:
                waiting.append(waiter)
            else:
                replies.append(reply)
        self._waiters = waiting
        return replies

    def _try(self, waiter: _Waiter) -> Reply | None:
        values = [self._values.get(key) for key in waiter.keys]
        present = [value for value in values if value is not None]
        if len(present) == len(values):
            return Reply(waiter.client, waiter.seq, Status.OK, present)
        if waiter.unless is not None and self._values.get(waiter.unless[0]) != waiter.unless[1]:
            return Reply(waiter.client, waiter.seq, Status.ABSENT, [])
        return None


def pack_strings(strings: list[bytes]) -> bytes:
    """Encode a list of byte strings, each behind its u32 length."""
    return b"".join(part for string in strings for part in (struct.pack("<I", len(string)), string))


def unpack_strings(data: bytes) -> list[bytes]:
    """Decode what ``pack_strings`` made; raises ProtocolError when it does not add up."""
    strings, position = [], 0
    while position < len(data):
        if position + 4 > len(data):
            raise ProtocolError("a store record ends inside a length")
        (size,) = struct.unpack_from("<I", data, position)
        position += 4
        if position + size > len(data):
            raise ProtocolError(f"a store record ends {position + size - len(data)} bytes before its string does")
        strings.append(data[position : position + size])
        position += size
    return strings
