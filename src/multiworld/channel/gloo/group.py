"""Gloo process groups of two ranks: built without the default group, and ended in the way that unblocks everything."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..stream.mesh_store import MeshStore
from .introduction import come_as, read_introduction
from .mover import FOREVER, NUM_TAGS, GlooMover

logger = logging.getLogger(__name__)

POISON_TAG = NUM_TAGS + 1  # no payload uses it
CONNECT_S = 2.0  # once both have begun; Gloo waits for up to five times as long
CLOSED = "the process group was closed"
MEET_S = 0.1  # in which two that are both there have met
RELEASE_S = 2.0  # Gloo lets go within 20 ms


class GlooGroup:
    """The process group of this rank and one peer, in one world and generation, and the mover of their payloads.

    Nothing of it exists before ``connect``. Ending it does what Gloo's own end does not: a receive that runs out of
    time makes Gloo close all connections of the group, which fails whatever is under way within milliseconds. Then the
    group can be dropped. ``open_store`` returns what both ranks introduce themselves through; it runs on a thread.
    """

    def __init__(self, label: str, host: str, *, leads: bool, open_store: Callable[[], MeshStore]) -> None:
        self._label, self._host, self._open_store = label, host, open_store
        self._rank = 0 if leads else 1
        self._lock = threading.Lock()
        self._store: MeshStore | None = None  # of use while it connects; the group wants it to live as long as itself
        self._group: Any = None
        self._connecting: threading.Thread | None = None
        self._aborted = False
        self._connected = threading.Event()  # or failed to, or closed
        self._failure = CLOSED
        self.mover = GlooMover(self, 1 - self._rank, label)

    @property
    def ready(self) -> bool:
        return self._group is not None

    def connect(self) -> None:
        """Begin to connect, unless that was begun. Any thread, never blocks. It fails into the log: see ``ready``."""
        with self._lock:
            if self._connecting is not None or self._aborted:
                return
            self._connecting = threading.Thread(target=self._connect, name=f"{self._label}-connect", daemon=True)
            try:
                self._connecting.start()
            except RuntimeError:  # the interpreter is ending, or the system has no thread left
                self._connecting = None

    def send(self, tensor: Tensor, peer: int, tag: int) -> Any:
        return self._process_group().send([tensor], peer, tag)

    def recv(self, tensor: Tensor, peer: int, tag: int) -> Any:
        return self._process_group().recv([tensor], peer, tag)

    def abort(self, error: Exception) -> bool:
        """Take nothing more; true, once, if it has to be reaped. Any thread, never blocks."""
        with self._lock:
            if self._aborted:
                return False
            self._aborted = True
            store, has_begun = self._store, self._connecting is not None
        self.mover.close()
        if store is not None:
            store.close(error)
        self._connected.set()
        return has_begun

    def fail_transfers(self) -> None:
        """Make Gloo fail what is under way. After ``abort``."""
        group = self._group
        if group is None or not self.mover.busy:
            return
        scratch = torch.empty(1, dtype=torch.uint8)
        try:
            group.recv([scratch], 1 - self._rank, POISON_TAG).wait(timedelta(milliseconds=1))
        except RuntimeError:
            return  # as intended, or that connection is closed already

    def join(self, timeout_s: float) -> bool:
        """Wait until nothing connects any more, as an interpreter that ends must; False if that takes longer."""
        thread = self._connecting
        if thread is not None:
            thread.join(timeout_s)
        return thread is None or not thread.is_alive()

    def release_wait(self) -> socket.socket | None:
        """Let Gloo end its wait for a peer that is lost, and so will not come: come ourselves.

        The socket is to be closed when nothing connects any more.
        """
        store = self._store
        ours, theirs = (None if store is None else store.peek(f"0/{rank}") for rank in (self._rank, 1 - self._rank))
        if ours is None or theirs is None:
            return None  # the store's end was enough
        try:
            return come_as(1 - self._rank, read_introduction(ours))
        except (OSError, ValueError) as error:
            logger.debug("%s: Gloo's wait for its peer could not be ended: %s", self._label, error)
            return None

    def give_back(self) -> None:
        """Drop the group and what it holds. After the mover's end."""
        # In this order: the last reference to a device must be the group's. Its end takes up to 10 ms, which a group
        # spends without the interpreter lock, and Python's reference with it.
        if self._group is not None:
            release_device(self._host)
        with self._lock:
            self._group = self._store = None

    def _process_group(self) -> Any:
        self._connected.wait()
        group = self._group
        if group is None or self._aborted:
            raise RuntimeError(self._failure)
        return group

    def _connect(self) -> None:
        try:
            if not self._aborted:
                self._meet()
        except Exception as error:  # whatever the library raises; payloads then go on travelling with their headers
            if not self._aborted:
                self._failure = f"Gloo could not connect: {error}"
                logger.warning("%s: %s; large payloads stay on our own connection", self._label, self._failure)
        finally:
            self._connected.set()

    def _meet(self) -> None:
        store = self._open_store()
        with self._lock:
            self._store = store
        try:
            self._exchange(store, "begun", b"")  # the peer may be busy for long; the end of the world ends this
            self._build(store)
        finally:
            store.close(RuntimeError("Gloo is connected"))

    def _exchange(self, store: MeshStore, name: str, value: bytes) -> bytes:
        """Tell the peer, and return what it says."""
        store.set(f"{name}/{self._rank}", value)
        store.wait([theirs := f"{name}/{1 - self._rank}"])
        return store.get(theirs)

    def _build(self, store: MeshStore) -> None:
        """Publish the group if both ranks have it: one that has it alone would send what the other cannot receive."""
        device: Any = None
        group: Any = None
        failure, published = "", False
        try:
            try:
                device = acquire_device(self._host)
                group = self._construct(store, device)
            except Exception as error:  # as in ``_connect``; the peer has to know
                failure = str(error)
            their_failure = self._exchange(store, "built", failure.encode()).decode()
            if failure or their_failure:
                raise RuntimeError(failure or f"the other rank could not: {their_failure}")
            with self._lock:
                if not self._aborted:
                    self._group, published = group, True
        finally:
            if device is not None and not published:
                release_device(self._host)  # before the group, as in ``give_back``

    def _construct(self, store: MeshStore, device: Any) -> Any:
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = [device]
        options._threads = 1
        options._timeout = timedelta(seconds=CONNECT_S)
        group = dist.ProcessGroupGloo(store, self._rank, 2, options)
        group._set_default_timeout(FOREVER)
        return group


