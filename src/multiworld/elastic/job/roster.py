"""Who is in a job, and what is decided about it: all that another agent must know to coordinate it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

from ...wire.messages import sparse
from .layout import AgentInfo


@dataclass(frozen=True, kw_only=True)
class RosterEntry:
    """One agent, and where to call it."""

    id: str
    host: str
    port: int


@dataclass(frozen=True, kw_only=True)
class Roster:
    """What a coordinator tells every agent, so that any of them could take over. ``term`` counts coordinators.

    ``store``: the URL of the store in which worlds are formed. ``active``: the hosts that have ranks, in order;
    ``wanted_nodes``: how many there are to be at most; ``draining``: those that are to go. ``signum`` and ``given_up``:
    the job is ending, by that signal or for that reason. ``known``: what is known of the active hosts;
    ``finished``: those whose workers have all ended well. ``uses_multiworld``: a worker was seen to.
    ``num_events``: how many events were recorded until now.
    """

    term: int
    coordinator: str
    generation: int
    store: str
    members: tuple[RosterEntry, ...]
    active: tuple[str, ...]
    wanted_nodes: int | None = None
    draining: tuple[str, ...] = ()
    signum: int | None = None
    given_up: str = ""
    known: tuple[AgentInfo, ...] = ()
    finished: tuple[str, ...] = ()
    uses_multiworld: bool = False
    num_events: int = 0

    def abridged(self) -> Roster:
        """Return what is told to agents that are far from the coordinator's place.

        Should all before them die at once, the first of them goes on with this. Hosts introduce themselves then. Those
        that are absent must be known only if their workers have ended well, so that these do not run twice.
        """
        finished = set(self.finished)
        return replace(self, known=tuple(each for each in self.known if each.id in finished))

    def find(self, agent: str) -> RosterEntry | None:
        return next((member for member in self.members if member.id == agent), None)


@sparse  # a thousand agents are told it
@dataclass(frozen=True, kw_only=True)
class RosterFacts:
    """What a roster says of the job as a whole. None: as before."""

    generation: int | None = None
    wanted_nodes: int | None = None
    signum: int | None = None
    given_up: str | None = None
    uses_multiworld: bool | None = None
    num_events: int | None = None


@dataclass(frozen=True, kw_only=True)
class NamesChange:
    """``gone`` are taken out of a sequence of names, then each that has ``come`` is put at its place."""

    gone: tuple[str, ...] = ()
    come: Mapping[str, int]


@sparse
@dataclass(frozen=True, kw_only=True)
class RosterChange:
    """What makes the roster of revision ``since`` that of ``revision``. Members that have ``joined`` stand last.

    ``known``: what was learned of active hosts.
    """

    since: int
    revision: int
    facts: RosterFacts | None = None
    left: tuple[str, ...] = ()
    joined: tuple[RosterEntry, ...] = ()
    active: NamesChange | None = None
    draining: NamesChange | None = None
    finished: NamesChange | None = None
    known: tuple[AgentInfo, ...] = ()


FACTS = tuple(field.name for field in fields(RosterFacts))


def change_between(before: Roster, after: Roster, *, since: int, revision: int) -> RosterChange | None:
    """Return what ``changed`` makes ``after`` of, or None: it must be told whole."""
    members, had = _by_id(after.members), _by_id(before.members)  # not sets: a thousand hashes take their time
    known = {each.id: each for each in before.known}
    facts = {name: value for name in FACTS if (value := getattr(after, name)) != getattr(before, name)}
    change = RosterChange(
        since=since,
        revision=revision,
        facts=RosterFacts(**facts) if facts else None,
        left=tuple(each.id for each in before.members if _is_other(members.get(each.id), each)),
        joined=tuple(each for each in after.members if _is_other(had.get(each.id), each)),
        active=_names_change(before.active, after.active),
        draining=_names_change(before.draining, after.draining),
        finished=_names_change(before.finished, after.finished),
        known=tuple(each for each in after.known if _is_other(known.get(each.id), each)),
    )
    return change if changed(before, change) == after else None


def changed(before: Roster, change: RosterChange) -> Roster:
    """Return the roster that a change leads to."""
    left = set(change.left)
    active = _names_changed(before.active, change.active)
    known = {each.id: each for each in (*before.known, *change.known)}
    facts = {name: value for name in FACTS if (value := getattr(change.facts, name, None)) is not None}
    return replace(
        before,
        members=(*(each for each in before.members if each.id not in left), *change.joined),
        active=active,
        draining=_names_changed(before.draining, change.draining),
        finished=_names_changed(before.finished, change.finished),
        known=tuple(known[agent] for agent in active if agent in known),
        **facts,
    )


def _is_other(before: object, after: object) -> bool:
    return before is not after and before != after  # mostly it is the same object, which == would compare in full


def _by_id(members: Sequence[RosterEntry]) -> dict[str, RosterEntry]:
    return {member.id: member for member in members}


def _names_change(before: Sequence[str], after: Sequence[str]) -> NamesChange | None:
    if before == after:
        return None
    had, has = set(before), set(after)
    come = {name: place for place, name in enumerate(after) if name not in had}
    return NamesChange(gone=tuple(name for name in before if name not in has), come=come)


def _names_changed(before: tuple[str, ...], change: NamesChange | None) -> tuple[str, ...]:
    if change is None:
        return before
    gone = set(change.gone)
    names = [name for name in before if name not in gone]
    for name, place in sorted(change.come.items(), key=lambda each: each[1]):
        names.insert(place, name)
    return tuple(names)
