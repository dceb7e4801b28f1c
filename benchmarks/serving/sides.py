"""The sides of a comparison: ours, Ray Serve with its own interpreter, and raw TCP."""

from __future__ import annotations

import sys

from ..side import Side

__all__ = ["ASYNCIO_FLOOR", "BLOCKING_FLOOR", "OURS", "RAY", "RAY_TUNED", "peers"]

QUIET = {"PYTHONWARNINGS": "ignore", "RAY_DEDUP_LOGS": "1", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
TUNED = {"RAY_SERVE_TUNED": "1", "RAY_SERVE_ROUTER_RETRY_MAX_BACKOFF_S": "0.02"}


def peers(interpreter: str | None) -> list[Side]:
    """Return Ray Serve, tuned first and as it comes; none without its interpreter."""
    if not interpreter:
        return []
    command = (interpreter, "-m", "benchmarks.serving.ray_serve")
    return [
        Side(name=RAY_TUNED, command=command, environment={**QUIET, **TUNED}, is_quiet=True),
        Side(name=RAY, command=command, environment=QUIET, is_quiet=True),
    ]


RAY_TUNED, RAY = "Ray Serve, tuned", "Ray Serve"
OURS = Side(name="ours", command=(sys.executable, "-m", "benchmarks.serving.ours"))
_FLOOR = (sys.executable, "-m", "benchmarks.serving.tcp_floor")
ASYNCIO_FLOOR = Side(name="raw TCP, asyncio", command=(*_FLOOR, "asyncio"))
BLOCKING_FLOOR = Side(name="raw TCP, blocking", command=(*_FLOOR, "blocking"))
