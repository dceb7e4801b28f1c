"""A plan on the master: what a call of one operator with arguments like these sends and returns."""

from __future__ import annotations

import itertools
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Final

from ..protocol import records
from ..protocol.records import FIRST_PLAN
from ..protocol.template import Keywords, Template
from ..session.origins import origin
from ..session.session import BATCH, Session, next_id
from .wrapping import make

MAX_PLANS: Final = 20_000
_numbers = itertools.count(FIRST_PLAN)

Returns = Callable[[list[Any], Sequence[Any], Keywords], Any]
"""Builds what the operator returns, of new tensors and of the arguments that it wrote."""


class Plan:
    """``specs``: of new tensors, by number. ``returns``: None if the operator returns its one new tensor."""

    __slots__ = ("__weakref__", "_define", "_known_by", "_pack", "_returns", "_single", "_specs", "name", "number")

    def __init__(self, template: Template, specs: tuple[int, ...], returns: Returns | None) -> None:
        self.number = next(_numbers)
        self.name = template.operator
        self._specs, self._returns = specs, returns
        self._single = specs[0] if returns is None else -1
        self._pack = template.numbers.pack
        self._define = records.define(self.number, template.encode())
        self._known_by: list[weakref.ref[Session]] = []

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
        queue = session.queue
        number = self.number
        if number not in session.known_plans:
            session.known_plans.add(number)
            self._known_by.append(weakref.ref(session))
            queue.append((self._define, self.name, None))
        if self._returns is None:
            id_ = next_id()
            result: Any = make(cls, session, self._single, id_)
            record = self._pack(number, id_, *ids, *floats)
        else:
            new = [make(cls, session, spec, next_id()) for spec in self._specs]
            result = self._returns(new, args, kwargs)
            record = self._pack(number, *[each._id for each in new], *ids, *floats)
        queue.append((record, self.name, origin(sys._getframe(2))))
        if not session.timer_set or len(queue.waiting) >= BATCH:
            session.queued()
        return result

    def forget(self) -> None:
        """Tell the nodes that know this plan that they may drop it."""
        for reference in self._known_by:
            session = reference()
            if session is not None and self.number in session.known_plans:
                session.known_plans.discard(self.number)
                session.queue.append((records.forget(self.number), self.name, None))
        self._known_by.clear()


class PlanCache:
    """Plans by key. The plan that was not used for longest goes first. Any thread."""

    def __init__(self, max_plans: int = MAX_PLANS) -> None:
        self.max_plans = max_plans
        self.num_made = 0
        self._plans: OrderedDict[tuple[Any, ...], Plan] = OrderedDict()
        self._lock = threading.Lock()  # one plan is added at a time

    def __len__(self) -> int:
        return len(self._plans)

    def get(self, key: tuple[Any, ...]) -> Plan | None:
        plan = self._plans.get(key)
        if plan is not None:
            try:
                self._plans.move_to_end(key)
            except KeyError:  # another thread removed it in this moment; this call still has it
                return plan
        return plan

    def add(self, key: tuple[Any, ...], plan: Plan) -> None:
        """Keep a plan; nodes forget those that have to go for it."""
        with self._lock:
            self._plans[key] = plan
            self.num_made += 1
            gone = []
            while len(self._plans) > self.max_plans:
                gone.append(self._plans.popitem(last=False)[1])
        for each in gone:
            each.forget()
