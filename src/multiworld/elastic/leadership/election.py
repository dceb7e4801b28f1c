"""Decide who coordinates when the coordinator is gone, and who must not go on. Pure: the roster and what is known.

Agents stand in the roster in the order in which they came. The first that lives takes over, and each agent follows one
coordinator at a time. An agent whose machine answered that its process is gone (a reset connection, a refused call) is
dead, and has no vote. One that is merely silent may be alive behind a cut network, and go on: so whoever coordinates
needs the votes of half of those that may be alive, and more than half unless it was the coordinator before.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import islice

from ...wire.transitions import TransitionTable
from ..job.roster import Roster, RosterEntry

SMALL_JOB = 16
NUM_HEIRS = 3  # in a larger one


class Role(enum.Enum):
    """What an agent is to the others."""

    SEARCHING = "searching"
    FOLLOWING = "following"
    LEADING = "leading"
    OVER = "over"


class RoleChange(enum.Enum):
    """What happens to an agent."""

    WELCOMED = "welcomed"  # a coordinator has taken it
    ELECTED = "elected"  # it coordinates
    LOST = "lost"  # its coordinator is gone, or has sent it away
    STEPPED_DOWN = "stepped down"  # the others may go on without it, or do so already
    ENDED = "ended"


_TABLE = TransitionTable(
    "an agent",
    {
        (Role.SEARCHING, RoleChange.WELCOMED): Role.FOLLOWING,
        (Role.SEARCHING, RoleChange.ELECTED): Role.LEADING,
        (Role.SEARCHING, RoleChange.ENDED): Role.OVER,
        (Role.FOLLOWING, RoleChange.LOST): Role.SEARCHING,
        (Role.FOLLOWING, RoleChange.ENDED): Role.OVER,
        (Role.LEADING, RoleChange.STEPPED_DOWN): Role.SEARCHING,
        (Role.LEADING, RoleChange.ENDED): Role.OVER,
    },
)

advance = _TABLE.advance


def line_of_succession(roster: Roster, gone: AbstractSet[str]) -> list[RosterEntry]:
    """Return who may take over, first comes first: all but the coordinator that was lost and those known to be gone."""
    return [member for member in roster.members if member.id != roster.coordinator and member.id not in gone]


def heirs(agents: Collection[str], coordinator: str) -> list[str]:
    """Return those that are told at once what the coordinator knows: the first in line, and all in a small job."""
    line = (agent for agent in agents if agent != coordinator)
    return list(islice(line, len(agents) if len(agents) <= SMALL_JOB else NUM_HEIRS))


def may_succeed(agents: Collection[str], coordinator: str) -> set[str]:
    """Return those that shall know all that the coordinator knows before long; more than are likely to die at once."""
    return set(islice((agent for agent in agents if agent != coordinator), SMALL_JOB))


def has_quorum(members: Sequence[str], *, votes: AbstractSet[str], dead: AbstractSet[str], coordinated: bool) -> bool:
    """Whether an agent with these ``votes`` (its own among them) may coordinate, or go on to do so.

    ``coordinated``: it is the coordinator of this roster, which decides between two halves.
    """
    may_live = [member for member in members if member not in dead]
    have = sum(member in votes for member in may_live)
    return 2 * have >= len(may_live) if coordinated else 2 * have > len(may_live)


def hosts_out(
    known: AbstractSet[str],
    *,
    host_of: Mapping[str, str],
    electorates: Sequence[Sequence[str]],
    heard: AbstractSet[str],
    leaving: AbstractSet[str],
) -> frozenset[str] | None:
    """Return the hosts of those that can't go on without this coordinator; None: that can't be said now.

    ``known``: all hosts of the job; ``host_of``: those of the agents that are linked. ``heard``: the agents that were
    heard a moment ago, this one among them: if a cut has silenced one, those that it silenced at the same time are lost
    a moment later, and have no vote here. ``leaving``: those that live, and have ended their links to this one: others
    may be about to do so.
    """
    if leaving or not all(has_quorum(each, votes=heard, dead=set(), coordinated=True) for each in electorates):
        return None
    return frozenset(known) - set(host_of.values())


def may_have_gone_on(roster: Roster, gone: AbstractSet[str], *, before: AbstractSet[str]) -> bool:
    """Whether those that are gone now may have led the job, to its end perhaps, while all others were away.

    Then nobody who was away may begin it anew: what has ended well would run twice. ``before``: those that were known
    to be dead when that began.
    """
    members = [member.id for member in roster.members]
    since = gone - before
    return bool(since) and has_quorum(members, votes=since, dead=before, coordinated=roster.coordinator in since)
