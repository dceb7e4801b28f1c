"""What the agents of one job must agree on, and what the coordinator goes by, read from the options. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata

from ...wire.messages import Json
from .options import JobOptions
from .plan import JobPlan

JOIN_S, LAST_CALL_S = 600.0, 3.0
TIMEOUT_BACKENDS = ("static", "etcd")  # of torchrun's, those that call it so


def plan_of(options: JobOptions) -> JobPlan:
    """Return the plan. Raises ValueError for a time in ``--rdzv-conf`` that is none."""
    patience_s = _seconds(options, "timeout", JOIN_S) if options.rdzv_backend in TIMEOUT_BACKENDS else JOIN_S
    join_s = _seconds(options, "join_timeout", patience_s)
    return JobPlan(
        min_nodes=options.min_nodes,
        max_nodes=options.max_nodes,
        policy=options.restart,
        budget=options.budget,
        default_budget=options.default_budget,
        join_timeout_s=join_s,
        cut_off_s=join_s if options.cut_off_s is None else options.cut_off_s,
        last_call_s=_seconds(options, "last_call_timeout", LAST_CALL_S),
        shutdown_s=options.shutdown_s,
        resume_s=options.lease_s + 1.0,
        more_restarts=options.more_restarts,
    )


def what_must_agree(options: JobOptions) -> Mapping[str, Json]:
    """Return it by the names under which people know it, ready for JSON."""
    return {
        "the launcher": "multiworld run",
        "the version of multiworld": metadata.version("multiworld"),
        "--nnodes": f"{options.min_nodes}:{options.max_nodes}",
        "--restart": options.restart.value,
        "--lease-s": options.lease_s,
        "--max-restarts": str(options.budget or options.default_budget or "not given"),
    }


def setting(options: JobOptions, key: str) -> str | None:
    """Return what ``--rdzv-conf`` says of a key, quoted or not; None if it says nothing."""
    given = next((value for name, value in options.rdzv_config.items() if name.strip("'\" ") == key), None)
    return None if given is None else given.strip("'\" ")


def _seconds(options: JobOptions, key: str, default: float) -> float:
    given = setting(options, key)
    if given is None:
        return default
    try:
        seconds = float(given)
    except ValueError:
        seconds = -1.0
    if not seconds >= 0:
        raise ValueError(f"--rdzv-conf {key}={given}: expected a number of seconds")
    return seconds
