"""Tell an event of the deployment as the main job sees it: in one line, or not at all. Pure."""

from __future__ import annotations

from ..serving.control.actions import EdgeLost, FleetEvent, ProcessEnded, ReplicaLost, ReplicaReady
from .record import Record

__all__ = ["tell"]


def tell(event: FleetEvent, record: Record, *, at: float) -> str:
    """Return the line for an event that ``record`` has taken in; empty if it says nothing to people."""
    if isinstance(event, EdgeLost):
        return _edge_lost(event, record, at)
    if isinstance(event, ReplicaLost):
        return _replica_lost(event, record, at)
    if isinstance(event, ProcessEnded):
        fault = record.fault_in(event.member)
        if fault is not None and fault.fenced_by:
            return f"{event.member} will not go on: it was fenced off by {fault.fenced_by}"
    if isinstance(event, ReplicaReady) and record.faults:
        return f"{record.label(event.member)} takes over, {event.took_s:.3f} s after it was ordered"
    return ""


def _edge_lost(event: EdgeLost, record: Record, at: float) -> str:
    world = f"world {event.upstream} → {event.downstream}"
    fault = record.fault_in(event.downstream if event.member == event.upstream else event.upstream)
    if fault is not None:
        return f"{event.member}: {world} broke after {max(0.0, at - fault.at):.3f} s: {event.error}"
    return ""


def _replica_lost(event: ReplicaLost, record: Record, at: float) -> str:
    fault = record.fault_in(event.member)
    if fault is None:
        return ""
    if fault.planned:
        return f"controller: {event.member} is given up after {at - fault.at:.3f} s"
    return f"{fault.name}, not by this demo: {event.why.partition(':')[0]}"
