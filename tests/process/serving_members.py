"""Members without work: they speak the controller's language, form real edges, and hand over a tensor as weights."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import multiworld as mw
from multiworld.serving.member.control_line import ControlLine
from multiworld.serving.member.hand_over import donate_weights, take_weights
from multiworld.serving.member.messages import DOWNSTREAM_RANK, UPSTREAM_RANK, edge_world
from multiworld.serving.member.orders import ORDERS, MemberOrder
from multiworld.serving.member.reports import MemberReport, reports_of

JOIN_S = 10.0


class FakeMember:
    """Does what it is told. Asked for its weights it dies, if the folder holds a file ``MEMBER.dies``."""

    def __init__(
        self, manager: mw.WorldManager, arguments: dict[str, Any], tell: Callable[[MemberReport], None]
    ) -> None:
        self.manager, self.member, self.stage = manager, arguments["member"], arguments["stage"]
        self.store, self.folder = arguments["store"], Path(arguments["folder"])
        self._tell = tell
        self.state = "loaded" if self.stage == "gateway" else "starting"
        self.version = 1
        self.worlds: dict[tuple[str, str], mw.World] = {}
        self.open: set[str] = set()
        self.left = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loading: asyncio.Task[None] | None = None

    def tell(self, report: dict[str, Any]) -> None:
        self._tell(reports_of(self.member).from_json(report))

    def hello(self) -> MemberReport:
        edges = [{"peer": peer, "as": role} for peer, role in self.worlds]
        hello = {
            "event": "hello",
            "member": self.member,
            "stage": self.stage,
            "pid": os.getpid(),
            "host": "127.0.0.1",
            "state": self.state,
            "version": self.version,
            "edges": edges,
        }
        return reports_of(self.member).from_json(hello)

    def obey(self, message: MemberOrder) -> None:
        order = ORDERS.to_json(message)
        do = order["do"]
        if do == "open":
            self.open.add(order["peer"])
        elif do == "close":
            self.open.discard(order["peer"])
        elif do == "drain":
            self.state = "draining"
            self.tell({"event": "drained"})
        elif do == "leave":
            self.left.set()
        elif do in ("load", "donate", "connect"):
            if do == "load" and self._loading is not None:
                self._loading.cancel()
            task = asyncio.get_running_loop().create_task(getattr(self, f"_{do}")(order))
            self._loading = task if do == "load" else self._loading
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _load(self, order: dict[str, Any]) -> None:
        donor, path = order["donor"], order["weights"]
        try:
            if donor is not None:
                weights = await take_weights(self.manager, donor, self.member, self.store, "auto")
            else:
                weights = torch.load(path, weights_only=True) if path else {"w": torch.zeros(2)}
        except mw.MultiworldError as error:
            failed = {"event": "load_failed", "donor": donor, "hand_over_failed": donor is not None}
            self.tell({**failed, "error": str(error), "traceback": ""})
            return
        if "bad" in weights:
            self.tell(
                {"event": "load_failed", "donor": donor, "error": "these weights are bad", "traceback": "Traceback …"}
            )
            return
        self.version, self.state = order["version"], "loaded"
        (self.folder / f"{self.member}.loaded").write_text(f"{donor or 'init'} {float(weights['w'][0]):g}")
        self.tell({"event": "loaded", "version": self.version, "took_s": 0.0, "from": "init"})

    async def _donate(self, order: dict[str, Any]) -> None:
        if (self.folder / f"{self.member}.dies").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        weights = {"w": torch.full((2,), float(self.version))}
        await donate_weights(self.manager, self.member, order["to"], weights, self.store, "auto")

    async def _connect(self, order: dict[str, Any]) -> None:
        peer, role = order["peer"], order["as"]
        upstream = role == "upstream"
        name = edge_world(self.member, peer) if upstream else edge_world(peer, self.member)
        rank = UPSTREAM_RANK if upstream else DOWNSTREAM_RANK
        news = {"peer": peer, "as": role}
        try:
            world = await self.manager.join(name, rank=rank, world_size=2, store=self.store, timeout_s=JOIN_S)
        except mw.MultiworldError as error:
            self.tell({"event": "connect_failed", **news, "error": str(error)})
            return
        self.worlds[peer, role] = world
        self.tell({"event": "connected", **news})
        broken = await world.wait_broken()
        self.worlds.pop((peer, role), None)
        self.open.discard(peer)
        world.abort()
        self.tell({"event": "edge_broken", **news, "error": type(broken).__name__, "text": str(broken)})

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()


def main(arguments: dict[str, Any]) -> None:
    """Be the process of a member, until it is told to leave."""
    asyncio.run(_run(arguments))


async def _run(arguments: dict[str, Any]) -> None:
    async with mw.WorldManager(
        job=arguments["job"], token=arguments["token"], lease_s=arguments["lease_s"], host=arguments["host"]
    ) as manager:
        member = FakeMember(manager, arguments, lambda message: line.tell(message))
        line = ControlLine(
            manager, member.member, arguments["store"], hello=lambda: member.hello(), on_order=member.obey
        )
        talking = asyncio.ensure_future(line.run())
        await member.left.wait()
        talking.cancel()
        await asyncio.gather(talking, return_exceptions=True)
        member.stop()
