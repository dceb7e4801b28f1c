"""How agents and coordinators write to each other: values to JSON and back. Pure."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ...process.messages import from_json, to_json
from .actions import Outcome, WorkerReport
from .assignment import Assignment
from .layout import AgentInfo
from .roster import Roster, RosterChange, RosterEntry

__all__ = [
    "agent_from_fields",
    "agent_to_fields",
    "change_from_fields",
    "change_to_fields",
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
    members = [dict(vars(member)) for member in roster.members]  # there may be a thousand, and asdict takes its time
    return {**vars(roster), "members": members, "known": [dict(vars(agent)) for agent in roster.known]}


def roster_from_fields(fields: dict[str, Any]) -> Roster:
    members = tuple(RosterEntry(**member) for member in fields["members"])
    known = tuple(agent_from_fields(agent) for agent in fields["known"])
    lists = {name: tuple(fields[name]) for name in ("active", "draining", "finished")}
    return Roster(**{**fields, **lists, "members": members, "known": known})


def change_to_fields(change: RosterChange) -> dict[str, Any]:
    """Return what it says; a thousand agents are not told what it does not."""
    return {name: value for name, value in to_json(change).items() if value not in (None, [])}


def change_from_fields(fields: object) -> RosterChange:
    """Raises MessageError."""
    return from_json(RosterChange, fields)
