"""Decide what a page shows of a deployment's status: numbers with their rates, and who is where. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from ..control.members import parse_member
from .failures import last_failure, trouble, what_failed
from .series import Point, Rates
from .slots import Slots

__all__ = ["member_key", "observe", "point", "snapshot"]

Status = Mapping[str, Any]
COUNTS = ("arrived", "done", "failed", "busy_s", "calls", "answered", "errors", "refused", "replayed", "retried")
QUANTILES = ("p50_s", "p95_s", "p99_s")


def member_key(member: Mapping[str, Any]) -> Hashable:
    """Return what names one process of a member."""
    return member["id"], member.get("pid")


def observe(rates: Rates, slots: Slots, status: Status, now: float) -> None:
    """Take a status in; ``now``: of a monotonic clock."""
    members = [*status["replicas"], *status["gateways"]]
    rates.keep_only(member_key(member) for member in members)
    for member in members:
        if member["stats"]:
            counts = {name: float(member["stats"].get(name, 0)) for name in COUNTS}
            rates.observe(member_key(member), counts, now)
    stages = status["stages"]
    present: dict[str, list[str]] = {name: [] for name in stages}
    for replica in status["replicas"]:
        present.setdefault(replica["stage"], []).append(replica["id"])
    slots.arrange(present, {name: int(stage["desired"]) for name, stage in stages.items()}, now)


def snapshot(status: Status, rates: Rates, slots: Slots, now: float) -> dict[str, Any]:
    """Return the numbers, as JSON. Seconds, requests/s; None where nothing is known."""
    stages = list(status["stages"])
    replicas = [_replica(each, rates, slots, now) for each in status["replicas"]]
    replicas.sort(key=lambda each: (stages.index(each["stage"]), _number(each["id"])))
    shown_stages = [
        {
            **_stage(name, stage, [each for each in replicas if each["stage"] == name]),
            **_failures([each for each in status["replicas"] if each["stage"] == name], rates),
        }
        for name, stage in status["stages"].items()
    ]
    overall = trouble(*_recent(status["gateways"], rates, "answered", "errors"))
    return {
        "name": status.get("name", ""),
        "ready": status["ready"],
        "missing": status["missing"],
        "unready_s": _rounded(status.get("unready_s"), 1),
        "epoch": status["epoch"],
        "resuming": status["resuming"],
        "stopping": status["stopping"],
        "totals": _totals(status, rates),
        "trouble": overall,
        "failure": what_failed(last_failure(status["gateways"]), shown_stages) if overall else None,
        "stages": shown_stages,
        "replicas": replicas,
        "gateways": [_gateway(each, rates) for each in status["gateways"]],
        "hosts": status["hosts"],
    }


def point(shown: Mapping[str, Any], at: float) -> Point:
    """Return what the curves show of a snapshot."""
    totals = shown["totals"]
    return Point(
        at=at,
        rate=totals["rate"],
        bad_rate=totals["bad_rate"],
        open=totals["open"],
        **{name: totals[name] for name in QUANTILES},
    )


def _totals(status: Status, rates: Rates) -> dict[str, Any]:
    """Return sums over the gateways; of latencies, which do not add up, those of the slowest."""
    gateways = [each for each in status["gateways"] if each["stats"]]
    sums = {name: sum(int(each["stats"].get(name, 0)) for each in gateways) for name in TOTALS}
    worst = {name: max((float(each["stats"].get(name) or 0.0) for each in gateways), default=0.0) for name in QUANTILES}
    return {
        **sums,
        "rate": _sum_rate(gateways, rates, "answered"),
        "bad_rate": _sum_rate(gateways, rates, "failed", "refused"),
        **{name: _rounded(value, 6) or None for name, value in worst.items()},
    }


TOTALS = ("open", "waiting", "answered", "failed", "refused", "replayed", "retried")


def _sum_rate(members: Sequence[Mapping[str, Any]], rates: Rates, *names: str) -> float | None:
    known = [rates.rate(member_key(each), name) for each in members for name in names]
    values = [value for value in known if value is not None]
    return round(sum(values), 2) if values else None


def _stage(name: str, stage: Mapping[str, Any], replicas: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    serving = [each for each in replicas if each["open"]]
    return {
        "name": name,
        "inputs": stage["inputs"],
        "desired": stage["desired"],
        "open": stage["open"],
        "bounds": [stage["min_replicas"], stage["max_replicas"]],
        "rate": _total([each["rate"] for each in replicas]),
        "utilisation": _mean([each["utilisation"] for each in serving]),
        "service_s": _mean([each["service_s"] for each in serving]),
        "batch": _rounded(_mean([each["batch"] for each in serving]), 1),
        "queue": sum(each["queue"] for each in replicas),
        "version": stage["version"],
        "updating_to": stage["updating_to"],
        "note": _note(stage),
    }


def _failures(members: Sequence[Mapping[str, Any]], rates: Rates) -> dict[str, Any]:
    trouble_now = trouble(*_recent(members, rates, "done", "failed"))
    return {"trouble": trouble_now, "failure": last_failure(members) if trouble_now else None}


def _recent(members: Sequence[Mapping[str, Any]], rates: Rates, *names: str) -> list[int]:
    return [sum(rates.recent(member_key(each), name) for each in members) for name in names]


def _note(stage: Mapping[str, Any]) -> str:
    """Return what keeps a stage from what it is to be, in a few words."""
    if stage["backs_off_s"] > 0:
        return f"its replicas die young; next start in {stage['backs_off_s']:.0f} s"
    return str(stage["waits_for"])


def _replica(replica: Mapping[str, Any], rates: Rates, slots: Slots, now: float) -> dict[str, Any]:
    stats, key = replica["stats"], member_key(replica)
    busy = rates.rate(key, "busy_s")
    calls, done, failed = (rates.rate(key, name) for name in ("calls", "done", "failed"))
    recent_done, recent_failed = _recent([replica], rates, "done", "failed")
    return {
        **_member(replica),
        "stage": replica["stage"],
        "version": replica["version"],
        "retiring": replica["retiring"],
        "replaces": slots.replaced_by(replica["stage"], replica["id"], now),
        "queue": int(replica["queue"]),
        "executing": int(stats.get("executing", 0)),
        "in_flight": int(stats.get("in_flight", 0)),
        "window": stats.get("window"),
        "done": int(stats.get("done", 0)),
        "failed": int(stats.get("failed", 0)),
        "held_bytes": int(stats.get("held_bytes", 0)),
        "batch": round(((done or 0.0) + (failed or 0.0)) / calls, 1) if calls else None,
        "trouble": trouble(recent_done, recent_failed),
        "rate": _rounded(rates.rate(key, "done"), 2),
        "service_s": _rounded(stats.get("service_s"), 6),
        "utilisation": None if busy is None else round(min(1.0, busy), 3),
    }


def _gateway(gateway: Mapping[str, Any], rates: Rates) -> dict[str, Any]:
    stats = gateway["stats"]
    return {
        **_member(gateway),
        "open_requests": int(stats.get("open", 0)),
        "waiting": int(stats.get("waiting", 0)),
        "rate": _rounded(rates.rate(member_key(gateway), "answered"), 2),
        **{name: _rounded(stats.get(name), 6) for name in QUANTILES},
    }


def _member(member: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": member["id"],
        "state": "awaited" if member["awaited"] else member["state"],
        "open": member["open"],
        "pid": member["pid"],
        "host": member["host"] or member["address"],
        "age_s": round(member["age_s"]),
        "cpu": _rounded(member.get("cpu"), 2),
        "memory_mb": _memory_mb(member),
    }


def _memory_mb(member: Mapping[str, Any]) -> float | None:
    """Return the memory that a member does not share, or all of it where that is not known, in megabytes."""
    size_bytes = member.get("pss_bytes") or member.get("rss_bytes")
    return None if size_bytes is None else round(size_bytes / 1e6)


def _number(member: str) -> int:
    parsed = parse_member(member)
    return 0 if parsed is None else parsed[1]


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(float(value), digits)


def _total(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(sum(known), 2) if known else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(sum(known) / len(known), 6) if known else None
