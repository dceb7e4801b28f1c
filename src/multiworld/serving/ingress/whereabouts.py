"""Where requests are whose time is nearly over: their errors say at which stage that was. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ..flow.in_flight import InFlight
from .requests import Open, Requests

WHERE_S: Final = 0.06
"""So long before a request's time is over it is asked where it is: the error must not wait for that."""
MAX_ASKED: Final = 64  # requests at a time


class Whereabouts:
    """Of the requests of one gateway. ``order``: of all stages. ``first``: what is in flight to the first ones."""

    def __init__(self, requests: Requests, order: tuple[str, ...], first: Mapping[str, InFlight]) -> None:
        self._requests, self._order, self._first = requests, order, first
        self._dying: list[Open] = []
        self._at: dict[bytes, tuple[bool, int]] = {}

    def clear(self) -> None:
        """Nothing is open: what was nearly over has been answered in time, and nobody needs what it holds."""
        self._dying.clear()
        self._at.clear()

    def to_ask(self, *, now: float) -> list[bytes]:
        """Return those that have come close to their deadline: the replicas are to say where they are."""
        late = self._requests.expired(now=now + WHERE_S)
        self._dying += late
        self.told({request.id: (stage, False) for request in late if (stage := self.stage_of(request))})
        return [request.id for request in late[:MAX_ASKED]]

    def over(self, *, now: float) -> list[Open]:
        """Return the open requests whose deadline is over."""
        dying, self._dying = self._dying, []
        for request in dying:
            if self._requests.get(request.id) is request:
                self._dying.append(request)
            else:
                self._at.pop(request.id, None)
        return [request for request in self._dying if request.deadline <= now]

    def told(self, ids: Mapping[bytes, tuple[str, bool]]) -> None:
        """Some replica says of requests at which stage they are, and whether it is sure. The furthest stage counts."""
        dying = {request.id for request in self._dying}
        for id_, (stage, is_sure) in ids.items():
            if id_ in dying and stage in self._order:
                place = (bool(is_sure), self._order.index(stage))
                self._at[id_] = max(place, self._at.get(id_, place))

    def stage_of(self, request: Open) -> str:
        """Return the stage where a request is, as far as it is known; empty if it is not."""
        place = self._at.get(request.id)
        if place is not None:
            return self._order[place[1]]
        return next((stage for stage, in_flight in self._first.items() if request.id in in_flight), "")
