"""``nodes[1].call``: functions that the node declared, and no others; what they return stays there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from multiworld.remote import (
    CallNotDeclaredError,
    DeclaredCall,
    PlaceMismatchError,
    RemoteOperationError,
    RemoteTensor,
    SyncPointError,
    UnsupportedOperationError,
    no_sync,
)
from multiworld.remote.master.node import Node
from multiworld.remote.protocol.calls import declared

from ..fake_node import FakeNode, values

HERE = "tests.unit.remote.functions_of_nodes:"
NAMES = ("load_shard", "state", "spoil", "leave", "transposed", "with_gradient", "odd", "NOT_A_FUNCTION", "missing")


@pytest.fixture
def fake() -> Iterator[FakeNode]:
    calls = [DeclaredCall(name=HERE + name, replayable=name == "load_shard") for name in NAMES]
    with FakeNode(calls=calls) as fake_node:
        yield fake_node


def test_what_a_function_returns_is_a_tensor_of_the_node(node: Node) -> None:
    shard = node.call(HERE + "load_shard", "abc", rows=4)
    assert isinstance(shard, RemoteTensor)
    assert shard.shape == (4, 3)
    assert torch.equal(values(shard + 1), torch.full((4, 3), 1.5))


def test_tensors_travel_in_lists_and_dicts_and_plain_values_as_they_are(node: Node) -> None:
    here = torch.full((2,), 10.0)
    found = node.call(HERE + "state", 0.5, [node.ones(3), here])
    assert list(found) == ["sum", "pair", "scale"]
    assert found["sum"].item() == 11.5
    assert found["scale"] == 0.5
    view, plain = found["pair"]
    assert plain == [1, "two", None]
    assert view.shape == (1,)


def test_a_call_waits_and_is_counted_as_a_sync_point(fake: FakeNode) -> None:
    fake.node.call(HERE + "load_shard", "a")
    (line,) = fake.sync_points.by_line
    assert line.startswith(f"{HERE}load_shard at ")
    with no_sync(), pytest.raises(SyncPointError, match="load_shard waits for a node"):
        fake.node.call(HERE + "load_shard", "a")


def test_with_like_a_call_does_not_wait(fake: FakeNode) -> None:
    like = {"sum": torch.empty((), device="meta"), "pair": (fake.node.empty(1), [1, "two", None]), "scale": 2.0}
    with no_sync():
        found = fake.node.call(HERE + "state", 2.0, [fake.node.ones(3)], like=like)
        doubled = found["sum"] * 2
    assert values(doubled).item() == 12.0
    assert found["scale"] == 2.0


def test_with_like_strides_are_those_that_are_foreseen(node: Node) -> None:
    found = node.call(HERE + "transposed", node.arange(6).reshape(2, 3), like=torch.empty(3, 2, dtype=torch.int64))
    assert found.stride() == (2, 1)
    assert values(found.reshape(-1)).tolist() == [0, 3, 1, 4, 2, 5]


@pytest.mark.parametrize(
    ("like", "said"),
    [
        (torch.empty(9), r"tensor 0 has shape \(2, 1\), torch.float32, on cpu; expected \(9,\), torch.float32, on cpu"),
        ([torch.empty(2, 1)], r"\['tensor', 0\] in place of \['list', "),
    ],
)
def test_what_is_unlike_fails_where_it_is_needed(node: Node, like: object, said: str) -> None:
    found = node.call(HERE + "load_shard", "a", like=like)
    with pytest.raises(RemoteOperationError, match=said):
        values((found[0] if isinstance(found, list) else found) + 1)


def test_a_function_that_is_not_declared_is_refused_here_and_on_the_node(fake: FakeNode) -> None:
    with pytest.raises(
        CallNotDeclaredError, match=r"multiworld nodes serve --call os:system, or calls=\['os:system'\]"
    ):
        fake.node.call("os:system", "true")
    hello = fake.session.hello
    assert hello is not None
    hello.calls["os:system"] = False  # type: ignore[index]  # a master that does not look
    with pytest.raises(RemoteOperationError, match="CallRefusedError: os:system: the node did not declare it"):
        fake.node.call("os:system", "true")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("missing", "the node has no such function: .*has no attribute 'missing'"),
        ("NOT_A_FUNCTION", "this is no function"),
        ("leave", "SystemExit: 3"),
        ("odd", "TypeError: a object can't be sent"),
    ],
)
def test_what_cannot_be_called_is_an_error_of_this_call_alone(node: Node, name: str, said: str) -> None:
    with pytest.raises(RemoteOperationError, match=said):
        node.call(HERE + name)
    assert values(node.ones(2)).tolist() == [1.0, 1.0]


def test_what_a_function_wrote_before_it_failed_is_lost(node: Node) -> None:
    written, read = node.ones(3), node.ones(2)
    view = written[:1]
    with pytest.raises(RemoteOperationError, match=r"OSError: the disk is gone.*functions_of_nodes.py:\d+ in spoil"):
        node.call(HERE + "spoil", written, read)
    for lost in (written, view):
        with pytest.raises(RemoteOperationError, match="the disk is gone"):
            values(lost)
    assert values(read).tolist() == [1.0, 1.0]


def test_a_call_that_needs_a_lost_tensor_does_not_run(node: Node) -> None:
    lost = node.zeros(3).index_select(0, node.send(torch.tensor([9])))
    found = node.call(HERE + "transposed", lost, like=torch.empty(1))
    for needs in (lambda: node.call(HERE + "transposed", lost), lambda: values(found)):
        with pytest.raises(RemoteOperationError, match="index_select"):
            needs()


def test_results_have_no_gradient(node: Node) -> None:
    assert not node.call(HERE + "with_gradient").requires_grad


def test_arguments_that_do_not_travel_are_named_at_once(fake: FakeNode) -> None:
    node = fake.node
    with pytest.raises(TypeError, match=r"argument 0: a object can't be sent to a node. Tensors, numbers"):
        node.call(HERE + "load_shard", object())
    with pytest.raises(PlaceMismatchError, match=r"load_shard: .*Send it first: nodes\[1\]\.send"):
        node.call(HERE + "load_shard", torch.zeros(5000))
    with pytest.raises(UnsupportedOperationError, match=r"argument rows requires a gradient.*detach"):
        node.call(HERE + "load_shard", "a", rows=node.ones(1).requires_grad_())
    with FakeNode(2) as other, pytest.raises(PlaceMismatchError, match="one operand is on node 1, another on node 2"):
        node.call(HERE + "load_shard", other.node.ones(1))


def test_somebody_may_look_at_a_call_before_it_is_made(fake: FakeNode) -> None:
    seen = []
    fake.session.before_call = lambda call, line: seen.append((call.replayable, "test_calling.py" in line))
    fake.node.call(HERE + "load_shard", "a")
    fake.node.call(HERE + "with_gradient")
    assert seen == [(True, True), (False, True)]


def test_declarations_have_a_form() -> None:
    assert declared(["a.b:c", DeclaredCall(name="d:e", replayable=True)])["d:e"].replayable
    for bad in ("load", "a:b.c", "a b:c", ":c", "a:"):
        with pytest.raises(ValueError, match=r"expected package\.module:function"):
            declared([bad])
    with pytest.raises(TypeError, match="expected a list"):
        declared("a:b")
