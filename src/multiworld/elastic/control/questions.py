"""What the coordinator answers to questions about its job, from what it knows. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from ..job.history import Event, History
from ..job.job import Job
from ..job.layout import AgentInfo
from ..job.remote import RemoteStatus
from ..job.status import AgentStatus, JobStatus, NodeStatus, WorkerStatus, WorldStatus
from ..job.trainings import TrainingStatus
from .messages import Drain, EventsOf, Kill, Question, Scale

ENDING = "this agent is ending"
"""Why a question is not answered any more."""


def status_of(
    job: Job,
    *,
    run_id: str,
    term: int,
    coordinator: str,
    page: str | None,
    now: float = 0.0,
    epoch_s: float = 0.0,
    pids: Mapping[str, int] | None = None,
    trainings: tuple[TrainingStatus, ...] = (),
    remote: RemoteStatus | None = None,
) -> JobStatus:
    """Return all that is known of a job. ``now``, ``epoch_s`` and ``pids``: as ``Job.describe`` takes them."""
    agents, draining = list_agents(job), set(job.nodes.draining)
    node_ranks = {agent: node_rank for node_rank, agent in enumerate(job.nodes.active)}
    index_of = {agent.id: index for index, agent in enumerate(agents)}
    workers = []
    for worker in sorted(job.describe(now, epoch_s=epoch_s, pids=pids), key=_by_rank):
        index = index_of.get(worker.agent)
        workers.append(worker if index is None else replace(worker, index=index, host=agents[index].hostname))
    worlds: dict[str, list[int | None]] = {}
    on_agent: dict[str, list[WorkerStatus]] = {agent.id: [] for agent in agents}
    for worker in workers:
        on_agent.setdefault(worker.agent, []).append(worker)
        for world in worker.worlds:
            worlds.setdefault(world, []).append(worker.rank)
    return JobStatus(
        job=run_id,
        phase=job.phase.value,
        policy=job.restarts.policy.value,
        generation=job.generation,
        term=term,
        coordinator=coordinator,
        page=page,
        nodes=NodeStatus(
            min=job.plan.min_nodes, max=job.plan.max_nodes, wanted=job.nodes.wanted, active=len(job.nodes.active)
        ),
        agents=tuple(
            AgentStatus(
                index=index,
                id=agent.id,
                hostname=agent.hostname,
                host=agent.host,
                port=agent.port,
                pid=agent.pid,
                role=agent.role,
                devices=agent.devices,
                device_indices=agent.device_indices,
                state=_state(agent.id, node_ranks, draining),
                coordinates=agent.id == coordinator,
                node_rank=node_ranks.get(agent.id),
                num_workers=sum(each.state == "running" for each in on_agent[agent.id]),
                worlds=tuple(sorted({world for each in on_agent[agent.id] for world in each.worlds})),
                restarts=sum(each.restarts for each in on_agent[agent.id]),
            )
            for index, agent in enumerate(agents)
        ),
        workers=tuple(workers),
        worlds=tuple(WorldStatus(name=name, ranks=tuple(ranks)) for name, ranks in sorted(worlds.items())),
        restarts=sum(each.restarts for each in workers),
        trainings=trainings,
        remote=remote,
    )


def list_agents(job: Job) -> list[AgentInfo]:
    """Return the agents as they are numbered for people: those with ranks in their order, then those that wait."""
    by_id = {agent.id: agent for agent in job.nodes.agents.values()}
    active = [by_id.pop(agent) for agent in job.nodes.active if agent in by_id]
    return active + list(by_id.values())


def choose_agent(agents: Sequence[AgentInfo], text: str) -> AgentInfo:
    """Return the agent that is meant by its number, host name, address, ``host:port`` or id.

    Raises ValueError, with one line, if that is none or several.
    """
    if text.isdecimal():
        if int(text) < len(agents):
            return agents[int(text)]
        raise ValueError(f"there is no agent {text}: they are numbered from 0 to {len(agents) - 1}")
    meant = [
        (index, agent)
        for index, agent in enumerate(agents)
        if text in (agent.id, agent.hostname, agent.host, f"{agent.host}:{agent.port}")
    ]
    if not meant:
        raise ValueError(f"there is no agent on {text!r} (see multiworld agents)")
    if len(meant) > 1:
        numbers = ", ".join(str(index) for index, _ in meant)
        raise ValueError(f"{text!r} may be any of the agents {numbers}: give the number")
    return meant[0][1]


def choose_events(history: History, asked: EventsOf) -> list[Event]:
    """Return the events that are asked for: those after number ``since``, or the last so many, or all."""
    if asked.since is not None:
        return history.since(asked.since)
    return history.since(0) if asked.last is None or asked.last < 0 else history.latest(asked.last)


def again(question: Question, last_event: int | None = None) -> Question | None:
    """Return the question for the next coordinator, after one was lost on the way; None if it may not be repeated.

    ``last_event``: the number of the last event that was told already.
    """
    if isinstance(question, Drain | Kill | Scale):  # what changes something is not asked for twice
        return None
    if isinstance(question, EventsOf) and last_event is not None:
        return replace(question, since=last_event)
    return question


def _state(agent: str, node_ranks: Mapping[str, int], draining: AbstractSet[str]) -> str:
    if agent in draining:
        return "draining"
    return "active" if agent in node_ranks else "waiting"


def _by_rank(worker: WorkerStatus) -> tuple[bool, int, str, int]:
    return worker.rank is None, worker.rank or 0, worker.agent, worker.local_rank
