"""How a deployment stands, as JSON, for commands, pages and people. Pure."""

from __future__ import annotations

from typing import Any

from .fleet import Fleet
from .members import Member

__all__ = ["describe"]


def describe(fleet: Fleet, now: float) -> dict[str, Any]:
    """Return stages, replicas, gateways, edges and hosts, and whether all stages take requests."""
    missing = fleet.missing()
    return {
        "ready": not missing,
        "missing": missing,
        "unready_s": None if fleet.unready_since is None else now - fleet.unready_since,
        "epoch": fleet.wiring.epoch,
        "resuming": fleet.resuming,
        "stopping": fleet.stopping,
        "stages": {name: _stage(fleet, name, now) for name in fleet.graph.order},
        "replicas": [_member(fleet, member, now) for member in fleet.members.values() if not member.is_gateway],
        "gateways": [_member(fleet, member, now) for member in fleet.members.values() if member.is_gateway],
        "edges": [
            {
                "from": edge.upstream,
                "to": edge.downstream,
                "state": edge.state.value,
                "attempts": edge.attempts,
                "error": edge.error,
            }
            for edge in fleet.wiring.edges.values()
        ],
        "hosts": [
            {"name": host.name, "address": host.address, "capacity": host.capacity, "live": host.live}
            for host in fleet.hosts.values()
        ],
    }


def _stage(fleet: Fleet, name: str, now: float) -> dict[str, Any]:
    plan = fleet.plans[name]
    stage = fleet.graph.stages[name]
    return {
        "inputs": list(fleet.graph.inputs(name)),
        "upstream": list(fleet.graph.upstream(name)),
        "downstream": list(fleet.graph.downstream(name)),
        "desired": plan.desired,
        "open": fleet.num_open(name),
        "min_replicas": stage.fewest,
        "max_replicas": stage.most,
        "version": plan.version,
        "updating_to": None if plan.rollout is None else plan.rollout.version,
        "tuning": plan.tuning,
        "waits_for": plan.waits_for,
        "backs_off_s": max(0.0, plan.crash.not_before - now),
        "last_error": plan.last_error,
    }


def _member(fleet: Fleet, member: Member, now: float) -> dict[str, Any]:
    return {
        "id": member.id,
        "stage": member.stage,
        "state": member.state.value,
        "open": fleet.wiring.is_open(member.id),
        "pid": member.pid,
        "host": member.host,
        "address": member.address,
        "version": member.version,
        "age_s": now - member.born,
        "awaited": member.awaited,
        "retiring": member.retiring,
        "queue": int(member.stats.get("queue", 0)),
        "cpu": member.stats.get("cpu"),
        "rss_bytes": member.stats.get("rss_bytes"),
        "pss_bytes": member.stats.get("pss_bytes"),
        "stats": member.stats,
        "failure": None if member.failure is None else member.failure.to_json(),
    }