def reap_all(groups: Sequence[GlooGroup]) -> None:
    """End aborted groups and give back what they hold; blocks for some milliseconds, at most for ``RELEASE_S``."""
    for group in groups:
        group.fail_transfers()
    for group in groups:  # in steps: what one transfer ends may wait for all
        group.mover.let_go()
    for group in groups:
        group.mover.release(RuntimeError(CLOSED))
    began = time.monotonic()
    waiting = [group for group in groups if not group.join(_remaining_s(began + MEET_S))]
    sockets = [group.release_wait() for group in waiting]
    ended = [group.mover.join(_remaining_s(began + RELEASE_S)) for group in groups]
    ended += [group.join(_remaining_s(began + RELEASE_S)) for group in waiting]
    for sock in sockets:
        if sock is not None:
            sock.close()
    if not all(ended):
        logger.error("a thread still waits for Gloo %g s after the end of its world", RELEASE_S)
    for group in groups:
        group.give_back()


def _remaining_s(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())


_devices_lock = threading.Lock()
_devices: dict[str, tuple[Any, int]] = {}  # by address: the device, and how many groups are on it


def acquire_device(host: str) -> Any:
    """Return Gloo's network device of a numeric local address, which all groups of this process share.

    It is a thread and four descriptors, until all have released it.
    """
    with _devices_lock:
        device, num_groups = _devices.get(host, (None, 0))
        if device is None:
            device = dist.ProcessGroupGloo.create_device(hostname=host)
        _devices[host] = device, num_groups + 1
    return device


def release_device(host: str) -> None:
    with _devices_lock:
        device, num_groups = _devices.pop(host)
        if num_groups > 1:
            _devices[host] = device, num_groups - 1
