"""One Gloo process group: built without the default group, and ended in the way that unblocks everything."""

from __future__ import annotations

import logging
import threading
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import Store

from .errands import start_reaper
from .gloo_device import acquire_device, release_device
from .gloo_mover import FOREVER, NUM_TAGS, GlooMover

__all__ = ["GlooGroup"]

logger = logging.getLogger(__name__)

POISON_TAG = NUM_TAGS + 1  # no payload uses it
RELEASE_S = 1.0  # Gloo lets go within 20 ms


class GlooGroup:
    """The process group of one world and generation.

    ``abort`` does what Gloo's own does not: a receive that runs out of time makes Gloo close all connections of the
    group, which fails whatever is under way within milliseconds. Then the group can be dropped.
    """

    def __init__(self, label: str, host: str, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self._label, self._host = label, host
        self._lock = threading.Lock()
        self._group: Any = None
        self._store: Store | None = None
        self._movers: list[GlooMover] = []
        self._aborted = False

    def build(self, store: Store, timeout_s: float) -> None:
        """Connect to all ranks; blocks for at most ``timeout_s``, on a thread of its own."""
        device = acquire_device(self._host)
        try:
            options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
            options._devices = [device]
            options._threads = 1
            options._timeout = timedelta(seconds=timeout_s)
            group = dist.ProcessGroupGloo(store, self.rank, self.size, options)
            group._set_default_timeout(FOREVER)
        except BaseException:
            release_device(self._host)
            raise
        with self._lock:
            aborted = self._aborted
            if not aborted:
                self._group, self._store = group, store
        if aborted:
            release_device(self._host)  # before the group, as in ``_reap``
            del device, options, group

    def mover(self, peer: int) -> GlooMover:
        mover = GlooMover(self, peer, f"{self._label}-{peer}")
        self._movers.append(mover)
        return mover

    def send(self, tensor: Tensor, peer: int, tag: int) -> Any:
        return self.process_group.send([tensor], peer, tag)

    def recv(self, tensor: Tensor, peer: int, tag: int) -> Any:
        return self.process_group.recv([tensor], peer, tag)

    @property
    def process_group(self) -> Any:
        group = self._group
        if group is None or self._aborted:
            raise RuntimeError("the process group is closed")
        return group

    def abort(self) -> None:
        """Fail all that is under way, and give everything back soon. Any thread, idempotent, never blocks."""
        with self._lock:
            if self._aborted:
                return
            self._aborted = True
        for mover in self._movers:
            mover.close()
        start_reaper(self._reap, f"{self._label}-reaper")

    def _reap(self) -> None:
        if self._group is None:
            return
        if any(mover.busy for mover in self._movers):
            self._poison()  # no local name for the group: the errors that ``release`` spreads keep this frame alive
        for mover in self._movers:  # in two steps: what one transfer ends may wait for all
            mover.let_go()
        for mover in self._movers:
            mover.release(RuntimeError("the process group was closed"))
        deadline = time.monotonic() + RELEASE_S
        ended = [mover.join(max(0.0, deadline - time.monotonic())) for mover in self._movers]
        if not all(ended):
            logger.error("%s: a thread still waits for Gloo %g s after the end", self._label, RELEASE_S)
        # In this order: the last reference to a device must be the group's. Its end takes up to 10 ms, which a group
        # spends without the interpreter lock, and Python's reference with it.
        release_device(self._host)
        with self._lock:
            self._group = self._store = None

    def _poison(self) -> None:
        group = self._group
        receives = []
        for peer in range(self.size):
            if peer != self.rank:
                scratch = torch.empty(1, dtype=torch.uint8)
                try:
                    receives.append((group.recv([scratch], peer, POISON_TAG), scratch))
                except RuntimeError:
                    continue  # that connection is closed already
        for receive, _ in receives:
            try:
                receive.wait(timedelta(milliseconds=1))
            except RuntimeError:
                continue  # as intended
