"""What a command asks a running deployment, and how it is answered: JSON objects both ways."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from ...errors import MultiworldError
from ...process.messages import to_json
from ..errors import DeploymentError
from ..member.files import list_files, read_piece

if TYPE_CHECKING:
    from .controller import Controller

__all__ = ["answer"]

WAIT_S = 60.0
Answer = dict[str, Any]


async def answer(controller: Controller, request: Mapping[str, Any]) -> Answer:
    """Answer ``{"ask": …}`` with ``{"ok": True, …}``, or with ``{"error": text, "type": class}``."""
    handle = ANSWERS.get(str(request.get("ask")))
    if handle is None:
        return {
            "error": f"unknown request {request.get('ask')!r}; there are {', '.join(ANSWERS)}",
            "type": "ValueError",
        }
    try:
        return {"ok": True, **await handle(controller, request)}
    except KeyError as error:
        return {"error": f"{request['ask']} needs {error.args[0]!r}", "type": "ValueError"}
    except (MultiworldError, ValueError, TypeError) as error:
        return {"error": str(error), "type": type(error).__name__}


def _timeout(request: Mapping[str, Any]) -> float | None:
    """Return how long to wait for the end of it; ``"wait": false`` is not at all."""
    return float(request.get("timeout_s", WAIT_S)) if request.get("wait", True) else None


async def _status(controller: Controller, request: Mapping[str, Any]) -> Answer:
    return {"status": to_json(controller.status())}


async def _metrics(controller: Controller, request: Mapping[str, Any]) -> Answer:
    return {"gateways": controller.gateway_metrics()}


async def _scale(controller: Controller, request: Mapping[str, Any]) -> Answer:
    stage, replicas = request["stage"], request["replicas"]
    most, why = controller.most_replicas(stage)
    if isinstance(replicas, int) and replicas > most and not request.get("force", False):
        raise DeploymentError(f"{replicas} replicas are more than {most}, {why}: --force allows it")
    await controller.scale(
        request["stage"], request["replicas"], reason="ordered by a command", timeout_s=_timeout(request)
    )
    return {}


async def _drain(controller: Controller, request: Mapping[str, Any]) -> Answer:
    await controller.drain(
        request["replica"], scale_down=bool(request.get("scale_down", False)), timeout_s=_timeout(request)
    )
    return {}


async def _update(controller: Controller, request: Mapping[str, Any]) -> Answer:
    version = await controller.update(
        request["stage"],
        str(request["weights"]),
        parallel=bool(request.get("parallel", False)),
        settle_s=float(request.get("settle_s", 1.0)),
        timeout_s=_timeout(request),
    )
    return {"version": version}


async def _tune(controller: Controller, request: Mapping[str, Any]) -> Answer:
    names = ("batch_max_size", "batch_max_wait_s")
    controller.tune(request["stage"], **{name: request[name] for name in names if name in request})
    return {}


async def _events(controller: Controller, request: Mapping[str, Any]) -> Answer:
    return {"events": [to_json(event) for event in controller.history.since(int(request.get("since", 0)))]}


async def _logs(controller: Controller, request: Mapping[str, Any]) -> Answer:
    since = {str(member): int(number) for member, number in request.get("since", {}).items()}
    last = None if request.get("last") is None else max(0, int(request["last"]))
    told = await controller.lines(str(request.get("of", "")), since=since, last=last)
    return {"members": {member: each.to_json() for member, each in told.items()}}


async def _files(controller: Controller, request: Mapping[str, Any]) -> Answer:
    return {"files": await asyncio.to_thread(list_files, controller.spec.folder)}


async def _file(controller: Controller, request: Mapping[str, Any]) -> Answer:
    piece = await asyncio.to_thread(read_piece, controller.spec.folder, request["name"], int(request["offset"]))
    return {"piece": piece}


async def _stop(controller: Controller, request: Mapping[str, Any]) -> Answer:
    controller.stop_asked.set()
    return {}


ANSWERS: dict[str, Callable[[Controller, Mapping[str, Any]], Awaitable[Answer]]] = {
    "status": _status,
    "metrics": _metrics,
    "scale": _scale,
    "drain": _drain,
    "update": _update,
    "tune": _tune,
    "events": _events,
    "logs": _logs,
    "files": _files,
    "file": _file,
    "stop": _stop,
}
