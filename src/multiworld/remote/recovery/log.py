"""The log of a node: all that was sent to it since its snapshot, and how to send that again. Pure.

Records keep their positions. So a node that executes the log again counts as the first one did, and all that it says
means the same. A request that was answered is not answered twice: another record takes its place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from ..protocol import calls, definitions, records, recovering, specs
from ..protocol.calls import CALL, Like
from ..protocol.definitions import Change
from ..protocol.messages import TO_MASTER, Outcome
from ..protocol.records import HEAD, Kind
from ..protocol.recovering import SKIP, RecoveryKind
from .schedule import BOUND

Payload = TypeVar("Payload")

_ENTRY_BYTES: Final = 200
"""What an entry itself takes, about: a log of tiny ones is not free."""
_HEADS: Final = {
    kind.to_bytes(4, "little"): kind for kind in (Kind.FETCH, Kind.ASK, Kind.SYNC, RecoveryKind.SNAPSHOT, Kind.ARRIVED)
}
_CALL: Final = CALL.to_bytes(4, "little")
_ARRIVED: Final = Kind.ARRIVED.to_bytes(4, "little")
_NOTED: Final = frozenset(_HEADS) | definitions.HEADS
_REQUEST: Final[dict[int, Callable[[bytes], int]]] = {
    Kind.FETCH: lambda body: records.read_fetch(body).request,
    Kind.ASK: lambda body: records.read_ask(body).request,
    Kind.SYNC: records.read_sync,
    RecoveryKind.SNAPSHOT: recovering.read_snapshot,
    CALL: lambda body: calls.read_call(body).request,
}


class Entry(NamedTuple):
    """Records that follow each other. ``request``: of the one record that asks something; None: they ask nothing.

    ``arrivals``: ids of large tensors, which have to be on their way before the records are sent. ``changes``: of
    what is defined. ``gap``: the name of a call in it that must not be made twice.
    """

    position: int
    num_records: int
    data: bytes
    request: int | None
    arrivals: tuple[int, ...] = ()
    changes: tuple[Change, ...] = ()
    gap: str | None = None

    @property
    def end(self) -> int:
        """The position behind its last record."""
        return self.position + self.num_records


class Repeated(NamedTuple):
    """A part of the log as it is sent again."""

    end: int
    data: bytes
    arrivals: tuple[int, ...]


class CommandLog(Generic[Payload]):
    """``num_bytes``: what it keeps. ``position``: of the first record in it, or of the next one if it is empty.

    ``can_be_cut``: whether snapshots can be taken; if not, nobody has to wait for one.

    ``append``, ``drop_before`` and ``repeated`` are called by one thread at a time, the others by any.
    """

    def __init__(
        self,
        position: int,
        defined: Mapping[Hashable, bytes],
        max_bytes: int = 1 << 62,
        on_full: Callable[[], None] = lambda: None,
    ) -> None:
        """``position``: of the first record that it will get. ``defined``: what is defined by then, by key.

        ``on_full`` is called when it keeps more than ``max_bytes``: it goes on.
        """
        self.num_bytes = 0
        self.can_be_cut = True
        self._max_bytes, self._on_full = max_bytes, on_full
        self._end = position
        self._entries: deque[Entry] = deque()
        self._defined = dict(defined)
        self._large: dict[int, tuple[Payload, int]] = {}  # with its size
        self._waiting: set[int] = set()  # requests that somebody still waits for
        self._answers: dict[int, bytes] = {}
        self._gaps: deque[str] = deque()

    def __len__(self) -> int:
        return self._end - self.position

    @property
    def position(self) -> int:
        return self._entries[0].position if self._entries else self._end

    @property
    def end(self) -> int:
        """The position of the next record."""
        return self._end

    @property
    def is_at_bound(self) -> bool:
        """Whether who sends more has to wait until a snapshot is complete."""
        return self.num_bytes > BOUND * self._max_bytes and self.can_be_cut

    @property
    def gap(self) -> str | None:
        """A call in the log that must not be made twice: with it, a lost node can't be made anew."""
        return self._gaps[0] if self._gaps else None

    @property
    def definitions(self) -> bytes:
        """Return records that define all that was defined before the first record in the log."""
        return b"".join(self._defined.values())

    def append(self, recorded: Sequence[bytes]) -> None:
        """Keep records, which are about to be sent."""
        noted = [place for place, record in enumerate(recorded) if record[:4] in _NOTED]
        begin = 0
        for place in noted:
            request = _request_of(recorded[place])
            if request is not None:
                self._keep(recorded[begin:place])
                self._waiting.add(request)
                self._keep(recorded[place : place + 1], request)
                begin = place + 1
        self._keep(recorded[begin:])

    def keep_large(self, id_: int, payload: Payload, num_bytes: int) -> None:
        """Keep a large tensor, which travels beside the record that names its id. It comes before that record."""
        self._large[id_] = payload, num_bytes
        self._grow(num_bytes)

    def large(self, id_: int) -> Payload:
        return self._large[id_][0]

    def answered(self, request: int, answer: bytes) -> None:
        """Note the answer to a question: if it is asked again, the answer must be the same."""
        self._answers[request] = answer

    def is_waiting(self, request: int) -> bool:
        """Whether the answer to this request will come, also from a node that executes the log again."""
        return request in self._waiting

    def done(self, request: int) -> None:
        """Nobody waits for this request any more: it was answered, or given up."""
        self._waiting.discard(request)

    def drop_before(self, position: int) -> None:
        """Forget all records before a position: a snapshot holds what they did."""
        while self._entries and self._entries[0].end <= position:
            self._forget(self._entries.popleft())

    def repeated(self, position: int) -> Iterator[Repeated]:
        """Yield what has to be sent to a node that has executed all records before ``position``."""
        return (self._again(entry) for entry in list(self._entries) if entry.position >= position)

    def _keep(self, recorded: Sequence[bytes], request: int | None = None) -> None:
        if not recorded:
            return
        arrivals = tuple(records.read_arrived(each[HEAD.size :]) for each in recorded if each[:4] == _ARRIVED)
        changes = tuple(definitions.change_by(each) for each in recorded if each[:4] in definitions.HEADS)
        gap = next((each for each in map(_gap_in, recorded) if each is not None), None)
        entry = Entry(self._end, len(recorded), b"".join(recorded), request, arrivals, changes, gap)
        if gap is not None:
            self._gaps.append(gap)
        self._entries.append(entry)
        self._end = entry.end
        self._grow(_size_of(entry))

    def _grow(self, num_bytes: int) -> None:
        was_full = self.num_bytes > self._max_bytes
        self.num_bytes += num_bytes
        if self.num_bytes > self._max_bytes and not was_full:
            self._on_full()

    def _forget(self, entry: Entry) -> None:
        self.num_bytes -= _size_of(entry)
        for id_ in entry.arrivals:
            self.num_bytes -= self._large.pop(id_, (None, 0))[1]
        if entry.request is not None:
            self._answers.pop(entry.request, None)
        if entry.gap is not None:
            self._gaps.popleft()
        for key, record in entry.changes:
            if record is None:
                self._defined.pop(key, None)
            else:
                self._defined[key] = record

    def _again(self, entry: Entry) -> Repeated:
        data = entry.data
        if entry.request is not None and entry.request not in self._waiting:
            data = _in_place_of(data, self._answers.get(entry.request, b""))
        return Repeated(entry.end, data, entry.arrivals)


def _in_place_of(record: bytes, answer: bytes) -> bytes:
    """Return what is sent in place of a request that nobody waits for. ``answer``: empty if nobody knows it."""
    kind, body = HEAD.unpack_from(record)[0], record[HEAD.size :]
    if kind == Kind.ASK:
        return recovering.repeat(body, answer)
    if kind == CALL:
        said = TO_MASTER.decode(answer) if answer else None
        if not isinstance(said, Outcome):
            return record  # it failed, and fails again: nobody takes that answer
        like = Like(said.shown, tuple(specs.from_json(each) for each in said.specs))
        return calls.call(calls.read_call(body)._replace(like=like))
    return SKIP


def _gap_in(record: bytes) -> str | None:
    if record[:4] != _CALL:
        return None
    asked = calls.read_call(record[HEAD.size :])
    return None if asked.is_replayable else asked.template.operator


def _request_of(record: bytes) -> int | None:
    kind = _HEADS.get(record[:4])
    read = None if kind is None else _REQUEST.get(kind)
    request = None if read is None else read(record[HEAD.size :])
    return request or None  # a call that is not answered has the request 0


def _size_of(entry: Entry) -> int:
    return len(entry.data) + _ENTRY_BYTES
