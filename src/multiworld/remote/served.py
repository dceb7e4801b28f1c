"""What a node that serves master after master keeps in its own store. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ..wire.messages import MessageSet, message

JOB: Final = "remote"
NUMBER_KEY: Final = "remote/number"
"""The node's number in the names of its worlds: a master has several nodes, and each is called otherwise."""
NUMBERS: Final = 2**48
"""As many numbers are there to draw one from."""
MASTER_KEY: Final = "remote/master"
"""Leased by the master: who it is."""
STATE_KEY: Final = "remote/node"


@message("node_state")
@dataclass(frozen=True, kw_only=True)
class NodeState:
    """A node as the list of nodes shows it. ``devices``: ``cpu`` and its accelerators; ``num_tensors``: live ids."""

    host: str
    pid: int
    multiworld: str
    torch: str
    devices: tuple[str, ...]
    num_tensors: int
    memory_bytes: int


STATE: MessageSet[NodeState] = MessageSet("what a node keeps in its store", NodeState, tag="say")
