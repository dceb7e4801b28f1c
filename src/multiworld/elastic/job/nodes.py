"""Decide which hosts have ranks, in which order, and which are to go. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from .layout import AgentInfo, Slot


class NodeChange(NamedTuple):
    """Of the hosts that have ranks: those that stay, those that are gone, and those that may come in."""

    staying: list[str]
    vacant: list[str]
    coming: list[str]


class Nodes:
    """The hosts of one job. ``done``: those whose workers have all ended well, whether they are gone or not."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        """How many have ranks at most; the others wait, as spares do."""
        self.agents: dict[str, AgentInfo] = {}
        """Those that are attached, in the order in which they came."""
        self.active: list[str] = []
        """Those that have ranks, in the order of their node ranks; after a takeover also lost ones."""
        self.known: dict[str, AgentInfo] = {}
        """Also those that are gone."""
        self.draining: set[str] = set()
        """Those that are to go, once their workers have ended."""

    @property
    def active_agents(self) -> list[AgentInfo]:
        """What is known of those that have ranks, also of those that are gone."""
        return [self.known[agent] for agent in self.active if agent in self.known]

    def slots(self, agents: Sequence[str]) -> list[Slot]:
        return [Slot(agent, rank) for agent in agents for rank in range(self.known[agent].num_workers)]

    def attach(self, agent: AgentInfo) -> None:
        self.agents[agent.id] = self.known[agent.id] = agent

    def lose(self, agent_id: str) -> AgentInfo | None:
        self.draining.discard(agent_id)
        return self.agents.pop(agent_id, None)

    def candidates(self) -> list[str]:
        """Return those that are attached in the order of their ranks to be: as given, as they had them, or came."""
        come = {name: agent for name, agent in self.agents.items() if name not in self.draining}
        given = {agent.node_rank: agent.id for agent in come.values() if agent.node_rank is not None}
        if given:
            return [given[rank] for rank in sorted(given) if rank is not None]
        staying = dict.fromkeys(agent for agent in self.active if agent in come)
        return [*staying, *(agent for agent in come if agent not in staying)]

    def leaving(self, done: Collection[str]) -> set[str]:
        """Return those that have ranks and are to have none: drained ones, and the last ones beyond the wanted."""
        if not self.draining and len(self.active) <= self.wanted:  # as mostly; it is asked for at every event
            return set()
        staying = [
            agent for agent in self.active if agent not in self.draining and (agent in self.agents or agent in done)
        ]
        return {agent for agent in self.active if agent in self.draining} | set(staying[self.wanted :])

    def change(self, done: Collection[str], busy: Collection[str]) -> NodeChange | None:
        """Return what the events until now lead to; None: nothing. ``busy``: those whose workers run."""
        gone = {agent for agent in self.leaving(done) if agent not in busy}
        present = {agent for agent in self.active if agent in self.agents and agent not in gone}
        staying = dict.fromkeys(agent for agent in self.active if agent in present or agent in done)
        waiting = [agent for agent in self.candidates() if agent not in staying]
        coming = waiting[: max(0, self.wanted - len(staying))]
        vacant = [agent for agent in self.active if agent not in staying]
        return NodeChange([*staying], vacant, coming) if vacant or coming else None

    def admit(self, change: NodeChange) -> list[str]:
        """Give those that come the places of those that are gone, as far as there are as many; others move up.

        Returns those that had no ranks.
        """
        had = set(self.active)  # there may be a thousand
        coming = [agent for agent in change.coming if agent not in had]
        stay, come = set(change.staying), set(coming)
        replaced = dict(zip(change.vacant, coming, strict=False))
        kept = [replaced.get(agent, agent) for agent in self.active]
        members = dict.fromkeys(agent for agent in kept if agent in stay or agent in come)
        self.active = [*members, *(agent for agent in coming if agent not in members)]
        if all(self.known[agent].node_rank is not None for agent in self.active):
            self.active.sort(key=lambda agent: self.known[agent].node_rank or 0)
        return coming

    def drain(self, agent_id: str, min_nodes: int) -> AgentInfo:
        """Let it go once its workers have ended. Raises ValueError, with one line, if there would be too few left."""
        if agent_id not in self.agents:
            raise ValueError("that host is not part of the job now")
        agent = self.agents[agent_id]
        if agent_id in self.draining:
            raise ValueError(f"host {agent.hostname} is being drained already")
        others = [each for each in self.agents if each != agent_id and each not in self.draining]
        if agent_id in self.active and len(others) < min_nodes:
            raise ValueError(
                f"host {agent.hostname} is needed: without it {len(others)} hosts are left, and the job needs at least "
                f"{min_nodes}"
            )
        self.draining.add(agent_id)
        return agent

    def release(self, busy: Collection[str]) -> list[AgentInfo]:
        """Take out the drained ones that are not ``busy``, and return them."""
        released = [agent for name, agent in self.agents.items() if name in self.draining and name not in busy]
        for agent in released:
            self.lose(agent.id)
        return released
