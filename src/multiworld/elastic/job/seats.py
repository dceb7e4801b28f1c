"""Decide which hosts have ranks, and in which order. Pure: names of agents in, names of agents out."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from .layout import AgentInfo

__all__ = ["candidates", "fill", "leaving"]


def candidates(agents: Mapping[str, AgentInfo], active: Sequence[str], draining: Collection[str]) -> list[str]:
    """Return the attached hosts in the order in which they get node ranks: as given, or as they had them, or came."""
    come = {name: agent for name, agent in agents.items() if name not in draining}
    given = {agent.node_rank: agent.id for agent in come.values() if agent.node_rank is not None}
    if given:
        return [given[rank] for rank in sorted(given) if rank is not None]
    staying = dict.fromkeys(agent for agent in active if agent in come)
    return [*staying, *(agent for agent in come if agent not in staying)]


def leaving(active: Sequence[str], there: Collection[str], draining: Collection[str], wanted: int) -> set[str]:
    """Return the hosts that have ranks and are to have none: drained ones, and the last ones beyond the wanted.

    ``there``: those that have not been lost.
    """
    if not draining and len(active) <= wanted:  # as mostly; it is asked for at every event
        return set()
    staying = [agent for agent in active if agent not in draining and agent in there]
    return {agent for agent in active if agent in draining} | set(staying[wanted:])


def fill(
    active: Sequence[str],
    *,
    staying: Collection[str],
    vacant: Sequence[str],
    coming: Sequence[str],
    known: Mapping[str, AgentInfo],
) -> list[str]:
    """Give those that come the places of those that are lost, as far as there are as many; others move up."""
    stay, come = set(staying), set(coming)  # there may be a thousand
    replaced = dict(zip(vacant, coming, strict=False))
    kept = [replaced.get(agent, agent) for agent in active]
    members = dict.fromkeys(agent for agent in kept if agent in stay or agent in come)
    seated = [*members, *(agent for agent in coming if agent not in members)]
    if all(known[agent].node_rank is not None for agent in seated):
        seated.sort(key=lambda agent: known[agent].node_rank or 0)
    return seated
