"""What master and node say beside the commands: who they are, what was executed, what failed. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ...wire.messages import Json, MessageSet, message

VERSION = 1


@message("node_hello")
@dataclass(frozen=True, kw_only=True)
class NodeHello:
    """A node shows itself. ``devices``: ``cpu`` and its accelerators, as ``cuda:0``.

    ``calls``: the functions that it declared, and whether they can be called again with the same result.
    ``mark``: random bytes, in hex, that are at the address ``mark_at`` of the node; empty: nobody may read there.
    """

    version: int
    multiworld: str
    torch: str
    pid: int
    host: str
    devices: tuple[str, ...]
    calls: Mapping[str, bool] = field(default_factory=dict)
    mark: str = ""
    mark_at: int = 0


@message("welcome")
@dataclass(frozen=True, kw_only=True)
class Welcome:
    """The master takes the node. ``number``: the node's; ``num_threads``: for its operations, 0: as it likes.

    ``mark``: random bytes, in hex, that the node puts in place of its own before it does anything else: the master then
    reads large tensors in its memory, and writes them there. Empty: it does not.
    """

    number: int
    num_threads: int = 0
    mark: str = ""


@message("refused")
@dataclass(frozen=True, kw_only=True)
class Refused:
    """The master does not take the node (``reason``)."""

    reason: str


OUT_OF_MEMORY: Final = "out of memory"
"""The ``kind`` of a failure for lack of memory."""


@message("failed")
@dataclass(frozen=True, kw_only=True)
class Failed:
    """The record at ``position`` of ``stream`` failed with the error ``kind``, which says ``text``.

    ``call``: if the record runs a graph, which of its calls failed.
    ``session``: of the node where it failed; 0: of the node that tells it. ``group``: what several nodes tell of one
    failure has the same; 0: it is told by one. ``peer``: the session of a node that was lost and so caused it; 0: none.
    ``live``: for lack of memory, an id of each of the largest memories, in the order in which ``text`` shows them.
    """

    stream: int
    position: int
    kind: str
    text: str
    call: int | None = None
    session: int = 0
    group: int = 0
    peer: int = 0
    live: tuple[int, ...] = ()


@message("ending")
@dataclass(frozen=True, kw_only=True)
class Ending:
    """The node ends: after this failure no operation on a device of it can run any more."""

    failed: Failed


@message("executed")
@dataclass(frozen=True, kw_only=True)
class Executed:
    """All records of ``stream`` before ``position`` were executed; those in ``failures`` failed.

    ``request``: of the last of them, a sync. This is the answer to it as well.
    """

    stream: int
    position: int
    failures: tuple[Failed, ...] = ()
    request: int | None = None


@message("outcome")
@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What an operator returned (``Ask``): ``shown`` describes it, with ``specs`` of the tensors that got an id."""

    shown: Json
    specs: tuple[Json, ...] = ()


@message("sends")
@dataclass(frozen=True, kw_only=True)
class Sends:
    """A tensor was asked for that is large: it comes over the bulk lane, ``num_bytes`` long."""

    num_bytes: int


@message("in_memory")
@dataclass(frozen=True, kw_only=True)
class InMemory:
    """The answer for a large tensor: the master reads it at this address of the node, and then says ``Read``."""

    address: int
    num_bytes: int


@message("has_room")
@dataclass(frozen=True, kw_only=True)
class HasRoom:
    """The memory for the large tensor ``id``: the master writes it there, and says ``Written``."""

    id: int
    address: int


@message("declined")
@dataclass(frozen=True, kw_only=True)
class Declined:
    """The node has no room for the large tensor ``id``: it does not receive it."""

    id: int


@message("arrives")
@dataclass(frozen=True, kw_only=True)
class Arrives:
    """A large tensor comes; ``spec`` describes it.

    It comes over the bulk lane, with the tag of its ``id``. With ``is_written``, the node answers ``HasRoom``, and the
    master writes the tensor there.
    """

    id: int
    spec: Json
    is_written: bool = False


@message("written")
@dataclass(frozen=True, kw_only=True)
class Written:
    """The large tensor ``id`` is in the memory of the node."""

    id: int


@message("read")
@dataclass(frozen=True, kw_only=True)
class Read:
    """The master has read what ``request`` asked for. The node may free or change that memory."""

    request: int


@message("ask_statistics")
@dataclass(frozen=True, kw_only=True)
class AskStatistics:
    """Answer with ``NodeStatistics`` as the reply to ``request``, at once."""

    request: int


@message("node_statistics")
@dataclass(frozen=True, kw_only=True)
class NodeStatistics:
    """``num_tensors``: live ids; ``memory_bytes``: of the process; ``num_executed``: records so far."""

    num_tensors: int
    memory_bytes: int
    num_executed: int


@message("drop")
@dataclass(frozen=True, kw_only=True)
class Drop:
    """Execute nothing more of what waits: the master was interrupted."""


@message("open_stream")
@dataclass(frozen=True, kw_only=True)
class OpenStream:
    """Execute what comes as stream ``number``, beside the others, until its last record.

    An ``Outcome`` is the reply to ``request``: from then on the node counts with that stream.
    """

    number: int
    request: int


@message("meet")
@dataclass(frozen=True, kw_only=True)
class Meet:
    """Join a world of several nodes: ``world`` is its number in records, ``name`` its name at the ``store``.

    ``nodes``, ``sessions``: of its members by rank. ``store``: None for the launcher's.
    """

    world: int
    name: str
    rank: int
    nodes: tuple[int, ...]
    sessions: tuple[int, ...]
    store: str | None
    backend: str


@message("part")
@dataclass(frozen=True, kw_only=True)
class Part:
    """Give up a world of several nodes at once (``reason``). ``session``: of the member that is lost; 0: none."""

    world: int
    session: int
    reason: str


@message("parted")
@dataclass(frozen=True, kw_only=True)
class Parted:
    """A world of several nodes is no more (``reason``). ``session``: of the member that is lost; 0: none."""

    world: int
    session: int
    reason: str


@message("not_compiled")
@dataclass(frozen=True, kw_only=True)
class NotCompiled:
    """A graph that was to be compiled runs operator by operator, because of ``problem``."""

    problem: str


ToMaster = (
    NodeHello
    | Declined
    | HasRoom
    | Executed
    | Failed
    | Outcome
    | Sends
    | InMemory
    | NodeStatistics
    | Parted
    | NotCompiled
    | Ending
)
ToNode = Welcome | Refused | Arrives | Written | Read | AskStatistics | Drop | OpenStream | Meet | Part
TO_MASTER: MessageSet[ToMaster] = MessageSet("what a node tells its master", ToMaster, tag="say")
TO_NODE: MessageSet[ToNode] = MessageSet("what a master tells its node", ToNode, tag="say")
