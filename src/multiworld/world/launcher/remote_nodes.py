"""The nodes of remote tensors, as their master tells the launcher of them. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ...wire.messages import message, sparse

MAX_NODES = 256
MAX_LINES = 10
MAX_LENGTH = 300
LIMIT = 2**62


class _Small:
    """As an agent and the coordinator keep it: raises ValueError for what is not."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, str):
                is_small = len(value) <= MAX_LENGTH
            else:
                is_small = value is None or isinstance(value, tuple) or -LIMIT < value < LIMIT
            if not is_small:
                raise ValueError(f"{name} is out of range")


@dataclass(frozen=True, kw_only=True)
class RemoteNode(_Small):
    """One node. ``lost``: why it is lost, or has not come; empty while it is there.

    ``num_unconfirmed`` commands may not be executed yet. ``num_tensors`` are live on it, and ``memory_bytes`` has its
    process: None if it did not say so.
    """

    number: int
    host: str
    pid: int
    generation: int
    lost: str
    num_commands: int
    num_unconfirmed: int
    sent_bytes: int
    fetched_bytes: int
    num_waits: int
    num_failures: int
    num_tensors: int | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class RemoteWaits(_Small):
    """A line of the master's program that waits. ``operations``: what for, such as ``item``."""

    line: str
    operations: str
    num_waits: int
    waited_s: float
    longest_s: float
    received_bytes: int


@message("remote_nodes")
@sparse
@dataclass(frozen=True, kw_only=True)
class RemoteNodes(_Small):
    """How the nodes of the master ``rank`` stand, and which of its lines wait most; later news replaces it.

    ``syncs``: how often it waited for a value. ``ended``: the connection was closed. ``left_out``: nodes that are not
    told of.
    """

    rank: int
    syncs: int
    nodes: tuple[RemoteNode, ...] = ()
    lines: tuple[RemoteWaits, ...] = ()
    ended: bool = False
    left_out: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.nodes) > MAX_NODES or len(self.lines) > MAX_LINES:
            raise ValueError("the nodes or the lines are too many")
