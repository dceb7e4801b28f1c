"""A plan on the master: what a call of one operator with arguments like these sends and returns."""

from __future__ import annotations

import itertools
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from ..protocol import records
from ..protocol.records import FIRST_PLAN
from ..protocol.specs import Spec, spec_of
from ..protocol.template import Keywords, Template
from ..session.command_stream import BATCH, CommandStream
from ..session.large_origins import LARGE_BYTES
from ..session.large_origins import note as note_large
from ..session.origins import origin
from ..session.session import Session, next_id
from .wrapping import layout_of, make

MAX_PLANS: Final = 20_000
_numbers = itertools.count(FIRST_PLAN)

Path = tuple[int | str, int | None]
"""Where a tensor stands in a call: the place or the name of the argument, and the place in it if it is a list."""

Returns = Callable[[list[Any], Sequence[Any], Keywords], Any]
"""Builds what the operator returns, of new tensors and of the arguments that it wrote."""


class Plan:
    """``specs``: of new tensors, by number. ``returns``: None if the operator returns its one new tensor.

    ``changes``: the numbers of new specs that a call gives to some of its arguments. ``is_large``: whether a new
    tensor is, so that its line is kept. ``native``: the same for ``native/remote.c``; None if Python has to run it.
    """

    __slots__ = (
        "__weakref__",
        "_define",
        "_known_by",
        "_pack",
        "_returns",
        "_single",
        "_specs",
        "changes",
        "is_large",
        "name",
        "native",
        "number",
        "template",
    )

    def __init__(
        self,
        template: Template,
        specs: tuple[int, ...],
        returns: Returns | None,
        changes: Mapping[Path, int],
        same: int | None = None,
    ) -> None:
        """``same``: without new tensors, the place of the argument that it returns; -1: it returns None."""
        self.number = next(_numbers)
        self.template, self.name = template, template.operator
        self._specs, self._returns, self.changes = specs, returns, changes
        self._single = specs[0] if returns is None else -1
        self._pack = template.numbers.pack
        self.is_large = any(_is_large(spec_of(spec)) for spec in specs)
        self._define = records.define(self.number, template.encode())
        self._known_by: list[weakref.ref[CommandStream]] = []
        self.native = None if changes or self.is_large else self._native(same)
        _plans[self.number] = self

    def _native(self, same: int | None) -> tuple[Any, ...] | None:
        """Return the plan's number, its name, and what its new tensor is made of; or which argument it returns."""
        if same is not None:
            return (self.number, self.name, None if same < 0 else same)
        if self._returns is not None:
            return None
        size, stride, offset, dtype, bits = layout_of(self._single)
        return None if bits else (self.number, self.name, size, stride, offset, dtype, self._single)

    def run(
        self,
        cls: type[Any],
        session: Session,
        ids: list[int],
        floats: list[float],
        args: Sequence[Any],
        kwargs: Keywords,
    ) -> Any:
        """Queue the call and return its results, which do not exist yet."""
        stream = session.stream
        if session.has_streams:
            stream = session.streams.present
        queue = stream.queue
        number = self.number
        if number not in stream.definitions:
            queue.append((self._define, self.name, None))  # first: another thread takes what is known for sent
            stream.definitions[number] = self._define
            self._known_by.append(weakref.ref(stream))
        if self._returns is None:
            id_ = next_id()
            result: Any = make(cls, session, self._single, id_)
            record = self._pack(number, id_, *ids, *floats)
        else:
            new = [make(cls, session, spec, next_id()) for spec in self._specs]
            result = self._returns(new, args, kwargs)
            record = self._pack(number, *[each._id for each in new], *ids, *floats)
        place = origin(sys._getframe(2))
        queue.append((record, self.name, place))
        if self.is_large:
            note_large([id_] if self._returns is None else [each._id for each in new], place)
        if not stream.is_busy or len(queue.waiting) >= BATCH:
            stream.queued()
        return result

    def __del__(self) -> None:
        """Tell the nodes that know this plan to drop it: nobody is about to call by it any more."""
        for reference in self._known_by:
            stream = reference()
            if stream is not None and stream.takes_commands:
                stream.definitions.pop(self.number, None)
                stream.queue.append((records.forget(self.number), self.name, None))


def _is_large(spec: Spec) -> bool:
    return spec.num_elements * spec.dtype.itemsize >= LARGE_BYTES


_plans: weakref.WeakValueDictionary[int, Plan] = weakref.WeakValueDictionary()


def plan_of(number: int) -> Plan:
    """Return the plan of a record that is about to be sent."""
    return _plans[number]


class PlanCache:
    """Plans by key: at most ``max_plans``. Plans that were not used for long go first. Any thread.

    There are two halves. A plan that is used moves to the young half. When that is full, it becomes the old one, and
    what was left in the old one goes. So a plan is found by one look into a dict, and nothing notes its last use.
    """

    def __init__(self, max_plans: int = MAX_PLANS) -> None:
        self.num_made = 0
        self._max_young = max(max_plans // 2, 1)
        self.young: dict[tuple[Any, ...], Plan] = {}
        self._old: dict[tuple[Any, ...], Plan] = {}
        self._lock = threading.Lock()  # one plan moves at a time

    def __len__(self) -> int:
        return len(self.young) + len(self._old)

    def get(self, key: tuple[Any, ...]) -> Plan | None:
        plan = self.young.get(key)
        return self._move(key) if plan is None else plan

    def add(self, key: tuple[Any, ...], plan: Plan) -> None:
        """Keep a plan; others may go for it."""
        with self._lock:
            self.num_made += 1
            self._put(key, plan)

    def _move(self, key: tuple[Any, ...]) -> Plan | None:
        if key not in self._old:
            return None
        with self._lock:
            plan = self._old.pop(key, None)
            if plan is not None:
                self._put(key, plan)
        return plan or self.young.get(key)

    def _put(self, key: tuple[Any, ...], plan: Plan) -> None:
        if len(self.young) >= self._max_young:
            self._old, self.young = self.young, {}
        self.young[key] = plan
