"""How agents and coordinators write to each other: values to JSON and back. Pure."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from .actions import Outcome, WorkerReport
from .assignment import Assignment
from .layout import AgentInfo
from .roster import Roster, RosterEntry

__all__ = [
    "agent_from_fields",
    "agent_to_fields",
    "outcome_from_fields",
    "outcome_to_fields",
    "report_from_fields",
    "report_to_fields",
    "roster_from_fields",
    "roster_to_fields",
]


def agent_to_fields(agent: AgentInfo) -> dict[str, Any]:
    return asdict(agent)


def agent_from_fields(fields: dict[str, Any]) -> AgentInfo:
    return AgentInfo(**fields)


def outcome_to_fields(outcome: Outcome) -> dict[str, Any]:
    return asdict(outcome)


def outcome_from_fields(fields: dict[str, Any]) -> Outcome:
    return Outcome(**{**fields, "failures": tuple(fields["failures"])})


def report_to_fields(report: WorkerReport) -> dict[str, Any]:
    return asdict(report)


def report_from_fields(fields: dict[str, Any]) -> WorkerReport:
    return WorkerReport(
        **{
            **fields,
            "assignment": Assignment.from_fields(fields["assignment"]),
            "worlds": tuple(fields["worlds"]),
            "restart_ages_s": tuple(fields["restart_ages_s"]),
        }
    )


def roster_to_fields(roster: Roster) -> dict[str, Any]:
    return asdict(roster)


def roster_from_fields(fields: dict[str, Any]) -> Roster:
    members = tuple(RosterEntry(**member) for member in fields["members"])
    known = tuple(agent_from_fields(agent) for agent in fields["known"])
    lists = {name: tuple(fields[name]) for name in ("active", "draining", "finished")}
    return Roster(**{**fields, **lists, "members": members, "known": known})
