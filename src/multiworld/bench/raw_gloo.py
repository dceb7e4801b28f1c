"""Raw Gloo as the reference: PyTorch's process group alone, without the default group and its wrappers: its fastest."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore  # PyTorch's stubs know them under this name only

__all__ = ["Store", "as_process_group", "connect_store", "make_group", "serve_store"]

TIMEOUT = timedelta(seconds=120)
THREADS = 2  # as init_process_group sets it


def serve_store(address: str) -> TCPStore:
    """Host a store on a free port (its ``port``) of this machine's ``address``."""
    return TCPStore(address, 0, is_master=True, wait_for_workers=False, timeout=TIMEOUT)


def connect_store(address: str, port: int) -> TCPStore:
    return TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=TIMEOUT)


def make_group(store: Store, name: str, rank: int, world_size: int, address: str) -> dist.ProcessGroup:
    """Form a group of its own, with a device of its own as ``new_group`` makes it; blocks until all are connected."""
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
    options._threads = THREADS
    options._timeout = TIMEOUT
    group = dist.ProcessGroupGloo(PrefixStore(name, store), rank, world_size, options)
    return cast(dist.ProcessGroup, group)  # it has the methods, but PyTorch's stubs do not say so


def as_process_group(group: dist.ProcessGroup, store: Store) -> dist.ProcessGroup:
    """Wrap a group from ``make_group`` in what DistributedDataParallel takes, still without the default group."""
    wrapped = dist.ProcessGroup(store, group.rank(), group.size())
    kind = dist.ProcessGroup.BackendType.GLOO
    wrapped._set_default_backend(kind)
    wrapped._register_backend(torch.device("cpu"), kind, cast(Any, group))
    return wrapped
