"""Raw Gloo as the reference: PyTorch's process group alone, without the default group and its wrappers: its fastest."""

from __future__ import annotations

from datetime import timedelta
from typing import cast

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore  # PyTorch's stubs know them under this name only

__all__ = ["LOOPBACK", "Store", "connect_store", "make_group", "serve_store"]

LOOPBACK = "127.0.0.1"
TIMEOUT = timedelta(seconds=120)
THREADS = 2  # as init_process_group sets it


def serve_store() -> TCPStore:
    """Host a store on a free port (its ``port``)."""
    return TCPStore(LOOPBACK, 0, is_master=True, wait_for_workers=False, timeout=TIMEOUT)


def connect_store(port: int) -> TCPStore:
    return TCPStore(LOOPBACK, port, is_master=False, wait_for_workers=False, timeout=TIMEOUT)


def make_group(store: Store, name: str, rank: int, world_size: int) -> dist.ProcessGroup:
    """Form a group of its own, with a device of its own as ``new_group`` makes it; blocks until all are connected."""
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=LOOPBACK)]
    options._threads = THREADS
    options._timeout = TIMEOUT
    group = dist.ProcessGroupGloo(PrefixStore(name, store), rank, world_size, options)
    return cast(dist.ProcessGroup, group)  # it has the methods, but PyTorch's stubs do not say so
