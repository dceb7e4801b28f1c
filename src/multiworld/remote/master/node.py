"""``nodes[1]``: one node as the user sees it; its process may be replaced, and it keeps its number."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ConnectError, NodeDeadError
from ..protocol.messages import NodeHello, NodeStatistics
from ..session.origins import here
from ..session.session import Session
from ..tensor import above_autograd
from ..tensor.calling import call
from ..tensor.creating import OnNode
from ..tensor.devices import device_of, moved_to
from ..tensor.moving import send
from ..tensor.naming import node_of
from ..tensor.remote_tensor import RemoteTensor
from .streams import Stream


class Node:
    """Tensors are made here by PyTorch's own functions inside ``with nodes[1]:``, or by ``nodes[1].randn(3, 3)``.

    All methods work from any thread. Those that make a tensor raise NodeDeadError while the node is lost.
    """

    def __init__(self, number: int) -> None:
        above_autograd.install()
        self.number = number
        self._session: Session | None = None
        self._refused: str | None = None
        self._changed = threading.Condition()
        self._modes = threading.local()

    def __repr__(self) -> str:
        session = self._session
        state = "never came" if session is None else session.dead or session.ended or session.away or "alive"
        return f"<Node {self.number}: {state}>"

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return a function of PyTorch's that makes tensors, on this node: ``zeros``, ``randn``, ``arange``, ...

        Its ``device`` is one of the node's: "cuda:1", or the index of a GPU. The master needs no such device.
        """
        function = getattr(torch, name, None) if not name.startswith("_") else None
        if not callable(function):
            raise AttributeError(f"a node has no attribute {name!r}, and torch has no function of that name")

        def make(*args: Any, device: int | str | torch.device | None = None, **kwargs: Any) -> Any:
            if not isinstance(device, int) and node_of(device) is not None:  # by the device name: "remote:2"
                kwargs["device"], device = device, None
            there = None if device is None else device_of(device)
            with OnNode(RemoteTensor, self.session, there):
                made = function(*args, **kwargs)
            if there is not None and isinstance(made, RemoteTensor):
                return moved_to(made, there)  # of as_tensor, which knows the master's devices only
            return made

        return make

    def __enter__(self) -> Node:
        mode = OnNode(RemoteTensor, self.session)
        mode.__enter__()  # type: ignore[no-untyped-call]
        stack = getattr(self._modes, "stack", None)
        if stack is None:
            stack = self._modes.stack = []
        stack.append(mode)
        return self

    def __exit__(self, *error: object) -> None:
        self._modes.stack.pop().__exit__(*error)

    # ---- its life

    @property
    def is_alive(self) -> bool:
        session = self._session
        return session is not None and session.away is None and not session.is_over

    @property
    def takes_commands(self) -> bool:
        """Whether it is alive, or is made anew after a loss: commands are kept meanwhile."""
        session = self._session
        return session is not None and not session.is_over

    @property
    def generation(self) -> int:
        """How often its worlds were formed; -1 before the first time."""
        return -1 if self._session is None else self._session.generation

    @property
    def pid(self) -> int:
        """The process id on the node's host."""
        return self._hello().pid

    @property
    def devices(self) -> tuple[str, ...]:
        """``cpu`` and its accelerators, as ``cuda:0``."""
        return self._hello().devices

    def wait_alive(self, timeout_s: float | None = None) -> None:
        """Wait until the node is there, or there again. Raises ConnectError, TimeoutError."""
        with self._changed:
            there = self._changed.wait_for(lambda: self.is_alive or self._refused is not None, timeout_s)
        if self._refused is not None:
            raise ConnectError(self._refused)
        if not there:
            raise TimeoutError(f"node {self.number} did not come within {timeout_s:g} s")

    def session(self) -> Session:
        """Return its present session. Raises NodeDeadError."""
        session = self._session
        if session is None:
            raise NodeDeadError(self.number, "an operation", here(), self._refused or "it has not come yet")
        session.check_usable("an operation")
        return session

    def take(self, session: Session) -> None:
        """Use this session from now on."""
        with self._changed:
            self._session = session
            self._changed.notify_all()

    def refuse(self, reason: str) -> None:
        """There will be no session (``reason``)."""
        with self._changed:
            self._refused = reason
            self._changed.notify_all()

    @property
    def last_session(self) -> Session | None:
        return self._session

    # ---- what it does

    def send(self, tensor: Tensor, *, non_blocking: bool = False) -> RemoteTensor:
        """Return a copy of a tensor on this node: of the master's, or of another node's. No gradient passes through it.

        ``non_blocking``: do not wait until it was sent; leave its memory alone until the copy was fetched or used.
        """
        return send(RemoteTensor, self.session(), tensor, wait=not non_blocking)  # type: ignore[no-any-return]

    def call(self, function: str, *args: Any, like: Any = None, **kwargs: Any) -> Any:
        """Have the node call a function that it declared (``"package.module:function"``), and return what comes out.

        Tensors in it are remote ones of this node; numbers, strings and None come as they are, in lists, tuples and
        dicts. Arguments: tensors of this node, small ones of the master, numbers, strings, dtypes, None, and lists of
        them; a tuple arrives as a list. It waits for what came out. With ``like``, the same with tensors of that shape
        and dtype in it (also on "meta"), it does not: what is returned otherwise fails as any operation.

        Raises CallNotDeclaredError, RemoteOperationError, NodeDeadError; TypeError for what does not travel.
        """
        return call(RemoteTensor, self.session(), function, args, kwargs, like)

    def load(self, module: nn.Module) -> nn.Module:
        """Move the parameters and buffers of a module to this node, in place; return the module."""
        from ..tensor.modules import load

        return load(module, self.session())

    def stream(self) -> Stream:
        """Return a new stream: what is done in ``with stream:`` runs beside what other streams do.

        Raises NodeDeadError.
        """
        return Stream(self.session())

    @property
    def default_stream(self) -> Stream:
        """The stream of all that is done in no ``with stream:``."""
        session = self.session()
        return Stream(session, session.stream)

    def current_stream(self) -> Stream:
        """Return the stream on which this thread's operations run here."""
        owner = self.session().streams.present_owner
        return owner if isinstance(owner, Stream) else self.default_stream

    def synchronize(self) -> None:
        """Wait until all that was issued here is executed, on all streams. Raises NodeDeadError."""
        self.session().synchronize()

    def manual_seed(self, seed: int) -> None:
        """Seed the generators of this node, behind what was issued before."""
        from ..protocol.records import seed as seed_record

        self.session().emit(seed_record(seed), "manual_seed", 2)

    @property
    def statistics(self) -> NodeStatistics:
        """What the node says of itself now."""
        return self.session().ask_statistics()

    def _hello(self) -> NodeHello:
        hello = self.session().hello
        assert hello is not None
        return hello
