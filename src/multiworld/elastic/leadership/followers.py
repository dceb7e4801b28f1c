"""The agents that follow this one while it coordinates: who reports for duty, who is lost, and who is astray."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from ...wire.messages import Json
from ...wire.progress.operation import Operation, drive
from ...wire.progress.thread import ProgressThread, Timer
from ...world.links.link import Link
from ...world.links.peers import PeerInfo
from ...world.liveness import Cause
from ..job.layout import AgentInfo
from ..rendezvous.base import Address
from .coordinator import Coordinator
from .election import has_quorum, hosts_out
from .links import CALL_S, AgentLinks
from .messages import AgentMessage, Attach, Refuse, Summon

logger = logging.getLogger(__name__)

FENCE_S = 0.5  # an agent that is cut off from most others ends its workers so long after it has noticed
BEACON_S = 0.1  # so long two coordinators may not know of each other
LOOK_AGAIN_S = 0.05  # whether those that are left have been heard since


class Followers:
    """Progress thread only. ``on_cut_off`` is called when most of them may go on without us; then close this.

    ``lookouts`` returns where agents may wait that do not know where the job is. ``host_id``: this host's;
    ``known_hosts``: those of the job before this agent coordinated; ``on_hosts_out`` hears which of them have no part
    in it any more.
    """

    def __init__(
        self,
        loop: ProgressThread,
        links: AgentLinks,
        coordinator: Coordinator,
        *,
        digest: Mapping[str, Json],
        lease_s: float,
        host_id: str,
        known_hosts: Iterable[str],
        lookouts: Callable[[], list[Address]],
        on_cut_off: Callable[[], None],
        on_hosts_out: Callable[[frozenset[str]], None],
    ) -> None:
        self._loop, self._links, self._coordinator = loop, links, coordinator
        self._digest, self._patience_s = digest, lease_s + 2 * FENCE_S
        self._lookouts, self._on_cut_off = lookouts, on_cut_off
        self._known_hosts, self._on_hosts_out = {each for each in known_hosts if each}, on_hosts_out
        self._host_of = {coordinator.agent_id: host_id}  # of the agents that are linked, and this one
        self._out: frozenset[str] = frozenset()
        self._is_looking_again = False
        self._leaving: set[str] = set()  # of the silent: their machine has ended the link, and they live
        self._by_agent: dict[str, Link] = {}
        self._agents: dict[Link, str] = {}  # the same, the other way round
        self._doors: dict[str, Sequence[Address]] = {}  # where they listen
        self._silent: dict[str, str] = {}  # those that may still be alive, and why they are lost
        self._patience: dict[str, Timer] = {}  # when those are given up
        self._closed = False

    @property
    def have_gone(self) -> bool:
        """Whether so many are silent, or have closed their links by now, that they may go on without us."""
        members = self._coordinator.attached
        there = {agent for agent, link in self._by_agent.items() if not link.is_hung_up}
        gone = set(members) - there - {self._coordinator.agent_id}
        return has_quorum(members, votes=gone, dead=set(), coordinated=False)

    def tell(self, agent_id: str, message: AgentMessage) -> None:
        """Dropped if it is away: it is told again when it comes back."""
        if agent_id in self._by_agent:
            self._links.tell(self._by_agent[agent_id], message)

    def heard(self, link: Link, message: AgentMessage) -> None:
        agent_id = self._agents.get(link)
        if agent_id is not None:
            self._coordinator.hear(agent_id, message)

    def close(self) -> None:
        """Drop them all, without a word."""
        self._closed = True
        for link in self._by_agent.values():
            self._links.drop(link)
        self._by_agent.clear()
        self._agents.clear()
        for agent_id in list(self._silent):
            self._not_silent(agent_id)

    def admit(self, link: Link, attach: Attach) -> None:
        """Another agent reports for duty here."""
        me, coordinator, info = self._links.me, self._coordinator, attach.agent
        assert me is not None
        reason = self._disagreement(attach.digest) or self._objection(info)
        if reason is not None:
            self._refuse(link, reason)
            return
        self._not_silent(info.id)
        if info.id in self._by_agent:
            self._links.drop(self._unlink(info.id))
        self._links.watch(link)
        self._doors[info.id] = attach.doors
        is_known = coordinator.knows(attach)  # it lost its connection to us, and nothing else
        if not is_known:
            coordinator.lose(info.id, "it came again")
        self._by_agent[info.id], self._agents[link] = link, info.id
        self._host_of[info.id] = info.host_id
        self._is_in(info.host_id)
        peer = me.to_json().decode()
        self._links.tell(link, coordinator.welcome(attach, peer=peer, heartbeat_s=self._links.heartbeat_s))
        if is_known:
            coordinator.welcome_back(attach)
        else:
            coordinator.attach(attach)

    def lost(self, link: Link, cause: Cause, detail: str) -> None:
        """A link to one of them has ended."""
        agent_id = self._agents.get(link)
        if agent_id is None:
            return
        self._unlink(agent_id)
        if cause is Cause.LEFT:
            self._coordinator.lose(agent_id, detail)
        elif cause is Cause.DIED:
            self._silent[agent_id] = detail
            self._leaving.add(agent_id)
            ascertaining = drive(self._ascertain(agent_id, link.peer, detail))
            ascertaining.add_callback(partial(self._ascertained, agent_id, detail))
        else:
            self._fell_silent(agent_id, detail)

    def _unlink(self, agent_id: str) -> Link:
        link = self._by_agent.pop(agent_id)
        self._host_of.pop(agent_id, None)
        del self._agents[link]
        return link

    def look_out(self) -> None:
        """Look from now on whether somebody has started an agent anew, which does not know where the job is now."""
        if self._closed:
            return
        self._loop.call_later(BEACON_S, self.look_out)
        doors = [door for agent in self._by_agent for door in self._doors.get(agent, [])]
        taken = {*doors, *self._links.addresses}
        for address in self._lookouts():
            if address not in taken:
                self._links.call(address.host, address.port, CALL_S).add_callback(self._summon)

    def _summon(self, calling: Operation[Link]) -> None:
        if calling.error is not None or self._links.me is None:
            return
        link, me = calling.result(), self._links.me
        if self._closed:
            self._links.drop(link)
            return
        rank = (self._coordinator.term, self._coordinator.job.generation)
        self._links.tell(link, Summon(host=me.host, port=me.port, id=self._coordinator.agent_id, rank=rank))
        self._loop.call_later(CALL_S, partial(self._links.drop, link))

    def _disagreement(self, there: Mapping[str, Json]) -> str | None:
        differing = [name for name, value in self._digest.items() if there.get(name) != value]
        if differing:
            shown = ", ".join(f"{name} is {self._digest[name]} here and {there.get(name)} there" for name in differing)
            return f"the agents of a job must agree, but {shown}"
        return None

    def _objection(self, info: AgentInfo) -> str | None:
        if info.node_rank is None:
            return None
        agents = self._coordinator.job.nodes.agents.values()
        twins = [each for each in agents if each.node_rank == info.node_rank and each.id != info.id]
        if twins:
            return (
                f"--node-rank {info.node_rank} is taken by the agent on {twins[0].hostname}: give each host its own, "
                "or all of them --rdzv-backend c10d, which needs none"
            )
        return None

    def _refuse(self, link: Link, reason: str) -> None:
        logger.warning("refused the agent at %s: %s", link.peer, reason)
        self._links.tell(link, Refuse(reason=reason))

    def _not_silent(self, agent_id: str) -> None:
        self._silent.pop(agent_id, None)
        self._leaving.discard(agent_id)
        timer = self._patience.pop(agent_id, None)
        if timer is not None:
            timer.cancel()

    async def _ascertain(self, agent_id: str, peer: PeerInfo, detail: str) -> None:
        """Its end of the link is closed. That is its death, or its verdict on us: whom nobody answers to is dead."""
        is_dead = await self._links.is_dead(peer.host, peer.port)
        if agent_id not in self._silent:
            return  # it has come again
        if is_dead:
            self._not_silent(agent_id)
            self._coordinator.lose(agent_id, detail)
        else:
            self._fell_silent(agent_id, f"{detail}, though its process is there")

    def _ascertained(self, agent_id: str, detail: str, ascertaining: Operation[None]) -> None:
        if ascertaining.error is not None and agent_id in self._silent:
            logger.error("whether %s is dead cannot be found out", detail, exc_info=ascertaining.error)
            self._fell_silent(agent_id, detail)

    def _fell_silent(self, agent_id: str, detail: str) -> None:
        """It may be alive, and cut off: then it ends its workers by itself, if it is not we who are."""
        self._silent[agent_id] = detail
        self._patience[agent_id] = self._loop.call_later(self._patience_s, partial(self._give_up_silent, agent_id))
        coordinator, me = self._coordinator, self._coordinator.agent_id
        votes = set(self._by_agent) | {me}
        if not all(has_quorum(each, votes=votes, dead=set(), coordinated=True) for each in self._electorates()):
            num_members = len(coordinator.attached)
            logger.error("cut off from %d of %d agents", num_members - len(votes), num_members)
            self._on_cut_off()
            return
        self.say_who_is_out()

    def _electorates(self) -> list[list[str]]:
        """Return all members, and those of them that have been here for long: most of each must be with us."""
        coordinator, me = self._coordinator, self._coordinator.agent_id
        members = coordinator.attached
        before_the_cut = time.monotonic() - self._patience_s  # who has come since then does not outvote the others
        return [members, [each for each in members if each == me or coordinator.attached_at[each] < before_the_cut]]

    # ---- who is out

    def say_who_is_out(self) -> None:
        """Say which hosts can't go on without us, as soon as that is certain: until then, the trainings wait."""
        if self._closed or self._is_looking_again:
            return
        me = self._coordinator.agent_id
        heard_since = time.monotonic() - 2 * self._links.heartbeat_s
        out = hosts_out(
            self._known_hosts,
            host_of=self._host_of,
            electorates=self._electorates(),
            heard={me} | {each for each, link in self._by_agent.items() if link.heard_at > heard_since},
            leaving=self._leaving,
        )
        if out is not None:
            self._tell_out(out)
        elif self._silent:
            self._is_looking_again = True
            self._loop.call_later(LOOK_AGAIN_S, self._look_again)

    def _look_again(self) -> None:
        self._is_looking_again = False
        self.say_who_is_out()

    def _is_in(self, host: str) -> None:
        """An agent on that host is with us. Said at once, before anything runs there."""
        if host:
            self._known_hosts.add(host)
            self._tell_out(self._out - {host})

    def _tell_out(self, hosts: frozenset[str]) -> None:
        if hosts != self._out:
            self._out = hosts
            self._on_hosts_out(hosts)

    def _give_up_silent(self, agent_id: str) -> None:
        detail = self._silent.get(agent_id)
        self._not_silent(agent_id)
        if detail is not None and agent_id not in self._by_agent:
            self._coordinator.lose(agent_id, detail)
