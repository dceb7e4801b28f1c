"""``torch.remote``: what PyTorch asks a device type for, as it asks ``torch.cuda``."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ..errors import UnsupportedOperationError
from ..protocol.records import seed as seed_record
from ..session import open_connections
from ..tensor.generators import kept, restore
from ..tensor.remote_tensor import RemoteTensor

_MAX_SEED = 2**64


class Backend:
    """Nodes are numbered by the master, so that ``remote:2`` is node 2: there may be no ``remote:0``."""

    _initialized = True

    def __init__(self) -> None:
        self._pid = os.getpid()

    def is_available(self) -> bool:
        return open_connections.present() is not None

    def is_initialized(self) -> bool:
        return True

    def _lazy_init(self) -> None:
        """There is nothing to set up: nodes come with a connection."""

    def _is_in_bad_fork(self) -> bool:
        """Whether this is a forked child: it has no nodes."""
        return os.getpid() != self._pid

    def device_count(self) -> int:
        """Return the highest number of a node, plus one: each number below is taken for a valid index by PyTorch."""
        connection = open_connections.present()
        return 0 if connection is None else 1 + max(connection.numbers, default=-1)

    def current_device(self) -> int:
        """Return 0: ``"remote"`` without a number is node 0."""
        return 0

    def manual_seed_all(self, seed: int) -> None:
        """Seed all nodes that are alive, behind what was issued before: ``torch.manual_seed`` calls it."""
        connection = open_connections.present()
        for session in connection.alive_sessions() if connection is not None else ():
            session.emit(seed_record(seed % _MAX_SEED), "manual_seed", 2)

    def get_rng_state(self, device: object = None) -> list[RemoteTensor]:
        """Return the states of the generators of all nodes, each a tensor of its node. Nothing waits."""
        connection = open_connections.present()
        sessions = connection.alive_sessions() if connection is not None else []
        return [kept(RemoteTensor, session) for session in sessions]

    def set_rng_state(self, state: list[RemoteTensor], device: object = None) -> None:
        """Go on from states that ``get_rng_state`` returned."""
        for each in state:
            restore(each)

    @contextmanager
    def device(self, device: object) -> Iterator[None]:
        """Do nothing: a node is named by each tensor. PyTorch's checkpoints keep states of generators inside."""
        yield

    def manual_seed(self, seed: int) -> None:
        self.manual_seed_all(seed)

    def synchronize(self, device: object = None) -> None:
        """Wait until all that was issued to a node is executed; without a device: to all."""
        connection = open_connections.present()
        if connection is None:
            return
        if device is None:
            sessions = connection.alive_sessions()
        else:
            index = device if isinstance(device, int) else torch.device(str(device)).index
            sessions = [connection.session_of(self.current_device() if index is None else index)]
        for session in sessions:
            session.synchronize()

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        """Asked by ``torch.autocast("remote")``, which would silently do nothing: raises UnsupportedOperationError.

        A checkpoint asks, too, to restore that autocast was off: PyTorch tells us only in the variable of its caller.
        """
        if sys._getframe(1).f_locals.get("enabled") is not False:
            raise UnsupportedOperationError(
                'torch.autocast("remote")',
                "autocast follows the label of tensors in C++, and that of remote tensors is the CPU's",
                'Write torch.autocast("cpu")',
            )
        return [torch.bfloat16, torch.float16]
