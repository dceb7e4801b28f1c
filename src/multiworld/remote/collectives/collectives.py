"""``remote.all_reduce([t1, t2, t3])`` and the others: one tensor on each node, and nothing waits.

They have the names and the meaning of a world's. Ranks are places in the list. Autograd does not follow them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..between.worlds import Share
from ..protocol.elements import contiguous_strides
from ..protocol.specs import Spec, number_of
from ..session.session import Session, next_id
from ..tensor.remote_tensor import RemoteTensor
from ..tensor.wrapping import make
from .arguments import check_alike, check_lists, check_rank, check_together, check_written, nodes_of, op_of


def all_reduce(tensors: Sequence[Any], op: Any = "sum") -> None:
    """Reduce over all nodes, in place; each gets the same bits. ``op``: sum, avg, product, min, max, or a ReduceOp."""
    sessions, between = nodes_of("all_reduce", tensors)
    check_alike("all_reduce", tensors)
    check_written("all_reduce", tensors)
    name = op_of(op, tensors[0])
    between.collective("all_reduce", _in_place(sessions, tensors), op=name)
    _note_written(tensors)


def all_reduce_lists(lists: Sequence[Sequence[Any]], op: Any) -> None:
    """As ``all_reduce`` of the first of each list, then of the second, and so on: in one command for each node."""
    firsts = [each[0] for each in lists]
    sessions, between = nodes_of("all_reduce", firsts)
    for alike in zip(*lists, strict=True):
        check_alike("all_reduce", alike)
        check_written("all_reduce", alike)
        name = op_of(op, alike[0])
    shares = [_share(session, writes=each) for session, each in zip(sessions, lists, strict=True)]
    between.collective("all_reduce", shares, op=name)
    for each in lists:
        _note_written(each)


def broadcast(tensors: Sequence[Any], src: int = 0) -> None:
    """Copy the tensor at the place ``src`` into all others."""
    sessions, between = nodes_of("broadcast", tensors)
    check_rank("broadcast", src, "src", len(tensors))
    check_alike("broadcast", tensors)
    check_written("broadcast", tensors)
    between.collective("broadcast", _in_place(sessions, tensors), root=src)
    _note_written(tensors)


def reduce(tensors: Sequence[Any], dst: int = 0, op: Any = "sum") -> None:
    """Reduce into the tensor at the place ``dst``; the others stay as they are."""
    sessions, between = nodes_of("reduce", tensors)
    check_rank("reduce", dst, "dst", len(tensors))
    check_alike("reduce", tensors)
    check_written("reduce", [tensors[dst]])
    name = op_of(op, tensors[0])
    shares = [
        _share(session, writes=[tensor]) if place == dst else _share(session, reads=[tensor])
        for place, (session, tensor) in enumerate(zip(sessions, tensors, strict=True))
    ]
    between.collective("reduce", shares, root=dst, op=name)
    _note_written([tensors[dst]])


def all_gather(tensors: Sequence[Any]) -> list[list[RemoteTensor]]:
    """Return, for each node, copies of all tensors on it."""
    sessions, between = nodes_of("all_gather", tensors)
    check_alike("all_gather", tensors)
    made = [[_new(session, tensor) for tensor in tensors] for session in sessions]
    between.collective("all_gather", _making(sessions, [[each] for each in tensors], made))
    return made


def gather(tensors: Sequence[Any], dst: int = 0) -> list[RemoteTensor]:
    """Return copies of all tensors on the node of the one at the place ``dst``."""
    sessions, between = nodes_of("gather", tensors)
    check_rank("gather", dst, "dst", len(tensors))
    check_alike("gather", tensors)
    made = [_new(sessions[dst], tensor) for tensor in tensors]
    by_place = [made if place == dst else [] for place in range(len(tensors))]
    between.collective("gather", _making(sessions, [[each] for each in tensors], by_place), root=dst)
    return made


def scatter(tensors: Sequence[Any], parts: Sequence[Any], src: int = 0) -> None:
    """Copy each of ``parts``, on the node of the tensor at the place ``src``, into the tensor at its place."""
    sessions, between = nodes_of("scatter", tensors)
    check_rank("scatter", src, "src", len(tensors))
    if not isinstance(parts, (list, tuple)) or len(parts) != len(tensors):
        raise ValueError(f"scatter: expected a list of {len(tensors)} parts, one for each tensor")
    check_together("scatter", [tensors[src], *parts], f"parts, with tensor {src}")
    check_alike("scatter", tensors)
    check_alike("scatter", [tensors[0], *parts], "part")
    check_written("scatter", tensors)
    shares = [
        _share(session, writes=[tensor], reads=parts if place == src else ())
        for place, (session, tensor) in enumerate(zip(sessions, tensors, strict=True))
    ]
    between.collective("scatter", shares, root=src)
    _note_written(tensors)


def reduce_scatter(lists: Sequence[Sequence[Any]], op: Any = "sum") -> list[RemoteTensor]:
    """Reduce the lists, one on each node, element by element; return element i on node i."""
    firsts = check_lists("reduce_scatter", lists)
    sessions, between = nodes_of("reduce_scatter", firsts)
    check_alike("reduce_scatter", [tensor for each in lists for tensor in each])
    name = op_of(op, firsts[0])
    made = [_new(session, firsts[0]) for session in sessions]
    between.collective("reduce_scatter", _making(sessions, lists, [[each] for each in made]), op=name)
    return made


def all_to_all(lists: Sequence[Sequence[Any]]) -> list[list[RemoteTensor]]:
    """Send element j of the list on node i to node j; return, for each node, what it got, in the order of nodes."""
    firsts = check_lists("all_to_all", lists)
    sessions, between = nodes_of("all_to_all", firsts)
    made = [[_new(session, each[place]) for each in lists] for place, session in enumerate(sessions)]
    between.collective("all_to_all", _making(sessions, lists, made))
    return made


def _in_place(sessions: Sequence[Session], tensors: Sequence[Any]) -> list[Share]:
    return [_share(session, writes=[tensor]) for session, tensor in zip(sessions, tensors, strict=True)]


def _making(
    sessions: Sequence[Session], reads: Sequence[Sequence[Any]], made: Sequence[Sequence[RemoteTensor]]
) -> list[Share]:
    return [_share(session, reads=read, makes=new) for session, read, new in zip(sessions, reads, made, strict=True)]


def _share(
    session: Session,
    *,
    reads: Sequence[RemoteTensor] = (),
    writes: Sequence[RemoteTensor] = (),
    makes: Sequence[RemoteTensor] = (),
) -> Share:
    return Share(
        session=session,
        reads=tuple(each._id for each in reads),
        writes=tuple(each._id for each in writes),
        makes=tuple(each._id for each in makes),
        inputs=tuple(each.spec for each in (*reads, *writes)),
        specs=tuple(each.spec for each in makes),
    )


def _new(session: Session, like: RemoteTensor) -> RemoteTensor:
    """Return the tensor that a collective makes on a node: contiguous, in the memory of the CPU."""
    size = tuple(like.shape)
    return make(RemoteTensor, session, number_of(Spec(size, contiguous_strides(size), 0, like.dtype)), next_id())  # type: ignore[no-any-return]


def _note_written(tensors: Sequence[RemoteTensor]) -> None:
    """Let autograd see that a tensor that it keeps for backward was changed."""
    for tensor in tensors:
        torch.autograd.graph.increment_version(tensor)
