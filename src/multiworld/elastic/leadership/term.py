"""What an agent holds while it coordinates: the coordinator, its followers, and the store of the job's worlds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from ...store.tcp import TCPStoreServer
from ...wire.endpoints.bracketed import bracketed
from ...wire.messages import Json, encode
from ...wire.progress.thread import ProgressThread
from ...world.launcher.hosts_out import KEY, HostsOut
from ..job.actions import Outcome
from ..job.history import History
from ..job.job import Job
from ..job.layout import AgentInfo
from ..job.plan import JobPlan
from ..job.roster import Roster
from ..job.trainings import KnownTraining
from ..rendezvous.base import Address
from .coordinator import Coordinator
from .event_log import EventLog
from .followers import Followers
from .links import AgentLinks
from .messages import AgentMessage, Attach


@dataclass(frozen=True, kw_only=True)
class JobTerms:
    """What every agent of the job was given. ``digest``: what all of them must agree on, by the names people know."""

    plan: JobPlan
    token: bytes
    lease_s: float
    digest: Mapping[str, Json]


class Term:
    """Progress thread only. ``before``: the roster that this agent was told last, if another coordinated before.

    ``trainings``: what it was told of them.

    ``callers``: how those that wait have introduced themselves. ``obey`` takes what this agent tells itself.
    """

    def __init__(
        self,
        loop: ProgressThread,
        links: AgentLinks,
        terms: JobTerms,
        info: AgentInfo,
        job: Job,
        *,
        number: int,
        history: History,
        before: Roster | None,
        trainings: Sequence[KnownTraining],
        callers: Sequence[Attach],
        lookouts: Callable[[], list[Address]],
        obey: Callable[[AgentMessage], None],
        on_over: Callable[[Outcome], None],
        on_cut_off: Callable[[], None],
    ) -> None:
        me = links.me
        assert me is not None
        self._loop, self._agent_id, self._obey = loop, info.id, obey
        self._is_closed = False
        self._store = TCPStoreServer(loop, me.host, 0, terms.token)
        self.store = f"tcp://{bracketed(me.host)}:{self._store.port}"
        """The URL of the store in which worlds are formed."""
        events = EventLog(
            history,
            term=number,
            agent_id=info.id,
            send=self._send,
            told=[segment for attach in callers for segment in attach.segments],
            num_recorded=0 if before is None else before.num_events,
        )
        self.coordinator = Coordinator(
            loop,
            job,
            term=number,
            agent_id=info.id,
            store=self.store,
            events=events,
            send=self._send,
            on_over=on_over,
            trainings=trainings,
        )
        self.followers = Followers(
            loop,
            links,
            self.coordinator,
            digest=terms.digest,
            lease_s=terms.lease_s,
            host_id=info.host_id,
            known_hosts=[] if before is None else [each.host_id for each in before.known],
            lookouts=lookouts,
            on_cut_off=on_cut_off,
            on_hosts_out=lambda hosts: self._store.put(KEY, encode(HostsOut(hosts=tuple(sorted(hosts))))),
        )

    def close(self) -> None:
        """Idempotent."""
        self._is_closed = True
        self.followers.close()
        self.coordinator.close()
        self._store.close()

    def _send(self, agent_id: str, message: AgentMessage) -> None:
        if agent_id == self._agent_id:
            self._loop.call_soon(partial(self._obey_ourselves, message))
        else:
            self.followers.tell(agent_id, message)

    def _obey_ourselves(self, message: AgentMessage) -> None:
        if not self._is_closed:  # else we have stepped down since, and ended our workers
            self._obey(message)
