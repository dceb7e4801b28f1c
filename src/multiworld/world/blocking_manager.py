"""``manager.blocking``: how a program without an event loop, or any thread, joins worlds."""

from __future__ import annotations

from typing import Protocol

import torch

from ..wire.progress.operation import Operation
from ..wire.progress.waiting import wait_blocking
from .joining.join_request import JoinRequest, check_request
from .world import World


class JoinStarter(Protocol):
    """What starts joins: the manager."""

    def start_join(self, request: JoinRequest) -> Operation[World]: ...

    def start_rejoin(self, name: str, timeout_s: float) -> Operation[World]: ...


class BlockingManager:
    """``manager.blocking``: ``join`` and ``rejoin`` for programs without an event loop, and for any thread."""

    def __init__(self, manager: JoinStarter) -> None:
        self._manager = manager

    def join(
        self,
        name: str,
        rank: int | None = None,
        world_size: int | None = None,
        store: str | None = None,
        backend: str = "auto",
        timeout_s: float = 30.0,
        device: torch.device | str | None = None,
        serve_store: bool = False,
    ) -> World:
        request = check_request(name, rank, world_size, store, backend, timeout_s, device, serve_store)
        return wait_blocking(self._manager.start_join(request))

    def rejoin(self, name: str, timeout_s: float = 30.0) -> World:
        return wait_blocking(self._manager.start_rejoin(name, timeout_s))
