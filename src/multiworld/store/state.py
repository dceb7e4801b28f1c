"""Decide what a store server answers. Pure: requests in, replies out; no socket, clock or thread."""

from __future__ import annotations

import bisect
import enum
import struct
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

from ..errors import ProtocolError


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
    wanted: frozenset[bytes]
    num_missing: int  # of the wanted
    unless: tuple[bytes, bytes | None] | None
    then: bytes | None

    @property
    def watched(self) -> frozenset[bytes]:
        return self.wanted if self.unless is None else self.wanted | {self.unless[0]}


@dataclass
class StoreState:
    """The keys, the leases and who waits for what. ``handle`` and ``disconnect`` return the replies to send.

    A change costs as much as there are waiters for that key, a listing as much as it returns.
    """

    _values: dict[bytes, bytes] = field(default_factory=dict)
    _keys: list[bytes] = field(default_factory=list)  # sorted
    _owners: dict[bytes, Hashable] = field(default_factory=dict)
    _leases: dict[Hashable, set[bytes]] = field(default_factory=dict)
    _waiters: dict[tuple[Hashable, int], _Waiter] = field(default_factory=dict)
    _watching: dict[bytes, dict[tuple[Hashable, int], _Waiter]] = field(default_factory=dict)  # by key
    _following: deque[_Waiter] = field(default_factory=deque)  # ended, with a change to make behind it

    def __len__(self) -> int:
        return len(self._values)

    @property
    def num_waiters(self) -> int:
        return len(self._waiters)

    def handle(self, client: Hashable, seq: int, request: int, flags: int, fields: list[bytes]) -> list[Reply]:
        try:
            replies = self._handle(client, seq, Request(request), bool(flags), fields)
        except (ValueError, IndexError) as error:
            return [Reply(client, seq, Status.INVALID, [str(error).encode()])]
        return replies + self._follow()

    def disconnect(self, client: Hashable) -> list[Reply]:
        """A client is gone: its leased keys vanish, its waits end."""
        for owner, seq in [waiting for waiting in self._waiters if waiting[0] == client]:
            self._stop_waiting(owner, seq)
        replies = [reply for key in list(self._leases.get(client, ())) for reply in self._delete(key)]
        return replies + self._follow()

    def _handle(self, client: Hashable, seq: int, request: Request, leased: bool, fields: list[bytes]) -> list[Reply]:
        if request is Request.GET:
            return [self._answer(client, seq, self._values.get(fields[0]))]
        if request is Request.SET:
            woken = self._put(client, fields[0], fields[1], leased)
            return [Reply(client, seq, Status.OK, []), *woken]
        if request is Request.ADD:
            total = int(self._values.get(fields[0], b"0")) + int(fields[1])
            woken = self._put(client, fields[0], b"%d" % total, leased)
            return [Reply(client, seq, Status.OK, [b"%d" % total]), *woken]
        if request is Request.COMPARE_SET:
            return self._compare_set(client, seq, fields, leased)
        if request is Request.DELETE:
            woken = [reply for key in fields for reply in self._delete(key)]
            return [Reply(client, seq, Status.OK, []), *woken]
        if request is Request.LIST:
            return [Reply(client, seq, Status.OK, self._list(fields[0]))]
        if request is Request.WAIT:
            return self._wait(client, seq, fields)
        self._stop_waiting(client, int(fields[0]))
        return [Reply(client, seq, Status.OK, [])]

    def _list(self, prefix: bytes) -> list[bytes]:
        """Return keys and their values in turn."""
        pairs = []
        for index in range(bisect.bisect_left(self._keys, prefix), len(self._keys)):
            key = self._keys[index]
            if not key.startswith(prefix):
                break
            pairs += [key, self._values[key]]
        return pairs

    def _compare_set(self, client: Hashable, seq: int, fields: list[bytes], leased: bool) -> list[Reply]:
        """Fields: the key, its new value, optionally what it must hold, optionally another key and what that must hold.

        So two fields to five, in this order.
        """
        if not 2 <= len(fields) <= 5:
            raise ValueError(f"a compare_set has 2 to 5 fields, not {len(fields)}")
        key, desired, *rest = fields
        expected = rest.pop(0) if len(rest) in (1, 3) else None
        guarded = bool(rest) and self._values.get(rest[0]) != rest[1]
        if guarded or self._values.get(key) != expected:
            return [self._answer(client, seq, self._values.get(key))]
        woken = self._put(client, key, desired, leased)
        return [Reply(client, seq, Status.OK, [desired]), *woken]

    def _wait(self, client: Hashable, seq: int, fields: list[bytes]) -> list[Reply]:
        """Fields: how many keys, the keys, optionally the ``unless`` key, its value (absent: none), and ``then``."""
        num_keys = int(fields[0])
        if not 0 <= num_keys < len(fields):
            raise ValueError(f"a wait for {num_keys} keys names {len(fields) - 1}")
        keys, rest = fields[1 : 1 + num_keys], fields[1 + num_keys :]
        if len(rest) > 3:
            raise ValueError(f"a wait has {len(rest) - 3} fields too many")
        unless = (rest[0], rest[1] if len(rest) > 1 else None) if rest else None
        then = rest[2] if len(rest) > 2 else None
        wanted = frozenset(keys)
        num_missing = sum(key not in self._values for key in wanted)
        self._stop_waiting(client, seq)  # an earlier wait under that number, which no honest client makes
        waiter = _Waiter(client, seq, keys, wanted, num_missing, unless, then)
        self._waiters[client, seq] = waiter
        for key in waiter.watched:
            self._watching.setdefault(key, {})[client, seq] = waiter
        return self._try(waiter)

    def _stop_waiting(self, client: Hashable, seq: int) -> None:
        waiter = self._waiters.pop((client, seq), None)
        if waiter is None:
            return
        for key in waiter.watched:
            del self._watching[key][client, seq]
            if not self._watching[key]:
                del self._watching[key]

    def _answer(self, client: Hashable, seq: int, value: bytes | None) -> Reply:
        return Reply(client, seq, Status.ABSENT, []) if value is None else Reply(client, seq, Status.OK, [value])

    def _put(self, client: Hashable, key: bytes, value: bytes, leased: bool) -> list[Reply]:
        is_new = key not in self._values
        self._disown(key)
        self._values[key] = value
        if is_new:
            bisect.insort(self._keys, key)
        if leased:
            self._owners[key] = client
            self._leases.setdefault(client, set()).add(key)
        return self._changed(key, -1 if is_new else 0)

    def _delete(self, key: bytes) -> list[Reply]:
        if self._values.pop(key, None) is None:
            return []
        del self._keys[bisect.bisect_left(self._keys, key)]
        self._disown(key)
        return self._changed(key, 1)

    def _disown(self, key: bytes) -> None:
        owner = self._owners.pop(key, None)
        if owner is not None:
            self._leases[owner].discard(key)
            if not self._leases[owner]:
                del self._leases[owner]

    def _changed(self, key: bytes, more_missing: int) -> list[Reply]:
        """Return the replies to those whose wait ends with this change."""
        replies = []
        for waiter in list(self._watching.get(key, {}).values()):
            if key in waiter.wanted:
                waiter.num_missing += more_missing
            replies += self._try(waiter)
        return replies

    def _try(self, waiter: _Waiter) -> list[Reply]:
        """End a wait if it is over: all of its keys are there, or what must not change has changed."""
        if waiter.num_missing and not self._is_void(waiter):
            return []
        self._stop_waiting(waiter.client, waiter.seq)
        if waiter.num_missing:
            return [Reply(waiter.client, waiter.seq, Status.ABSENT, [])]
        reply = Reply(waiter.client, waiter.seq, Status.OK, [self._values[key] for key in waiter.keys])
        if waiter.then is not None:
            self._following.append(waiter)
        return [reply]

    def _follow(self) -> list[Reply]:
        """Make the changes that the ends of waits bring, and those that these bring in turn."""
        replies = []
        while self._following:
            waiter = self._following.popleft()
            if waiter.unless is not None and waiter.then is not None and not self._is_void(waiter):
                replies += self._put(waiter.client, waiter.unless[0], waiter.then, leased=False)
        return replies

    def _is_void(self, waiter: _Waiter) -> bool:
        return waiter.unless is not None and self._values.get(waiter.unless[0]) != waiter.unless[1]


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
