"""Move a module to a node: its parameters and buffers, in place, each once although several modules may share it."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ..session.session import Session
from .moving import Place, copied, send
from .remote_tensor import RemoteTensor


def load(module: nn.Module, session: Session) -> nn.Module:
    """Return the same module. A parameter that is shared stays shared; gradients come along.

    Raises TypeError for what is no module.
    """
    if not isinstance(module, nn.Module):
        given = f"the class {module.__name__}" if isinstance(module, type) else f"a {type(module).__name__}"
        raise TypeError(
            f"load takes a module, not {given}. nodes[{session.number}].send(tensor) sends a tensor, "
            f'nodes[{session.number}].call("package.module:function") reads data that is on the node'
        )
    moved: dict[int, Any] = {}
    for each in module.modules():
        for name, parameter in each._parameters.items():
            if parameter is not None:
                each._parameters[name] = _moved(parameter, session, moved)
        for name, buffer in each._buffers.items():
            if buffer is not None:
                each._buffers[name] = _moved(buffer, session, moved)
    return module


def _there(tensor: Tensor, session: Session) -> Any:
    if not isinstance(tensor, RemoteTensor):
        return send(RemoteTensor, session, tensor)
    return tensor if tensor._session is session else copied(RemoteTensor, tensor.detach(), Place(session), "load")


def _moved(tensor: Tensor, session: Session, moved: dict[int, Any]) -> Any:
    there = moved.get(id(tensor))
    if there is None:
        there = _there(tensor, session)
        if isinstance(tensor, nn.Parameter):
            there = nn.Parameter(there, requires_grad=tensor.requires_grad)
            if tensor.grad is not None:
                there.grad = _moved(tensor.grad, session, {})  # no key: a gradient's id is soon another's
        moved[id(tensor)] = there
    return there
