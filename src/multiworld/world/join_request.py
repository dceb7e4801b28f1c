"""What a caller of ``join`` asks for, checked before anything happens."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from ..store.base import parse_store_url
from .arguments import check_seconds
from .world import World

__all__ = ["JoinRequest", "after", "check_request"]


@dataclass(frozen=True, kw_only=True)
class JoinRequest:
    """What the caller of ``join`` asked for, checked."""

    name: str
    rank: int
    world_size: int
    store_url: str
    backend: str
    device: torch.device
    timeout_s: float
    serve_store: bool = False
    min_generation: int = 1


def check_request(
    name: str,
    rank: int,
    world_size: int,
    store: str,
    backend: str,
    timeout_s: float,
    device: torch.device | str | None,
    serve_store: bool,
) -> JoinRequest:
    """Return the request; raises ValueError or TypeError for what can be seen to be wrong here."""
    if not isinstance(name, str) or not name or "/" in name or len(name) > 200:
        raise ValueError(f"name={name!r}: expected a world's name, 1 to 200 characters without '/'")
    for label, value in (("rank", rank), ("world_size", world_size)):
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(f"{label} must be an int, got {value!r}")
    if world_size < 1:
        raise ValueError(f"world_size={world_size}: expected at least 1")
    if not 0 <= rank < world_size:
        raise ValueError(f"rank={rank} is out of range: a world of {world_size} has ranks 0 to {world_size - 1}")
    check_seconds(timeout_s, "timeout_s")
    if parse_store_url(store).port == 0:
        raise ValueError(
            f"store={store!r}: port 0 names no store; serve one with WorldManager.serve_store, and pass on the URL "
            "that it returns"
        )
    return JoinRequest(
        name=name,
        rank=rank,
        world_size=world_size,
        store_url=store,
        backend=backend,
        device=_with_index(torch.device(device)) if device is not None else _default_device(backend),
        timeout_s=timeout_s,
        serve_store=serve_store,
    )


def _default_device(backend: str) -> torch.device:
    if backend == "nccl":
        return torch.device("cuda", torch.cuda.current_device() if torch.cuda.is_available() else 0)
    return torch.device("cpu")


def _with_index(device: torch.device) -> torch.device:
    """Return which device ``"cuda"`` means for this thread at this moment."""
    if device.type == "cuda" and device.index is None and torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return device


def after(request: JoinRequest, old: World) -> JoinRequest:
    """The next generation must come after the one that this process was in, also on a fresh store."""
    return replace(request, min_generation=max(request.min_generation, old.generation + 1))
