"""What every worker of a benchmark shares: the event loop that obeys commands, and the ends of the pair to compare."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Awaitable, Callable
from typing import Any

import torch

import multiworld as mw

from ..testing.worker import next_command, report
from . import raw_gloo


class Member:
    """One rank of a team. A public coroutine method is a command; what it returns is the answer."""

    def __init__(self, manager: mw.WorldManager, rank: int, size: int) -> None:
        self.manager, self.rank, self.size = manager, rank, size
        self.gloo_store: Any = None
        self.address = self.store_url = ""

    async def serve(self, address: str) -> dict[str, Any]:
        """Host both stores on an address of this machine; return what ``meet`` is to be told."""
        self.gloo_store = raw_gloo.serve_store(address)
        return {
            "gloo_address": address,
            "gloo_port": self.gloo_store.port,
            "store_url": self.manager.serve_store(f"tcp://{address}:0"),
        }

    async def meet(self, gloo_address: str, gloo_port: int, store_url: str, address: str = "") -> None:
        """Connect to the stores. ``address``: where others reach this process, if that is another."""
        if self.gloo_store is None:
            self.gloo_store = raw_gloo.connect_store(gloo_address, gloo_port)
        self.address, self.store_url = address or gloo_address, store_url

    def form_gloo(self, name: str) -> torch.distributed.ProcessGroup:
        return raw_gloo.make_group(self.gloo_store, name, self.rank, self.size, self.address)

    async def form_world(self, name: str, backend: str) -> mw.World:
        return await self.manager.join(name, self.rank, self.size, self.store_url, backend=backend)


async def run(member: str, rank: int, size: int) -> None:
    """Be a member of a ``Team``: ``module:class`` of this package.

    It carries out the commands of the parent one by one, until that ends this process.
    """
    module, _, name = member.partition(":")
    make: type[Member] = getattr(importlib.import_module(f"{__package__}.{module}"), name)
    torch.set_num_threads(1)  # as many compute threads as cores would measure the scheduler
    async with mw.WorldManager(job="bench") as manager:
        obeying = make(manager, rank, size)
        gc.collect()
        gc.freeze()  # what is here stays: collecting between measurements looks at what they left, and is quick
        report("ready")
        while True:
            command = await next_command()
            fields = dict(command.fields)
            number = fields.pop("number")
            work: Callable[..., Awaitable[Any]] = getattr(obeying, command.name)
            report("done", number=number, value=await work(**fields))
            gc.collect()  # now, and not within the next measurement
