"""``remote.capture``."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from ..session.session import Session
from ..tensor.remote_tensor import RemoteTensor
from .step import Step


class HasSession(Protocol):
    """A node, as ``nodes[1]``."""

    number: int

    def session(self) -> Session: ...


def capture(*inputs: Tensor, node: HasSession | None = None) -> Step:
    """Record what a block does on a node, to replay it as one message::

        with remote.capture(x, y) as step:
            loss = criterion(model(x), y)
            ...
            step.returns(loss)
        loss = step(x2, y2)

    The block runs as usual. ``inputs``: the tensors that a replay gets anew, all of one node. ``node``: the node of a
    step without inputs. Raises TypeError, ValueError for other inputs; the block raises CaptureError for what a replay
    could not do.
    """
    session: Session | None = None if node is None else node.session()
    found: list[RemoteTensor] = []
    for place, each in enumerate(inputs):
        if not isinstance(each, RemoteTensor):
            raise TypeError(
                f"input {place} of remote.capture has to be a tensor of a node, not {_kind(each)}: "
                "send it first, as by nodes[1].send(tensor)"
            )
        session = session or each._session
        if each._session is not session:
            raise ValueError(
                f"input {place} of remote.capture is on node {each._session.number}, and the step belongs to node "
                f"{session.number}: capture a step for each node"
            )
        if any(each is other for other in found):
            raise ValueError(f"input {place} of remote.capture is there twice: a replay could not tell which is which")
        found.append(each)
    if session is None:
        raise ValueError("remote.capture() without inputs needs to know where: remote.capture(node=nodes[1])")
    return Step(session, found)


def _kind(value: Any) -> str:
    return type(value).__name__
