"""How a node answers a request: a head, and behind it the elements of a small tensor, or a message. Pure of IO.

The head has 16 bytes, so that elements of any dtype lie where a processor expects them.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from ...errors import ProtocolError
from .messages import TO_MASTER, ToMaster
from .specs import Spec

HEAD_BYTES: Final = 16
_ELEMENTS: Final = b"\x01".ljust(HEAD_BYTES, b"\x00")
_MESSAGE: Final = b"\x02".ljust(HEAD_BYTES, b"\x00")


def with_elements(memory: memoryview | bytes) -> bytearray:
    """Return a reply that holds the elements of a tensor."""
    return bytearray().join((_ELEMENTS, memory))


def with_message(message: ToMaster) -> bytearray:
    return bytearray(_MESSAGE + TO_MASTER.encode(message))


def read(reply: memoryview) -> memoryview | ToMaster:
    """Return the elements, or the message. Raises ProtocolError."""
    head = bytes(reply[:HEAD_BYTES])
    if head == _ELEMENTS:
        return reply[HEAD_BYTES:]
    if head == _MESSAGE:
        return TO_MASTER.decode(reply[HEAD_BYTES:])
    raise ProtocolError(f"a reply that begins with {head!r}")


def elements_in(memory: memoryview, spec: Spec) -> Tensor:
    """Return ``[numel]`` as a view of the memory. Raises ProtocolError if it has another size."""
    if len(memory) != spec.num_elements * spec.dtype.itemsize:
        raise ProtocolError(f"{len(memory)} bytes for {spec.num_elements} elements of {spec.dtype}")
    if not len(memory):
        return torch.empty(0, dtype=spec.dtype)
    return torch.frombuffer(memory, dtype=spec.dtype)
