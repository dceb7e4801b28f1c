"""Decide what is noted on a traced request on its way: who was sent it when, and who executed it how. Pure.

Times are Unix times, of the host that notes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from ...errors import MessageError
from ...wire.messages import Json, from_json

MAX_HOPS = 256


@dataclass(frozen=True, kw_only=True)
class Sent:
    """A replica of the stage was sent the request. ``attempt``: of the gateway.

    ``why``: it was sent to another one before, which is "lost", or "suspect" if it lives.
    """

    to: str
    stage: str
    at: float
    attempt: int
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Executed:
    """A replica has executed the request, together with others if ``batch`` is above 1."""

    by: str
    stage: str
    arrived: float
    began: float
    ended: float
    batch: int
    version: int
    error: str = ""


Hop = Sent | Executed


@dataclass(frozen=True, kw_only=True)
class Hops:
    """The notes on one request. ``own``: of this process. ``received``: of others, as JSON.

    Most processes only pass on what they received; it is read where the trace ends.
    """

    received: tuple[Json, ...] = ()
    own: tuple[Hop, ...] = ()

    def with_sent(self, stage: str, peer: str, *, at: float, attempt: int, holders: Iterable[str] = ()) -> Hops:
        """Note that a stage's replica is sent the request. ``holders``: those of the stage that still live."""
        former = [hop.to for hop in self.own if isinstance(hop, Sent) and (hop.stage, hop.attempt) == (stage, attempt)]
        why = ("suspect" if former[-1] in holders else "lost") if former else ""
        return self.with_hop(Sent(to=peer, stage=stage, at=at, attempt=attempt, why=why))

    def with_hop(self, hop: Hop) -> Hops:
        """Return these and one more; the oldest go where there are too many."""
        return replace(self, received=self.received[-MAX_HOPS:], own=(*self.own[-MAX_HOPS:], hop))

    def read(self) -> tuple[Hop, ...]:
        """Return all, each once, but those that are none."""
        hops: list[Hop] = []
        for fields in self.received:
            kind: type[Hop] = Sent if isinstance(fields, Mapping) and "to" in fields else Executed
            with suppress(MessageError):
                hops.append(from_json(kind, fields))
        return tuple(dict.fromkeys((*hops, *self.own)))


def merged(parts: Sequence[Hops]) -> Hops:
    """Return the notes of the parts of one request, each once: what came before they were parted is in all of them."""
    received: list[Json] = []
    for hops in parts:
        received += [fields for fields in hops.received if fields not in received]
    return Hops(received=tuple(received), own=tuple(dict.fromkeys(hop for hops in parts for hop in hops.own)))
