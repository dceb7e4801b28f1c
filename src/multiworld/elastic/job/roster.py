"""Who is in a job, and what is decided about it: all that another agent must know to coordinate it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from .layout import AgentInfo

__all__ = ["Roster", "RosterEntry"]


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

    def find(self, agent: str) -> RosterEntry | None:
        return next((member for member in self.members if member.id == agent), None)
