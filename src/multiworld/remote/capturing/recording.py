"""Record the commands of one thread to one stream of a node: a recorder takes the place of the end of its queue."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, TypeAlias

from ..errors import CaptureError
from ..protocol import records
from ..protocol.graphs import Constant
from ..protocol.records import FIRST_PLAN, HEAD, Kind
from ..session.command_queue import Command
from ..session.command_stream import CommandStream
from ..session.origins import Origin, line_of
from ..session.session import Session, next_id
from ..tensor.plan import Plan, plan_of
from .scalars import Place, Scalars

_NUMBER: Final = struct.Struct("<I")
_ONLY_KEPT: Final = frozenset({Kind.DEFINE, Kind.FORGET, Kind.FREE, Kind.FORGET_GRAPH})
"""Records of the nodes' books: they are no part of a step."""

Calls: TypeAlias = Plan | Kind


class Recorded(NamedTuple):
    """One operation. ``calls``: its plan, or the kind of a record about generators. The rest are ids and floats."""

    calls: Calls
    outputs: tuple[int, ...]
    inputs: tuple[int, ...]
    floats: tuple[float | Place, ...]
    name: str
    place: Origin


class Recorder:
    """``recorded``, ``constants`` (by id), ``freed``: since ``start``. ``first_id``: all ids of the block are higher.

    ``may_send``: whether a tensor of the master that is sent now is a constant. ``is_issued``: whether what is recorded
    goes to the node, too.
    """

    def __init__(self, session: Session, scalars: Scalars, *, is_issued: bool = True) -> None:
        self.recorded: list[Recorded] = []
        self.constants: dict[int, Constant] = {}
        self.freed: set[int] = set()
        self.first_id = 0
        self.may_send = False
        self.session, self._scalars, self.is_issued = session, scalars, is_issued
        self.stream: CommandStream = session.streams.present
        self._thread = threading.get_ident()
        self._append: Callable[[Command], object] = self.stream.queue.append
        self._free: Callable[[int], object] = session.free

    def start(self) -> None:
        """Raises CaptureError if another capture goes on."""
        if recorder_of(self.stream) is not None:
            raise CaptureError(
                "remote.capture",
                line_of(None),
                f"node {self.session.number} is in the middle of another capture",
                "One step is captured at a time: end that block first",
            )
        self.first_id = next_id()
        self.stream.captured_by = self._thread
        self.stream.queue.append = self.append
        self.session.free = self.free

    def stop(self) -> None:
        """Give the queue its own end back. A node that was lost meanwhile has another one by now."""
        self.stream.captured_by = None
        if self.stream.queue.append == self.append:
            self.stream.queue.append = self._append
        if self.session.free == self.free:
            self.session.free = self._free

    def append(self, command: Command) -> None:
        """Raises CaptureError for what can't be replayed. Any thread, also from a finalizer."""
        record, name, place = command
        (number,) = _NUMBER.unpack_from(record)
        if number in _ONLY_KEPT:
            self._append(command)
            return
        if threading.get_ident() != self._thread:
            raise CaptureError(
                name,
                line_of(place),
                f"another thread uses node {self.session.number} while a step is captured there",
                "Issue it before or after the captured block",
            )
        record = self._planned(record, name, place) if number >= FIRST_PLAN else self._built_in(record, name, place)
        if self.is_issued:
            self._append((record, name, place))

    def free(self, id_: int) -> None:
        """A tensor was given up."""
        self.freed.add(id_)
        if self.is_issued or id_ < self.first_id:
            self._free(id_)

    def _planned(self, record: bytes, name: str, place: Origin) -> bytes:
        """Return the record with the values that scalars have now."""
        plan = plan_of(_NUMBER.unpack_from(record)[0])
        template = plan.template
        number, *values = template.numbers.unpack(record)
        num_outputs, num_ids = template.num_outputs, template.num_outputs + template.num_tensors
        inputs = tuple(values[num_outputs:num_ids])
        for constant in _floats_in((*template.args, *template.kwargs.values())):
            if self._place_of(constant, name, place) is not None:
                raise CaptureError(
                    name,
                    line_of(place),
                    "the shape of its result depends on a scalar of the step",
                    "Use a number that does not vary here",
                )
        for reshaped, _ in template.reshapes:
            if inputs[reshaped] < self.first_id:
                raise CaptureError(
                    name,
                    line_of(place),
                    "it changes the shape of a tensor from before the block, so a replay would find another one",
                    "Call it outside of the block",
                )
        floats = tuple(self._float(value, name, place) for value in values[num_ids:])
        self.recorded.append(Recorded(plan, tuple(values[:num_outputs]), inputs, floats, name, place))
        if all(type(each) is float for each in floats):
            return record
        known = [self._scalars.value_of(each) if isinstance(each, Place) else each for each in floats]
        return template.numbers.pack(number, *values[:num_ids], *known)

    def _built_in(self, record: bytes, name: str, place: Origin) -> bytes:
        kind, _ = HEAD.unpack_from(record)
        body = record[HEAD.size :]
        if kind == Kind.LOAD and self.may_send:
            id_, spec, memory = records.read_load(body)
            self.constants[id_] = Constant(spec, memory)
        elif kind == Kind.KEEP_GENERATOR:
            self.recorded.append(Recorded(Kind(kind), (records.read_generator(body),), (), (), name, place))
        elif kind == Kind.RESTORE_GENERATOR:
            self.recorded.append(Recorded(Kind(kind), (), (records.read_generator(body),), (), name, place))
        else:
            reason, advice = _REFUSED.get(kind, ("it can't be replayed", "Call it outside of the captured block"))
            raise CaptureError(name, line_of(place), reason, advice)
        return record

    def _float(self, value: float, name: str, place: Origin) -> float | Place:
        found = self._place_of(value, name, place)
        return value if found is None else found

    def _place_of(self, value: float, name: str, place: Origin) -> Place | None:
        try:
            return self._scalars.place_of(value)
        except ValueError as error:
            raise CaptureError(
                name,
                line_of(place),
                f"{error}, as by math.sqrt or by a derivative, and would be fixed",
                "Compute it of the scalar with + - * / **, or make it a scalar of its own",
            ) from None


_FIXED: Final = (
    "a tensor of the master is sent: each replay would get the values that it has now",
    "Make it an input: remote.capture(x, t), or send it before the block: nodes[1].send(t)",
)
_REFUSED: Final[dict[int, tuple[str, str]]] = {
    Kind.LOAD: _FIXED,
    Kind.ARRIVED: _FIXED,
    Kind.SEED: ("each replay would draw the same numbers", "Seed outside of the block: replays draw on"),
    Kind.REPLAY: ("a step is replayed inside of another one", "Capture the whole in one block"),
    Kind.GRAPH: ("a step is captured inside of another one", "Capture the whole in one block"),
}


def recorder_of(stream: CommandStream) -> Recorder | None:
    """Return the recorder of the capture that goes on; None: there is none."""
    owner = getattr(stream.queue.append, "__self__", None)
    return owner if isinstance(owner, Recorder) else None


def _floats_in(items: tuple[Any, ...]) -> Iterator[float]:
    for item in items:
        if type(item) is float:
            yield item
        elif isinstance(item, (list, tuple)):
            yield from _floats_in(tuple(item))
