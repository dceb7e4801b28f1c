"""How a node answers a request: a head, and behind it the elements of a small tensor, or a message. Pure of IO.

The head says which request it is to. It has 16 bytes, so that elements of any dtype lie where a processor expects them.
"""

from __future__ import annotations

import struct
from typing import Final

import torch
from torch import Tensor

from ...channel.payload.tensors import memory_of
from ...errors import ProtocolError
from .messages import TO_MASTER, ToMaster
from .specs import Spec

HEAD: Final = struct.Struct("<QQ")
_ELEMENTS: Final = 1
_MESSAGE: Final = 2


def with_elements(request: int, memory: memoryview | bytes) -> bytearray:
    """Return a reply that holds the elements of a tensor."""
    return bytearray().join((HEAD.pack(_ELEMENTS, request), memory))


def with_tensor(request: int, elements: Tensor) -> bytearray:
    """As ``with_elements``. ``elements``: ``[numel]`` on the CPU; they are copied while this call holds them."""
    return with_elements(request, memory_of(elements))


def with_message(request: int, message: ToMaster) -> bytearray:
    return bytearray(HEAD.pack(_MESSAGE, request) + TO_MASTER.encode(message))


def request_of(reply: memoryview) -> int:
    """Raises ProtocolError."""
    return _head(reply)[1]


def read(reply: memoryview) -> memoryview | ToMaster:
    """Return the elements, or the message. Raises ProtocolError."""
    kind, _ = _head(reply)
    if kind == _ELEMENTS:
        return reply[HEAD.size :]
    if kind == _MESSAGE:
        return TO_MASTER.decode(reply[HEAD.size :])
    raise ProtocolError(f"a reply of the kind {kind}")


def _head(reply: memoryview) -> tuple[int, int]:
    """Return the kind, and the request."""
    if len(reply) < HEAD.size:
        raise ProtocolError(f"a reply of {len(reply)} bytes")
    kind, request = HEAD.unpack_from(reply)
    return kind, request


def elements_in(memory: memoryview, spec: Spec) -> Tensor:
    """Return ``[numel]`` as a view of the memory. Raises ProtocolError if it has another size."""
    if len(memory) != spec.num_elements * spec.dtype.itemsize:
        raise ProtocolError(f"{len(memory)} bytes for {spec.num_elements} elements of {spec.dtype}")
    if not len(memory):
        return torch.empty(0, dtype=spec.dtype)
    return torch.frombuffer(memory, dtype=spec.dtype)
