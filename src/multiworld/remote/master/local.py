"""Nodes on this host, as children of this process: ``remote.local(2)``. A node that dies is started again."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

import torch

from ...process.spawn.template import Template, TemplateLostError
from ...wire.endpoints.token import TOKEN_VARIABLE
from ...world.launcher.launched import AGENT_VARIABLE, WORKER_VARIABLE
from ...world.liveness import DEFAULT_LEASE_S
from ...world.manager import WorldManager
from ..backends import bulk_backend, check_backend
from ..errors import ConnectError
from ..protocol.calls import DeclaredCall, declared
from ..session.open_connections import check_single
from ..tensor.naming import DeviceName
from .declaring import check_module, options_of
from .nodes import Nodes
from .roster import NodePlace

START_S = 60.0
END_S = 5.0
JOB = "remote"
PROGRAM: Final = "multiworld.remote.node.program:main"
LAUNCHERS = frozenset({AGENT_VARIABLE, WORKER_VARIABLE})
"""A child is no worker of the launcher's."""


class Child(Protocol):
    """A process that was started for a node."""

    def wait(self, timeout_s: float | None = None) -> bool: ...
    def kill(self) -> None: ...
    def close(self) -> None: ...


class Starter(Protocol):
    """Starts processes that run the program of a node."""

    def start(self, arguments: Sequence[str]) -> Child: ...
    def close(self) -> None: ...


class LocalNodes:
    """The processes, by the number of their node.

    They are forked from one that has imported PyTorch: a replacement takes no processor from the nodes that go on.
    """

    def __init__(
        self,
        store: str,
        token: str,
        backend: str,
        job: str = JOB,
        allow: Iterable[str] = (),
        calls: Iterable[DeclaredCall] = (),
        starter: Starter | None = None,
    ) -> None:
        self._store, self._backend, self._job = store, backend, job
        self._allow, self._calls = tuple(allow), tuple(calls)
        self._starter = _template(token) if starter is None else starter
        self._lock = threading.Lock()  # a node may be started, on the roster's thread, while all end
        self._children: dict[int, Child] = {}  # guarded by _lock
        self._is_closed = False  # guarded by _lock

    def start(self, number: int) -> None:
        """Start the process of a node, in place of one that is lost: that is killed if it is still there.

        Raises ConnectError.
        """
        arguments = [
            f"--number={number}",
            f"--store={self._store}",
            f"--backend={self._backend}",
            f"--job={self._job}",
            *(f"--allow={namespace}" for namespace in self._allow),
            *options_of(self._calls),
        ]
        with self._lock:
            if not self._is_closed:
                self._end(number)
                try:
                    self._children[number] = self._starter.start(arguments)
                except TemplateLostError as error:
                    raise ConnectError(f"node {number} can't be started: {error}") from error

    def close(self, drop: bool = False) -> None:
        """Wait for the processes, which end with their master; kill those that do not, and with ``drop`` all."""
        with self._lock:
            self._is_closed = True
            children = list(self._children.values())
            self._children.clear()
        until = time.monotonic() + (0.0 if drop else END_S)
        for child in children:
            if not child.wait(max(0.0, until - time.monotonic())):
                child.kill()
                child.wait()
            child.close()
        self._starter.close()

    def _end(self, number: int) -> None:
        child = self._children.pop(number, None)
        if child is not None:
            child.kill()  # it may be stopped
            child.wait()
            child.close()


def _template(token: str) -> Template:
    environment = {name: value for name, value in os.environ.items() if name not in LAUNCHERS}
    if token:
        environment[TOKEN_VARIABLE] = token
    return Template(PROGRAM, environment)


def local(
    num_nodes: int,
    *,
    backend: str = "auto",
    num_threads: int | None = None,
    calls: Iterable[str | DeclaredCall] = (),
    lease_s: float = DEFAULT_LEASE_S,
    timeout_s: float = START_S,
) -> Nodes:
    """Start ``num_nodes`` processes on this host, and return them as the nodes 1 to ``num_nodes``.

    ``num_threads``: of each node's operations; default: as many as this process has, so that results are the same bits.
    ``calls``: functions for ``nodes[1].call``, as ``"package.module:function"``; the nodes import from where this
    process does.
    ``lease_s``: a node that shows no sign of life for so long is lost. Raises ConnectError, TimeoutError; ValueError
    for a backend that is not there, and for a call whose module is not.
    """
    if type(num_nodes) is not int or num_nodes < 1:
        raise ValueError(f"num_nodes={num_nodes!r}: expected a number from 1")
    check_backend(backend)
    check_single(has_name=DeviceName.in_use)
    backend = bulk_backend(backend)
    known = tuple(declared(calls).values())
    for each in known:
        check_module(each)
    token = secrets.token_hex(32)
    manager = WorldManager(job=JOB, token=token, lease_s=lease_s)
    bulk_manager = WorldManager(job=JOB, token=token, lease_s=lease_s)
    try:
        store = manager.serve_store("tcp://127.0.0.1:0")
        children = LocalNodes(store, token, backend, calls=known)
        nodes = Nodes(
            [NodePlace(number=number, store=store) for number in range(1, num_nodes + 1)],
            manager,
            bulk_manager,
            backend=backend,
            num_threads=torch.get_num_threads() if num_threads is None else num_threads,
            prepare=children.start,
            release=children.close,
        )
    except BaseException:
        manager.close()
        bulk_manager.close()
        raise
    try:
        nodes.wait_alive(timeout_s)
    except BaseException:
        nodes.close(drop=True)
        raise
    return nodes


__all__ = ["ConnectError", "local"]
