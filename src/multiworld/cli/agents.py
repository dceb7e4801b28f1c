"""``multiworld agents``: the hosts of a running job, numbered as the other commands take them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from ..command_parser import CommandParser
from ..elastic.control.messages import StatusOf
from ..elastic.job.status import AgentStatus, JobStatus, WorkerStatus
from .cluster import cluster_parser, conversation, name_job, ranges, table, told


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the agents: 0, or 1 if the job cannot be asked."""
    options = command_parser().parse_args(arguments)

    def work() -> None:
        with conversation(options) as talk:
            status = talk.ask(StatusOf(), JobStatus)
            name_job(options, talk)
        print(
            json.dumps([asdict(agent) for agent in status.agents], indent=2) if options.json else agents_table(status)
        )

    return told("agents", work)


def command_parser() -> CommandParser:
    return cluster_parser("agents", "List the agents of a running job, one on each host.")


def agents_table(status: JobStatus) -> str:
    """Return the table for people; the coordinator has a star."""
    header = ("AGENT", "HOST", "ADDRESS", "PID", "STATE", "RANKS", "WORLDS", "RESTARTS", "DEVICES")
    return table(header, [_row(agent, status.workers) for agent in status.agents])


def _row(agent: AgentStatus, workers: Sequence[WorkerStatus]) -> tuple[object, ...]:
    return (
        f"{agent.index}{'*' if agent.coordinates else ''}",
        agent.hostname,
        f"{agent.host}:{agent.port}",
        agent.pid,
        agent.state,
        ranges([each.rank for each in workers if each.agent == agent.id and each.rank is not None]),
        len(agent.worlds),
        agent.restarts,
        agent.devices or "-",
    )
