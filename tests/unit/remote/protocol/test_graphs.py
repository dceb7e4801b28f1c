"""Graphs on the wire: they come back as they went, and what is none is refused."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from multiworld.errors import ProtocolError
from multiworld.remote.protocol.graphs import Constant, Graph, GraphCall, define_graph, read_graph
from multiworld.remote.protocol.records import HEAD
from multiworld.remote.protocol.specs import Spec

CONSTANT = Constant(Spec((2,), (1,), 0, torch.float32), b"\x00" * 8)
GRAPH = Graph(
    number=3,
    num_inputs=1,
    externals=(70,),
    constants=(CONSTANT,),
    calls=(GraphCall(64, (3,), (0, 1), (0, 1), ()), GraphCall(65, (4,), (3, 2), (), (3,))),
    statics=((90, 4),),
    outputs=(4, 0),
    floats=(0.1,),
    num_floats=1,
    is_compiled=True,
)


def _body(graph: Graph) -> bytes:
    return define_graph(graph)[HEAD.size :]


def test_a_graph_comes_back() -> None:
    assert read_graph(_body(GRAPH)) == GRAPH
    assert GRAPH.num_slots == 5
    empty = Graph(1, 0, (), (), (), (), ())
    assert read_graph(_body(empty)) == empty


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (GRAPH._replace(calls=GRAPH.calls[1:]), "reads what nothing made"),
        (GRAPH._replace(num_floats=0), "reads what nothing made"),
        (GRAPH._replace(num_floats=2**40), "at most"),
        (GRAPH._replace(num_inputs=2**40), "at most"),
        (GRAPH._replace(outputs=(3,)), "returns what nothing made"),
        (GRAPH._replace(calls=(GraphCall(64, (3,), (0,), (), (9,)),)), "drops what nothing made"),
        (GRAPH._replace(externals=(-1,)), "a number from 0 to"),
        (GRAPH._replace(calls=(GraphCall(64, (10**9,), (0,)),), outputs=(), statics=()), "slots"),
    ],
)
def test_a_graph_that_makes_no_sense_is_refused(bad: Graph, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        read_graph(_body(bad))


def test_whether_it_is_compiled_is_true_or_false() -> None:
    body = _body(GRAPH).replace(b",true]", b",1234]")
    with pytest.raises(ProtocolError, match="true or false is needed, not '1234'"):
        read_graph(body)


@given(st.binary(max_size=40), st.integers(0, 200))
def test_bytes_that_are_no_graph_are_refused(inserted: bytes, at: int) -> None:
    body = _body(GRAPH)
    changed = body[:at] + inserted + body[at + len(inserted) :]
    try:
        graph = read_graph(changed)
    except ProtocolError:
        return
    assert isinstance(graph, Graph)


def test_a_head_that_is_no_list_is_refused() -> None:
    head = json.dumps({"a": 1}).encode()
    with pytest.raises(ProtocolError, match="a bad graph"):
        read_graph((1).to_bytes(8, "little") + len(head).to_bytes(4, "little") + head)
